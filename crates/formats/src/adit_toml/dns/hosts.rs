//! `[[dns.hosts]]`: names with fixed addresses, and names that stand for others.

use std::net::IpAddr;

use adit_model::Dns;

use super::rows;
use crate::adit_toml::fields::{TomlFields, TomlReport};
use crate::adit_toml::keys::TomlTable;
use crate::adit_toml::write::{TableEntries, Writer};
use crate::read::value::Problem;

/// Names with their addresses, and names with those that they stand for.
type Known = Vec<(Box<str>, Vec<IpAddr>)>;
type Aliases = Vec<(Box<str>, Box<str>)>;

/// Reads the addresses of a name, or the name that it stands for.
pub(super) fn read(
    mut fields: TomlFields<'_>,
    known: &mut Known,
    aliases: &mut Aliases,
    report: &mut TomlReport<'_>,
) {
    let name = fields.require(report, &rows::HOST_NAME);
    let alias = fields.read(report, &rows::HOST_ALIAS);
    let ips = if alias.is_some() {
        if fields.has(&rows::HOST_ADDRESS) {
            let problem = Problem::new("not both alias and address").hint("leave one of them out");
            fields.wrong(report, &rows::HOST_ALIAS, problem);
        }
        fields.read(report, &rows::HOST_ADDRESS)
    } else {
        fields.require(report, &rows::HOST_ADDRESS)
    };
    fields.finish(report, None);
    match (name, alias, ips) {
        (Some(name), Some(alias), _) => aliases.push((name, alias)),
        (Some(name), None, Some(ips)) => known.push((name, ips.into_iter().map(|ip| ip.value).collect())),
        (Some(_), None, None) | (None, ..) => {}
    }
}

/// Writes all names.
pub(super) fn write(out: &mut Writer, dns: &Dns) {
    for (name, ips) in &dns.hosts {
        let mut table = TableEntries::default();
        table.put(&rows::HOST_NAME, name);
        table.put(&rows::HOST_ADDRESS, ips);
        out.table(TomlTable::DnsHost, &table);
    }
    for (name, alias) in &dns.aliases {
        let mut table = TableEntries::default();
        table.put(&rows::HOST_NAME, name);
        table.put(&rows::HOST_ALIAS, alias);
        out.table(TomlTable::DnsHost, &table);
    }
}
