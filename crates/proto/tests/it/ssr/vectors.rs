//! Recorded streams between other programs, opened by both of our ends.

use std::sync::Arc;

use adit_proto::goquiet;
use adit_proto::ssr::{Refusal, SsrKey, SsrMethod, obfs, protocol};
use serde_json::Value;

use crate::ssr::support::{Bad, End, Script, Setup, hex, read, rows, text};

const FILES: [&str; 5] = [
    "tcp_ciphers.json",
    "tcp_protocol_x_obfs.json",
    "tcp_libev_fork.json",
    "tcp_chain_b_to_f.json",
    "tcp_multiuser.json",
];

fn users(param: &str) -> Option<Vec<(u32, &str)>> {
    let (_, list) = param.split_once('#').filter(|(_, list)| list.contains(':'))?;
    Some(
        list.split(',')
            .filter_map(|user| user.split_once(':'))
            .map(|(id, it)| (id.parse().expect("an id"), it))
            .collect(),
    )
}

fn setup(row: &Value) -> Setup {
    let method: SsrMethod = text(row, "method").parse().expect("a method");
    // The recorded table is that of a Python server.
    let key = SsrKey::with_python_table(method, text(row, "password").as_bytes());
    let mut setup = Setup::with_key(key, text(row, "protocol"), text(row, "obfs"));
    let quiet = goquiet::GoQuietKey::new(text(row, "password").as_bytes());
    setup.quiet = goquiet::GoQuietServerConfig::new(quiet);
    if let Some(table) = users(text(row, "protocol_param_server")) {
        setup = setup.with_users(Some((1002, "bob-key")), &table);
    }
    let interval = text(row, "protocol_param_server").split_once('#').and_then(|(_, it)| it.parse().ok());
    setup.interval_s = interval.unwrap_or(protocol::DEFAULT_INTERVAL_S);
    setup.server_s = row["unix_time"].as_u64().expect("a time");
    setup.server_obfs =
        obfs::SsrObfsServerConfig::new(setup.obfs, &setup.key, text(row, "obfs_param_client"), 0);
    setup
}

fn chunks<'a>(row: &'a Value, way: &'a str) -> impl Iterator<Item = Vec<u8>> + 'a {
    let all = row["chunks"].as_array().expect("a list").iter();
    all.filter(move |chunk| chunk[0] == way).map(|chunk| hex(chunk[1].as_str().expect("hex")))
}

fn receive_all(end: &mut End, pieces: impl Iterator<Item = Vec<u8>>, name: &str) -> Vec<u8> {
    pieces.flat_map(|piece| end.receive(&piece).unwrap_or_else(|bad| panic!("{name}: {bad:?}"))).collect()
}

fn name(file: &str, row: &Value) -> String {
    let part = |key| text(row, key);
    format!("{file}/{} {} {} <- {}", part("method"), part("protocol"), part("obfs"), part("client"))
}

fn expected(row: &Value, way: &str) -> Vec<u8> {
    let payload = hex(text(&read("ssr", "payload.json"), way));
    if way == "c2s" { [hex(text(row, "target")), payload].concat() } else { payload }
}

fn check_server(file: &str, row: &Value) {
    let name = name(file, row);
    let setup = setup(row);
    let mut server = setup.server();
    assert!(receive_all(&mut server, chunks(row, "c2s"), &name) == expected(row, "c2s"), "{name}");
    let user = setup.users.as_ref().map(|_| 1002);
    match server.state() {
        protocol::State::Authenticated { user: found } => assert_eq!(found, user, "{name}"),
        protocol::State::Unauthenticated => assert_eq!(user, None, "{name}"),
        other @ (protocol::State::Waiting | protocol::State::Refused(_)) => panic!("{name}: {other:?}"),
    }
}

#[test]
fn servers_read_recorded_clients() {
    let mut count = 0;
    for file in FILES.into_iter().chain(["tcp_legacy_protocols.json"]) {
        for row in rows("ssr", file) {
            check_server(file, &row);
            count += 1;
        }
    }
    assert_eq!(count, 114);
}

/// shadowsocksr-native puts fewer than four bytes of the stream into the path of one request in 16.
#[test]
fn requests_with_hardly_a_byte_in_their_path() {
    for row in rows("ssr", "tcp_native_short_paths.json") {
        let request = chunks(&row, "c2s").next().expect("a request");
        let line = request.split(|byte| *byte == b'\r').next().expect("a line");
        assert!(line.iter().filter(|byte| **byte == b'%').count() < 4);
        check_server("tcp_native_short_paths.json", &row);
    }
}

/// The same bytes, one at a time: what the network does to segments changes nothing (but for `random_head`, by design).
#[test]
fn servers_read_them_byte_by_byte() {
    for row in
        rows("ssr", "tcp_libev_fork.json").iter().step_by(2).chain(&rows("ssr", "tcp_legacy_protocols.json"))
    {
        let name = name("bytes", row);
        let mut server = setup(row).server();
        let whole: Vec<u8> = chunks(row, "c2s").flatten().collect();
        let got = receive_all(&mut server, whole.iter().map(|byte| vec![*byte]), &name);
        assert!(got == expected(row, "c2s"), "{name}");
    }
}

/// A client's answers can be read without its header, but for `auth_chain_*`, whose are tested beside the codec.
#[test]
fn clients_read_recorded_servers() {
    let mut count = 0;
    for file in FILES.into_iter().chain(["tcp_legacy_protocols.json"]) {
        for row in rows("ssr", file).iter().filter(|row| !text(row, "protocol").starts_with("auth_chain")) {
            let name = name(file, row);
            let mut setup = setup(row);
            if text(row, "obfs").starts_with("tls") {
                let hello = chunks(row, "c2s").next().unwrap();
                setup.session = Arc::new(obfs::SessionId::draw(&mut Script::new(&hello[44..76])));
            }
            let mut client = setup.client(&setup.client_config(), setup.server_s, 5);
            let got = receive_all(&mut client, chunks(row, "s2c"), &name);
            assert!(got == expected(row, "s2c"), "{name}");
            count += 1;
        }
    }
    assert!(count > 80, "{count}");
}

/// The fork's native obfs, and the same inside of GoQuiet.
#[test]
fn servers_read_native_go_quiet() {
    let rows = rows("goquiet", "ssr_native_obfs.json");
    rows.iter().for_each(|row| check_server("ssr_native_obfs.json", row));
    assert_eq!(rows.len(), 3);
}

/// The fork's client as a plugin of another Shadowsocks: obfs alone, with a key of 16 bytes.
#[test]
fn servers_read_plugins() {
    for mut row in rows("ssr", "as_sip003_plugin.json") {
        let options = text(&row, "SS_PLUGIN_OPTIONS").to_owned();
        let obfs = options.split(';').find_map(|option| option.strip_prefix("obfs=")).expect("an obfs");
        if row["chunks"].as_array().is_none_or(Vec::is_empty) || obfs == "go_quiet" {
            continue;
        }
        row["obfs"] = obfs.into();
        row["protocol"] = "origin".into();
        if row["works"] == true {
            check_server("as_sip003_plugin.json", &row);
        } else {
            let first = chunks(&row, "c2s").next().expect("a hello");
            assert_eq!(setup(&row).server().receive(&first), Err(Bad::Refused(Refusal::WrongKey)));
        }
    }
}
