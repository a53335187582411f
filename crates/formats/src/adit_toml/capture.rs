//! `[capture]`.

use adit_model::{Capture, Outbound, Selection};

use super::fields::{Spanned, TomlFields, TomlReport};
use super::keys::TomlTable;
use super::rows::capture as rows;
use super::write::{TableEntries, Writer};
use crate::read::value::{self, Problem};

/// The settings as they are written; the outbound is looked up when all are known.
pub(super) struct RawCapture {
    capture: Capture,
    outbound: Option<Spanned<Box<str>>>,
    path: String,
}

pub(crate) fn read(mut fields: TomlFields<'_>, report: &mut TomlReport<'_>) -> RawCapture {
    let mut capture = Capture::new("".into());
    capture.mode = fields.read(report, &rows::MODE).unwrap_or_default();
    let outbound = fields.read(report, &rows::OUTBOUND);
    capture.lan = values(fields.read(report, &rows::LAN));
    capture.lan_exclude = values(fields.read(report, &rows::EXCLUDE_LAN));
    capture.local = fields.read(report, &rows::LOCAL).unwrap_or(true);
    capture.strict = fields.read(report, &rows::STRICT).unwrap_or(false);
    capture.ipv6 = fields.read(report, &rows::IPV6).unwrap_or(true);
    capture.dns_hijack = fields.read(report, &rows::DNS_HIJACK).unwrap_or(true);
    capture.exclude = Selection {
        addresses: values(fields.read(report, &rows::EXCLUDE_ADDRESS)),
        users: values(fields.read(report, &rows::EXCLUDE_UID)),
        groups: values(fields.read(report, &rows::EXCLUDE_GID)),
        interfaces: values(fields.read(report, &rows::EXCLUDE_INTERFACE)),
    };
    capture.include = Selection {
        addresses: values(fields.read(report, &rows::INCLUDE_ADDRESS)),
        users: values(fields.read(report, &rows::INCLUDE_UID)),
        groups: values(fields.read(report, &rows::INCLUDE_GID)),
        interfaces: values(fields.read(report, &rows::INCLUDE_INTERFACE)),
    };
    capture.own_mark = fields.read(report, &rows::OWN_MARK).unwrap_or(Capture::OWN_MARK);
    capture.mark = fields.read(report, &rows::MARK).unwrap_or(Capture::MARK);
    capture.table = fields.read(report, &rows::TABLE).unwrap_or(Capture::TABLE);
    capture.priority = fields.read(report, &rows::PRIORITY).unwrap_or(Capture::PRIORITY);
    if capture.mark == capture.own_mark {
        let problem = Problem::new("the mark of adit's own sockets, which are never captured");
        let row = if fields.has(&rows::MARK) { &rows::MARK } else { &rows::OWN_MARK };
        fields.wrong(report, row, problem.hint("give mark and capture-mark different values"));
    }
    let path = fields.path(&rows::OUTBOUND);
    fields.finish(report, None);
    RawCapture { capture, outbound, path }
}

fn values<T>(list: Option<Vec<Spanned<T>>>) -> Vec<T> {
    list.unwrap_or_default().into_iter().map(|entry| entry.value).collect()
}

/// Finds the outbound.
pub(super) fn resolve(raw: RawCapture, outbounds: &[Outbound], report: &mut TomlReport<'_>) -> Capture {
    let RawCapture { mut capture, outbound, path } = raw;
    capture.outbound = outbounds[0].name.clone();
    let Some(wanted) = outbound else { return capture };
    match outbounds.iter().find(|outbound| *outbound.name == *wanted.value) {
        Some(found) => capture.outbound = found.name.clone(),
        None => {
            let names = outbounds.iter().map(|outbound| &*outbound.name);
            let problem = Problem::new(format!("no such outbound: {}", value::excerpt(&wanted.value)));
            let problem = match value::closest(&wanted.value, names) {
                Some(name) => problem.hint(format!("did you mean `{name}`?")),
                None => problem,
            };
            report.error(&wanted.at, path, problem);
        }
    }
    capture
}

/// Writes `[capture]`.
pub(super) fn write(out: &mut Writer, capture: &Capture) {
    let Capture {
        mode, outbound, lan, lan_exclude, local, strict, ipv6, dns_hijack, exclude, include, ..
    } = capture;
    let mut table = TableEntries::default();
    table.put(&rows::MODE, mode);
    table.put(&rows::OUTBOUND, outbound);
    put_list(&mut table, &rows::LAN, lan);
    put_list(&mut table, &rows::EXCLUDE_LAN, lan_exclude);
    table.put_unless(&rows::LOCAL, local, &true);
    table.put_unless(&rows::STRICT, strict, &false);
    table.put_unless(&rows::IPV6, ipv6, &true);
    table.put_unless(&rows::DNS_HIJACK, dns_hijack, &true);
    put_list(&mut table, &rows::EXCLUDE_ADDRESS, &exclude.addresses);
    put_list(&mut table, &rows::INCLUDE_ADDRESS, &include.addresses);
    put_list(&mut table, &rows::EXCLUDE_UID, &exclude.users);
    put_list(&mut table, &rows::INCLUDE_UID, &include.users);
    put_list(&mut table, &rows::EXCLUDE_GID, &exclude.groups);
    put_list(&mut table, &rows::INCLUDE_GID, &include.groups);
    put_list(&mut table, &rows::EXCLUDE_INTERFACE, &exclude.interfaces);
    put_list(&mut table, &rows::INCLUDE_INTERFACE, &include.interfaces);
    table.put_unless(&rows::OWN_MARK, &capture.own_mark, &Capture::OWN_MARK);
    table.put_unless(&rows::MARK, &capture.mark, &Capture::MARK);
    table.put_unless(&rows::TABLE, &capture.table, &Capture::TABLE);
    table.put_unless(&rows::PRIORITY, &capture.priority, &Capture::PRIORITY);
    out.table(TomlTable::Capture, &table);
}

fn put_list<T>(table: &mut TableEntries, row: &super::rows::rule::OneOrMany<T>, values: &[T]) {
    if !values.is_empty() {
        table.put(row, values);
    }
}

#[cfg(test)]
mod tests {
    use crate::adit_toml::{parse, to_toml};
    use adit_model::{Capture, CaptureMode, Owner};

    const OUTBOUNDS: &str = "[[outbound]]\nname = \"home\"\nprotocol = \"direct\"\n\
                             [[outbound]]\nname = \"second\"\nprotocol = \"direct\"\n";

    fn read(text: &str) -> Result<Capture, String> {
        let loaded = parse("t.toml", &format!("[capture]\n{text}\n{OUTBOUNDS}"));
        let config = loaded.map_err(|found| found.to_string())?.config;
        let again = parse("t.toml", &to_toml(&config)).unwrap().config;
        assert_eq!(again, config, "{}", to_toml(&config));
        Ok(config.capture.unwrap())
    }

    #[test]
    fn an_empty_table_captures_local_traffic() {
        assert_eq!(read("").unwrap(), Capture::new("home".into()), "no inbound is needed");
    }

    #[test]
    fn all_keys_are_read() {
        let capture = read(
            "mode = \"tproxy\"\noutbound = \"second\"\nlan = \"br0\"\nstrict = true\nipv6 = false\n\
             dns-hijack = false\nexclude-address = [\"192.0.2.0/24\", \"2001:db8::/32\"]\n\
             exclude-uid = [1000, \"2000-2009\", \"backup\"]\ninclude-interface = [\"eth0\"]\nmark = 255\n\
             capture-mark = 254\ntable = 3000\npriority = 8000",
        );
        let capture = capture.unwrap();
        assert_eq!((capture.mode, &*capture.outbound), (CaptureMode::Tproxy, "second"));
        let users = [Owner::Numbers(1000, 1000), Owner::Numbers(2000, 2009), Owner::Name("backup".into())];
        assert_eq!(capture.exclude.users, users);
        assert_eq!(capture.exclude.addresses.len(), 2);
        assert_eq!((capture.own_mark, capture.mark, capture.bound_table()), (255, 254, 3002));
        assert!(capture.strict && !capture.ipv6 && !capture.dns_hijack);
        let all =
            read("lan = \"*\"\nexclude-lan = [\"wg0\"]\nlocal = false\ninclude-interface = \"e\"").unwrap();
        assert!(all.has_any_lan() && !all.local);
        let named: Vec<_> = all.interfaces().collect();
        assert_eq!(named, [("exclude-lan", "wg0"), ("include-interface", "e")]);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, want) in [
            ("mode = \"tunnel\"", "capture.mode"),
            ("outbound = \"hom\"", "capture.outbound: no such outbound: hom"),
            ("lan = \"a name that is far too long\"", "capture.lan"),
            ("exclude-address = \"192.0.2.0/33\"", "capture.exclude-address"),
            ("exclude-uid = \"9-1\"", "capture.exclude-uid"),
            ("exclude-uid = -1", "capture.exclude-uid"),
            ("mark = 8227", "capture.mark: the mark of adit's own sockets"),
            ("capture-mark = 8228", "capture.capture-mark: the mark of adit's own sockets"),
            ("table = 254", "capture.table: not from 256"),
            ("priority = 9", "capture.priority: not from 10 to 32000"),
            ("modes = 1", "capture.modes: unknown key"),
        ] {
            let found = read(text).unwrap_err();
            assert!(found.contains(want), "{text}: {found}");
        }
    }
}
