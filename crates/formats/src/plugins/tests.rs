use std::ffi::OsString;

use adit_model::{Config, InboundProtocol, ObfsClientLayer, ObfsServerLayer, OutboundProtocol};

use super::*;
use crate::read::loaded::Loaded;

fn environment(pairs: &[(&str, &str)]) -> Result<Option<PluginEnvironment>, String> {
    let find =
        |name: &str| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    PluginEnvironment::read(find).map_err(|found| found.to_string())
}

fn started(program: PluginProgram, options: &str) -> Result<Loaded, String> {
    let pairs = [
        ("SS_LOCAL_HOST", "127.0.0.1"),
        ("SS_LOCAL_PORT", "8388"),
        ("SS_REMOTE_HOST", "::|192.0.2.1"),
        ("SS_REMOTE_PORT", "443"),
        ("SS_PLUGIN_OPTIONS", options),
    ];
    let environment = environment(&pairs).unwrap().unwrap();
    load_plugin(program, &environment, None).map_err(|found| found.to_string())
}

fn client(config: &Config) -> (&ObfsClientLayer, Vec<String>) {
    let OutboundProtocol::Obfs(client) = &config.outbounds[0].protocol else { panic!("a client") };
    (client.layer(), client.servers().iter().map(ToString::to_string).collect())
}

#[test]
fn variables_make_a_plugin() {
    assert!(environment(&[]).unwrap().is_none());
    assert!(environment(&[("SS_LOCAL_HOST", ""), ("SS_PLUGIN_OPTIONS", "a")]).unwrap().is_none());
    let found = environment(&[("SS_LOCAL_HOST", "127.0.0.1"), ("SS_LOCAL_PORT", "1")]).unwrap_err();
    assert!(
        found.contains("SS_REMOTE_HOST: missing") && found.contains("SS_REMOTE_PORT: missing"),
        "{found}"
    );
}

#[test]
fn clients() {
    let quiet =
        started(PluginProgram::GqClient, "Key=secret;ServerName=www.example.com;Browser=firefox;fast-open")
            .unwrap();
    let (layer, servers) = client(&quiet.config);
    let ObfsClientLayer::GoQuiet(quiet_client) = layer else { panic!("GoQuiet") };
    assert_eq!((quiet_client.key.expose(), quiet_client.ticket_s), ("secret", 3600));
    assert_eq!(servers, ["[::]:443", "192.0.2.1:443"]);
    assert_eq!(quiet.config.inbounds[0].listen, ["127.0.0.1:8388".parse().unwrap()]);
    assert!(quiet.config.outbounds[0].dial.fast_open && quiet.config.limits.drain.is_zero());
    let lower = started(
        PluginProgram::GqClient,
        "key=a\\;b\\=c;servername=a.example;TicketTimeHint=60;__android_vpn",
    )
    .unwrap();
    let (ObfsClientLayer::GoQuiet(quiet_client), _) = client(&lower.config) else { panic!("GoQuiet") };
    assert_eq!((quiet_client.key.expose(), quiet_client.ticket_s), ("a;b=c", 60));

    for (options, want) in [
        ("obfs=http_simple;param=a.example", "Ssr { obfs: HttpSimple"),
        ("obfs=tls1.2_ticket_auth;key=k", "Ssr { obfs: TlsTicketAuth"),
        ("obfs=go_quiet;param=a.example;key=k", "GoQuiet"),
        ("", "Ssr { obfs: Plain"),
    ] {
        let loaded = started(PluginProgram::SsrLocal, options).unwrap();
        assert!(format!("{:?}", client(&loaded.config).0).starts_with(want), "{options}");
    }
    for (options, want) in [
        ("obfs=http;obfs-host=a.example;mptcp", "Simple(Http(\"a.example\"))"),
        ("obfs=tls", "Simple(Tls(\"cloudfront.net\"))"),
    ] {
        let loaded = started(PluginProgram::ObfsLocal, options).unwrap();
        assert_eq!(format!("{:?}", client(&loaded.config).0), want);
    }
}

#[test]
fn servers() {
    for (program, options, want) in [
        (PluginProgram::GqServer, "Key=secret;WebServerAddr=127.0.0.1:80", Some("127.0.0.1:80")),
        (PluginProgram::GqServer, "Key=secret;", None),
        (PluginProgram::ObfsServer, "obfs=http;failover=web.example:80", Some("web.example:80")),
        (PluginProgram::ObfsServer, "obfs=tls", None),
    ] {
        let loaded = started(program, options).unwrap();
        let InboundProtocol::Obfs(server) = &loaded.config.inbounds[0].protocol else { panic!("a server") };
        assert_eq!(server.target.to_string(), "127.0.0.1:8388");
        assert_eq!(server.redirect.first().map(ToString::to_string).as_deref(), want);
        assert_eq!(matches!(server.layer, ObfsServerLayer::GoQuiet(_)), program == PluginProgram::GqServer);
        let listen = ["[::]:443", "192.0.2.1:443"].map(|addr| addr.parse().unwrap());
        assert_eq!(loaded.config.inbounds[0].listen, listen);
        let warns = program == PluginProgram::GqServer && want.is_none();
        assert_eq!(!loaded.diagnostics.is_empty(), warns, "{options}");
    }
}

#[test]
fn slips_are_named_and_keys_are_not() {
    for (program, options, problem) in [
        (PluginProgram::GqClient, "ServerName=a.example;", "Key: missing"),
        (PluginProgram::GqClient, "Key=secret;Browser=safari", "unknown browser"),
        (PluginProgram::GqClient, "Key=secret;TicketTimeHint=0", "no number of seconds"),
        (PluginProgram::GqServer, "WebServerAddr=a.example;", "Key: missing"),
        (PluginProgram::GqServer, "Key=secret;WebServerAddr=a.example", "WebServerAddr"),
        (PluginProgram::SsrLocal, "obfs=tls1.2_ticket_auth", "key: missing"),
        (PluginProgram::SsrLocal, "obfs=no_such;key=secret", "obfs"),
        (PluginProgram::ObfsLocal, "obfs-host=a.example", "obfs: missing"),
        (PluginProgram::ObfsLocal, "obfs=http;obfs-host=a b", "obfs-host"),
        (PluginProgram::ObfsLocal, "obfs=http;obfs-host=a\u{fffd}b", "obfs-host"),
        (PluginProgram::ObfsServer, "obfs=http;failover=nowhere", "failover"),
    ] {
        let found = started(program, options).expect_err(options);
        assert!(found.contains(problem), "{options}: {found}");
        assert!(!found.contains("secret"), "{found}");
    }
    let long = format!("Key=secret;ServerName={}", "a".repeat(102));
    assert!(started(PluginProgram::GqClient, &long).unwrap_err().contains("does not fit"));
}

#[test]
fn files_of_goquiet() {
    assert_eq!(PluginProgram::GqClient.file("Key=abc").unwrap(), PathBuf::from("Key=abc"), "as the original");
    assert!(
        PluginProgram::GqClient.file("Key=abc;").is_none() && PluginProgram::ObfsLocal.file("x").is_none()
    );
    let file = |text: &str| OptionsFile { name: "gq.json".into(), text: Zeroizing::new(text.into()) };
    let text = r#"{"ServerName":"a.example","key":"secret","TicketTimeHint":7200,"Browser":"chrome","FastOpen":true,"x":[]}"#;
    let flags = |args: &[&str]| match flags(PluginProgram::GqClient, args.iter().map(OsString::from)) {
        Ok(PluginInvocation::Run(flags)) => flags,
        other => panic!("{other:?}"),
    };
    let given = flags(&["-s", "::1", "-l=1984", "--c", "gq.json"]);
    assert_eq!(given.options(), "gq.json");
    let loaded = load_flags(PluginProgram::GqClient, &given, Some(&file(text))).unwrap();
    let (layer, servers) = client(&loaded.config);
    let ObfsClientLayer::GoQuiet(quiet_client) = layer else { panic!("GoQuiet") };
    assert_eq!((quiet_client.ticket_s, &*servers[0]), (7200, "[::1]:443"));
    assert!(!loaded.config.limits.drain.is_zero(), "by itself it lets connections finish");
    let found = load_flags(
        PluginProgram::GqClient,
        &given,
        Some(&file("{\"Browser\": \"safari\", \"Key\": \"secret\"}")),
    );
    let found = found.unwrap_err().to_string();
    assert!(found.contains("gq.json:1:2: Browser: unknown browser"), "{found}");
    assert!(load_flags(PluginProgram::GqClient, &given, Some(&file("[]"))).is_err());
    let found =
        load_flags(PluginProgram::GqClient, &flags(&["-s", "a.example"]), None).unwrap_err().to_string();
    assert!(found.contains("-l: missing"), "{found}");
}

#[test]
fn flags_of_each_program() {
    let read = |program, args: &[&str]| flags(program, args.iter().map(OsString::from));
    assert!(matches!(read(PluginProgram::GqServer, &["-h"]), Ok(PluginInvocation::Help)));
    assert!(matches!(read(PluginProgram::GqServer, &["-v"]), Ok(PluginInvocation::Version)));
    for (program, args) in [
        (PluginProgram::GqServer, &["-l", "1"][..]),
        (PluginProgram::GqClient, &["-s"]),
        (PluginProgram::ObfsLocal, &["x"]),
        (PluginProgram::ObfsLocal, &["-r", "1:1"]),
    ] {
        assert!(read(program, args).is_err(), "{args:?}");
    }
    let Ok(PluginInvocation::Run(given)) = read(
        PluginProgram::ObfsServer,
        &["-p", "8139", "-r", "127.0.0.1:8388", "--obfs", "http", "-v", "-t", "9"],
    ) else {
        panic!("it runs")
    };
    let loaded = load_flags(PluginProgram::ObfsServer, &given, None).unwrap();
    assert_eq!(loaded.config.inbounds[0].listen, ["0.0.0.0:8139".parse().unwrap()]);
    assert_eq!(loaded.config.log.level, adit_model::Level::Debug);
    for program in [
        PluginProgram::GqClient,
        PluginProgram::GqServer,
        PluginProgram::ObfsLocal,
        PluginProgram::ObfsServer,
    ] {
        assert!(usage(program).contains("-s "), "{program:?}");
    }
}

#[test]
fn every_key_of_a_wrong_type_is_obeyed_or_reported() {
    let frame = r#"{"Key": "secret", "KIND": "v", "TicketTimeHint": 7200, "FastOpen": true, "fast-open": true,
        "mptcp": true, "v": true}"#;
    let client = frame.replace("\"KIND\": \"v\"", "\"ServerName\": \"a.example\", \"Browser\": \"firefox\"");
    let server =
        frame.replace("\"KIND\": \"v\", \"TicketTimeHint\": 7200", "\"WebServerAddr\": \"192.0.2.1:80\"");
    for (program, sample) in [(PluginProgram::GqClient, client), (PluginProgram::GqServer, server)] {
        for (key, _) in plugin_to_model::known(program) {
            assert!(sample.contains(&format!("\"{key}\":")), "the sample has no {key}");
        }
        let run = |text: &str| {
            let file = OptionsFile { name: "gq.json".into(), text: Zeroizing::new(text.into()) };
            match load_plugin(program, &PluginEnvironment::fixed("gq.json"), Some(&file)) {
                Ok(loaded) => (Some(loaded.config), loaded.diagnostics),
                Err(found) => (None, found),
            }
        };
        crate::walk::walk(&[&sample], &[(program.name(), Box::new(run))], &[], &[]);
    }
}

#[test]
fn options_without_a_value_and_unknown_ones_are_reported() {
    for (program, options, want) in [
        (PluginProgram::ObfsServer, "obfs=http;failover", "failover: a value must follow"),
        (PluginProgram::ObfsLocal, "obfs=http;obfs-host", "obfs-host: a value must follow"),
        (PluginProgram::GqClient, "Key=secret;ServerName", "ServerName: a value must follow"),
        (PluginProgram::SsrLocal, "obfs=plain;key;", "key: a value must follow"),
        (PluginProgram::ObfsServer, "obfs=http;failover=", "failover: empty"),
        (PluginProgram::ObfsServer, "obfs=http;failovr=a.example:1", "did you mean failover?"),
        (PluginProgram::ObfsServer, "obfs=http;fast-open=maybe", "fast-open: neither true nor false"),
        (PluginProgram::ObfsServer, "obfs=http;obfs=tls", "obfs: given twice"),
    ] {
        let found = match started(program, options) {
            Ok(loaded) => loaded.diagnostics.to_string(),
            Err(found) => found,
        };
        assert!(found.contains(want), "{options}: {found}");
    }
    for quiet in ["obfs=http;fast-open=false;__android_vpn", "obfs=tls;mptcp;fast-open"] {
        assert!(started(PluginProgram::ObfsServer, quiet).unwrap().diagnostics.is_empty(), "{quiet}");
    }
}
