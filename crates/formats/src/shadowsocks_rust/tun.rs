//! A local port of protocol `tun`: the keys of its interface.
//!
//! | key | default | becomes |
//! |---|---|---|
//! | `tun_interface_name` | the kernel's next `tun%d` | name of the interface |
//! | `tun_interface_address` | adit's own addresses | its address with the length of the prefix |
//! | `tun_interface_destination` | none | nothing: the next address is the far end. One outside the prefix is an error |
//! | `tun_device_fd_from_path` | none | an error: the interface is always made |
//!
//! Routes are the administrator's, as for the program. Its MTU is 1500, as the program leaves it.

use adit_model::{Tun, TunPrefix};

use crate::read::json_fields::{JsonFields, JsonReport};
use crate::read::value::{self, Problem};

use super::file::ServerOrigin;

/// Name that the kernel completes by a number.
const NAME: &str = "tun%d";
const MTU: u16 = 1500;

/// The keys of an interface.
pub(super) const KEYS: &[&str] =
    &["tun_interface_name", "tun_interface_address", "tun_interface_destination", "tun_device_fd_from_path"];

/// The keys of one interface, as they are written.
#[derive(Debug, Clone, Default)]
pub(super) struct TunKeys {
    pub(super) name: Option<String>,
    pub(super) address: Option<String>,
    pub(super) destination: Option<String>,
    pub(super) fd_path: Option<String>,
}

impl TunKeys {
    /// Takes the keys out of a local port.
    pub(super) fn take(fields: &mut JsonFields<'_>, report: &mut JsonReport<'_>) -> Self {
        let mut text = |key: &'static str| fields.text(report, key).map(str::to_owned);
        Self {
            name: text("tun_interface_name"),
            address: text("tun_interface_address"),
            destination: text("tun_interface_destination"),
            fd_path: text("tun_device_fd_from_path"),
        }
    }

    /// The interface; `None` if something is wrong, which is reported at `origin`.
    pub(super) fn interface(&self, origin: &ServerOrigin, report: &mut JsonReport<'_>) -> Option<Tun> {
        let mut fail = |key: &str, problem: Problem| origin.error(report, key, problem);
        if self.fd_path.is_some() {
            let problem = Problem::new("not in this build: the interface is always made");
            fail("tun_device_fd_from_path", problem.hint("leave it out, and give tun_interface_name"));
            return None;
        }
        let usual = Tun::default();
        let mut tun = Tun { name: NAME.into(), mtu: MTU, ..usual };
        if let Some(name) = &self.name {
            tun.name = value::interface(name).map_err(|problem| fail("tun_interface_name", problem)).ok()?;
        }
        if let Some(address) = &self.address {
            let hint = "the program takes one as 10.255.0.1/24";
            let bad = |error: adit_model::TunAddressError| Problem::new(error.to_string()).hint(hint);
            let parsed = address.parse::<TunPrefix>().map_err(bad);
            (tun.v4, tun.v6) = match parsed.map_err(|problem| fail("tun_interface_address", problem)).ok()? {
                TunPrefix::V4(v4) => (Some(v4), None),
                TunPrefix::V6(v6) => (None, Some(v6)),
            };
        }
        if let Some(destination) = &self.destination {
            let address = destination.split('/').next().unwrap_or_default().parse();
            let is_inside = match address {
                Ok(std::net::IpAddr::V4(v4)) => tun.v4.is_some_and(|own| own.contains(v4)),
                Ok(std::net::IpAddr::V6(v6)) => tun.v6.is_some_and(|own| own.contains(v6)),
                Err(_) => false,
            };
            if !is_inside {
                let problem = Problem::new("no address in the prefix of tun_interface_address");
                fail(
                    "tun_interface_destination",
                    problem.hint("leave it out: the next address is the far end"),
                );
                return None;
            }
        }
        Some(tun)
    }
}
