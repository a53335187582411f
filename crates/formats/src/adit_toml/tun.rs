//! Keys of a virtual interface.

use adit_model::{Tun, TunPrefix};

use super::fields::{Spanned, TomlFields, TomlReport};
use super::rows::{link, port_keys as rows};
use super::write::TableEntries;
use crate::read::value::Problem;

/// An interface of this name.
pub(crate) fn read(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>, name: Option<Box<str>>) -> Tun {
    let mut tun = Tun::default();
    tun.name = name.unwrap_or(tun.name);
    tun.offload = fields.read(report, &rows::OFFLOAD).unwrap_or(tun.offload);
    tun.mtu = fields.read(report, &rows::TUN_MTU).unwrap_or_else(|| Tun::usual_mtu(tun.offload));
    tun.udp_idle = fields.read(report, &rows::UDP_TIMEOUT);
    if fields.has(&rows::ADDRESS) {
        let addresses = fields.read(report, &rows::ADDRESS).unwrap_or_default();
        take_addresses(&mut tun, fields, report, &addresses);
    }
    tun
}

/// One address of each family at most, and one at least.
fn take_addresses(
    tun: &mut Tun,
    fields: &TomlFields<'_>,
    report: &mut TomlReport<'_>,
    addresses: &[Spanned<TunPrefix>],
) {
    (tun.v4, tun.v6) = (None, None);
    for Spanned { value, at } in addresses {
        let is_second = match value {
            TunPrefix::V4(v4) => tun.v4.replace(*v4).is_some(),
            TunPrefix::V6(v6) => tun.v6.replace(*v6).is_some(),
        };
        if is_second {
            let problem = Problem::new(format!("a second address of its family: {value}"));
            report.error(at, fields.path(&rows::ADDRESS), problem.hint("give one of IPv4 and one of IPv6"));
        }
    }
    if fields.is_empty_list(&rows::ADDRESS) {
        let problem = Problem::new("empty").hint("for instance address = \"198.18.0.1/30\"");
        fields.wrong(report, &rows::ADDRESS, problem);
    }
}

pub(super) fn write(out: &mut TableEntries, tun: &Tun) {
    let usual = Tun::default();
    if tun.name != usual.name {
        out.put(&link::INTERFACE, &tun.name);
    }
    if (tun.v4, tun.v6) != (usual.v4, usual.v6) {
        let v4 = tun.v4.map(TunPrefix::V4);
        let addresses: Vec<TunPrefix> = v4.into_iter().chain(tun.v6.map(TunPrefix::V6)).collect();
        out.put(&rows::ADDRESS, &addresses);
    }
    out.put_unless(&rows::TUN_MTU, &tun.mtu, &Tun::usual_mtu(tun.offload));
    out.put_unless(&rows::OFFLOAD, &tun.offload, &usual.offload);
    out.put_some(&rows::UDP_TIMEOUT, tun.udp_idle.as_ref());
}
