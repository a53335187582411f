use std::time::Duration;

use adit_model::diagnostic::Diagnostics;
use adit_model::{Kcp, KcpClient, KcpPace, KcpParity};
use adit_proto::kcp::crypt::KcpMethod;
use adit_proto::kcp::fec::Shards;
use adit_proto::smux::SmuxVersion;
use zeroize::Zeroizing;

use super::{
    Counters, KcptunInvocation, KcptunProgram, KcptunSetup, Release, Side, dump, expand, flags, header, load,
    row, usage,
};

const CLIENT: KcptunProgram = KcptunProgram { side: Side::Client, release: Release::Debian };
const SERVER: KcptunProgram = KcptunProgram { side: Side::Server, release: Release::Debian };
const LAST_CLIENT: KcptunProgram = KcptunProgram { side: Side::Client, release: Release::Last };

fn setup(program: KcptunProgram, args: &[&str], file: Option<&str>) -> Result<KcptunSetup, Diagnostics> {
    let KcptunInvocation::Run(flags) = flags(program, args.iter().map(Into::into))? else {
        panic!("{args:?}")
    };
    load(program, flags, None, file.map(|text| ("config.json", text)))
}

fn client(args: &[&str], file: Option<&str>) -> KcpClient {
    *setup(CLIENT, args, file).unwrap().config.outbounds[0].dial.carrier.clone().unwrap()
}

fn server(args: &[&str]) -> Kcp {
    *setup(SERVER, args, None).unwrap().config.inbounds[0].socket.carrier.clone().unwrap()
}

#[test]
fn defaults() {
    let ours = client(&["-r", "192.0.2.1:29900"], None);
    assert_eq!((ours.sessions, ours.expire, ours.linger), (1, None, Duration::from_secs(600)));
    assert_eq!(
        (ours.kcp.version, ours.kcp.compression, ours.kcp.crypt),
        (Some(SmuxVersion::V1), true, KcpMethod::Aes256)
    );
    assert_eq!((ours.kcp.mtu, ours.kcp.parity, ours.kcp.send_window), (1350, KcpParity::Measured, None));
    let fast = KcpPace { nodelay: false, interval: Duration::from_millis(30), resend: 2, congestion: false };
    assert_eq!((ours.kcp.pace, ours.kcp.key.expose()), (fast, "it's a secrect"));
    let theirs = server(&[]);
    assert_eq!((theirs.version, theirs.close_wait), (None, Some(Duration::from_secs(30))));
    let last = setup(LAST_CLIENT, &[], None).unwrap().config.outbounds[0].dial.carrier.clone().unwrap();
    assert_eq!((last.kcp.version, last.server.to_string()), (Some(SmuxVersion::V2), "vps:29900".into()));
}

#[test]
fn flags_reach_the_model() {
    let args = [
        "--remoteaddr=example.com:3000-3010",
        "-l",
        ":1",
        "-key",
        "k",
        "--crypt",
        "salsa20",
        "-mode=fast3",
        "--conn",
        "4",
        "--autoexpire",
        "60",
        "--scavengettl=5",
        "--sndwnd",
        "70000",
        "--rcvwnd",
        "7",
        "--ds",
        "4",
        "--ps",
        "2",
        "--dscp",
        "46",
        "--nocomp",
        "--acknodelay=true",
        "--smuxver",
        "2",
        "--smuxbuf",
        "1000000",
        "--streambuf",
        "65536",
        "--keepalive",
        "7",
        "--QPP",
        "--QPPCount",
        "9",
        "--ratelimit",
        "5000",
        "--framesize",
        "100",
        "--sockbuf",
        "9999",
    ];
    let ours = client(&args, None);
    assert_eq!(
        (ours.server.to_string(), ours.last_port, ours.sessions),
        ("example.com:3000".into(), 3010, 4)
    );
    assert_eq!((ours.expire, ours.linger), (Some(Duration::from_secs(60)), Duration::from_secs(5)));
    let kcp = ours.kcp;
    assert_eq!((kcp.send_window, kcp.recv_window), (Some(65_535), Some(7)));
    assert_eq!(kcp.parity, KcpParity::Fixed(Shards::new(4, 2).unwrap()));
    assert_eq!(server(&["--datashard", "0"]).parity, KcpParity::Off);
    assert_eq!((kcp.class_v4, kcp.class_v6, kcp.compression, kcp.ack_no_delay), (184, 46, false, true));
    assert_eq!((kcp.receive_buffer, kcp.stream_buffer, kcp.pads), (Some(1_000_000), Some(65_536), Some(9)));
    assert_eq!(
        (kcp.rate_limit.map(u64::from), kcp.frame_len, kcp.socket_buffer),
        (Some(5000), 100, Some(9999))
    );
    assert!(kcp.pace.nodelay && kcp.pace.interval == Duration::from_millis(10));
    let manual = server(&["-mode", "manual", "-nodelay", "1", "-interval", "5", "-resend", "3", "-nc", "0"]);
    assert!(manual.pace.congestion && manual.pace.interval == Duration::from_millis(10));
}

#[test]
fn a_file_overrides_flags() {
    let text = r#"{"REMOTEADDR": "192.0.2.7:1", "mtu": 900, "nocomp": true, "unknown": [1], "crypt": null, "conn": 2,
        "datashard": 0} and what follows is ignored"#;
    let ours = client(&["-r", "192.0.2.1:2", "-mtu", "1000", "-crypt", "xor"], Some(text));
    assert_eq!((ours.server.to_string(), ours.sessions), ("192.0.2.7:1".into(), 2));
    assert_eq!((ours.kcp.mtu, ours.kcp.crypt, ours.kcp.compression), (900, KcpMethod::Xor, false));
    let unknown =
        setup(CLIENT, &[], Some(r#"{"sndwdn": 10, "listen": ":1", "mode": "turbo", "bogus": 1}"#)).unwrap();
    let text = unknown.diagnostics.to_string();
    for want in [
        "config.json:1:2: warning: sndwdn: unknown key, it has no effect\n  hint: did you mean sndwnd?",
        "listen: unknown key, it has no effect\n  hint: it is an option of the other end",
        "mode: no such mode, it is taken as manual: turbo",
        "bogus: unknown key, it has no effect",
    ] {
        assert!(text.contains(want), "{want}: {text}");
    }
    for (text, want) in [
        (r#"{"mtu": "1350"}"#, "config.json:1:9: mtu: not a whole number"),
        (r#"{"key": 5}"#, "config.json:1:9: key: not a text"),
        (r#"{"tcp": "yes"}"#, "config.json:1:9: tcp: "),
        ("[]", "config.json:1:1: no object"),
        ("", "config.json:1:1: the file is empty"),
    ] {
        let found = setup(CLIENT, &[], Some(text)).unwrap_err().to_string();
        assert!(found.starts_with(want), "{found}");
    }
}

#[test]
fn the_environment_gives_a_key_to_those_without_a_flag() {
    for (args, want) in [(&[][..], "from outside"), (&["-key", "flag"], "flag")] {
        let Ok(KcptunInvocation::Run(flags)) = flags(SERVER, args.iter().map(Into::into)) else { panic!() };
        let setup = load(SERVER, flags, Some(Zeroizing::new("from outside".into())), None).unwrap();
        assert_eq!(setup.config.inbounds[0].socket.carrier.as_ref().unwrap().key.expose(), want);
    }
}

#[test]
fn servers_listen_on_ranges_and_lead_to_sockets() {
    let setup = setup(SERVER, &["-l", "127.0.0.1:100-102", "-t", "/run/target.sock"], None).unwrap();
    let inbound = &setup.config.inbounds[0];
    assert_eq!(inbound.listen.iter().map(|addr| addr.port()).collect::<Vec<_>>(), [100, 101, 102]);
    assert_eq!(setup.config.outbounds[0].dial.unix.as_deref(), Some("/run/target.sock".as_ref()));
}

#[test]
fn clients_listen_on_unix_sockets() {
    for (text, warnings) in [("/run/kcptun.sock", 0), ("./a:1/s", 0), ("kcptun", 1)] {
        let setup = setup(CLIENT, &["-l", text], None).unwrap();
        let inbound = &setup.config.inbounds[0];
        assert_eq!(inbound.socket.unix.as_deref(), Some(text.as_ref()));
        assert_eq!((inbound.listen.len(), setup.diagnostics.len()), (0, warnings), "{text}");
    }
    assert_eq!(setup(CLIENT, &[], None).unwrap().config.inbounds[0].socket.unix, None);
}

#[test]
fn what_is_wrong_is_said() {
    for (args, want) in [
        (&["-foo"][..], "command line: kcptun-client -foo: no such flag"),
        (&["-mtu"], "command line: kcptun-client -mtu: a value must follow"),
        (&["-mtu", "x"], "command line: kcptun-client -mtu: not a number"),
        (&["-nocomp=x"], "command line: kcptun-client -nocomp: neither true nor false"),
        (&["-target", "x"], "command line: kcptun-client -target: no such flag"),
        (&["-smuxver", "3"], "command line: smuxver: unsupported smux version: 3"),
        (&["-conn", "0"], "command line: conn: not from 1 to 65536"),
        (&["-keepalive", "31"], "command line: keepalive: not from 1 to 30"),
        (&["-ds", "200", "-ps", "100"], "command line: datashard: more than 256 packets"),
        (&["-mtu", "59"], "command line: mtu: too short for 44 bytes of headers"),
        (&["-r", "vps"], "command line: remoteaddr: "),
        (&["-l", ""], "command line: localaddr: port is missing"),
        (&["-l", "127.0.0.1:x"], "command line: localaddr: bad port"),
        (&["-r", "vps:1-x"], "command line: remoteaddr: bad range of ports"),
    ] {
        let found = setup(CLIENT, args, None).unwrap_err().to_string();
        assert!(found.starts_with(want), "{args:?}: {found}");
    }
    let unknown = setup(CLIENT, &["-crypt", "rot13"], None).unwrap();
    assert_eq!(unknown.diagnostics.len(), 1);
    assert!(usage(CLIENT).contains("-autoexpire") && !usage(SERVER).contains("-autoexpire"));
}

#[test]
fn counters_are_written_as_the_programs_do() {
    let counters = Counters { bytes_sent: 5, fec_recovered: 7, ..Counters::default() };
    let head = header(Release::Debian);
    assert!(head.starts_with("Unix,BytesSent,BytesReceived,MaxConn,") && head.ends_with(",FECShortShards\n"));
    let row = row(Release::Debian, 9, &counters);
    assert!(row.starts_with("9,5,0,") && row.ends_with(",0,0,7,0\n"), "{row}");
    assert_eq!(row.matches(',').count(), head.matches(',').count());
    assert!(dump(Release::Debian, &counters).starts_with("KCP SNMP:&{BytesSent:5 BytesReceived:0 "));
    for (unix, want) in [
        (0, "/2006/a-19700101000000.log"),
        (951_827_696, "/2006/a-20000229123456.log"),
        (1_767_225_599, "/2006/a-20251231235959.log"),
    ] {
        assert_eq!(expand("/2006/a-20060102150405.log", unix), want);
    }
}

/// Every option, on a line of its own. A program knows those of the other end as unknown keys.
const SAMPLE: &str = r#"{
    "localaddr": "127.0.0.1:1", "remoteaddr": "192.0.2.1:2-5", "listen": "127.0.0.1:3-6", "target": "192.0.2.4:4",
    "key": "k", "crypt": "xor", "mode": "manual", "qpp": true, "qpp-count": 67, "conn": 4, "autoexpire": 60,
    "scavengettl": 70, "mtu": 1300, "ratelimit": 5000, "sndwnd": 90, "rcvwnd": 91, "datashard": 4, "parityshard": 2,
    "dscp": 46, "nocomp": true, "acknodelay": true, "nodelay": 1, "interval": 77, "resend": 3, "nc": 1,
    "sockbuf": 99999, "smuxver": 2, "smuxbuf": 1000000, "framesize": 1000, "streambuf": 65536, "keepalive": 8,
    "closewait": 9, "snmplog": "s.log", "snmpperiod": 61, "log": "l.log", "quiet": true, "tcp": true, "pprof": true
}"#;

#[test]
fn every_key_of_a_wrong_type_is_obeyed_or_reported() {
    let known = super::options::keys();
    let missing: Vec<&str> = known.filter(|key| !SAMPLE.contains(&format!("\"{key}\":"))).collect();
    assert!(missing.is_empty(), "the sample has no {missing:?}");
    let entry = |program: KcptunProgram| -> crate::walk::DialectReader<'static, _> {
        let run = move |text: &str| match setup(program, &[], Some(text)) {
            Ok(KcptunSetup { config, log, counters, diagnostics }) => {
                (Some((config, log, counters)), diagnostics)
            }
            Err(found) => (None, found),
        };
        (program.name(), Box::new(run))
    };
    let last_server = KcptunProgram { side: Side::Server, release: Release::Last };
    // No file, as for the programs.
    let meant = [("log", "\"\""), ("snmplog", "\"\"")];
    let entries = [CLIENT, SERVER, LAST_CLIENT, last_server].map(entry);
    crate::walk::walk(&[SAMPLE], &entries, &meant, &[]);
}

#[test]
fn numbers_out_of_range_and_keys_given_twice_are_reported() {
    let text =
        "{\n\"ratelimit\": -1,\n\"SNDWND\": 70000,\n\"mtu\": 9000,\n\"autoexpire\": -5,\n\"mtu\": 8000\n}";
    let found = setup(CLIENT, &[], Some(text)).unwrap().diagnostics.to_string();
    for want in [
        "config.json:2:14: warning: ratelimit: less than 0",
        "config.json:3:11: warning: sndwnd: not from 1 to 65535",
        "config.json:6:8: warning: mtu: given twice",
        "config.json:6:8: warning: mtu: more than",
        "config.json:5:15: warning: autoexpire: less than 0",
    ] {
        assert!(found.contains(want), "{want}: {found}");
    }
}
