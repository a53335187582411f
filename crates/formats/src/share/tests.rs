use adit_model::{Config, OutboundProtocol, SnellMode};
use adit_proto::wire::Rng;
use base64::Engine as _;
use proptest::prelude::*;

use super::*;
use crate::{adit_toml, snell};

fn deployment(psk: &str) -> Deployment {
    Deployment {
        name: "home".into(),
        server: "192.0.2.1:6160".parse().unwrap(),
        psk: Secret::new(psk),
        client_id: None,
        obfs: ObfsClient::Off,
        reuse: true,
        version: SnellVersion::V5,
        fast_open: false,
        udp: false,
        quic: false,
    }
}

fn text(form: Form, deployment: &Deployment) -> String {
    share(form, deployment).unwrap().text
}

fn refusal(form: Form, deployment: &Deployment) -> Option<&'static str> {
    share(form, deployment).err().map(|error| error.field)
}

#[test]
fn plain_keys() {
    let plain = deployment("abc");
    for (form, want) in [
        (Form::Surge, "home = snell, 192.0.2.1, 6160, psk=\"abc\", version=5, reuse=true\n"),
        (
            Form::Mihomo,
            "- name: \"home\"\n  type: snell\n  server: \"192.0.2.1\"\n  port: 6160\n  psk: \"abc\"\n  version: 5\n  reuse: true\n",
        ),
        (
            Form::SingBox,
            "{\n  \"type\": \"snell\",\n  \"tag\": \"home\",\n  \"server\": \"192.0.2.1\",\n  \"server_port\": 6160,\n  \"version\": 4,\n  \"psk\": \"abc\",\n  \"reuse\": true\n}\n",
        ),
        (
            Form::OpenSnell,
            "[snell-client]\nlisten = 127.0.0.1:1080\nserver = 192.0.2.1:6160\npsk = abc\nreuse = true\nversion = 5\n",
        ),
        (
            Form::Shadowrocket,
            "snell://Y2hhY2hhMjAtaWV0Zi1wb2x5MTMwNTphYmNAMTkyLjAuMi4xOjYxNjA=?tfo=0&version=5#home\n",
        ),
    ] {
        assert_eq!(text(form, &plain), want);
    }
    assert_eq!(share(Form::Shadowrocket, &plain).unwrap().left_out, ["reuse"]);
    assert_eq!(native_client(&text(Form::Adit, &plain)).0.psk.expose(), "abc");
}

#[test]
fn every_field() {
    let full = Deployment {
        name: "東京 1".into(),
        server: "[2001:db8::1]:1".parse().unwrap(),
        obfs: ObfsClient::Http("www.example.com".into()),
        reuse: false,
        version: SnellVersion::V4,
        fast_open: true,
        ..deployment("k")
    };
    assert_eq!(
        text(Form::Surge, &full),
        "東京 1 = snell, 2001:db8::1, 1, psk=\"k\", version=4, obfs=http, obfs-host=www.example.com, tfo=true\n"
    );
    assert!(
        text(Form::Mihomo, &full)
            .ends_with("obfs-opts: { mode: http, host: \"www.example.com\" }\n  tfo: true\n")
    );
    assert!(
        text(Form::SingBox, &full).contains("\"obfs_mode\": \"http\",\n  \"obfs_host\": \"www.example.com\"")
    );
    assert!(text(Form::OpenSnell, &full).contains("server = [2001:db8::1]:1\n"));
    let (client, fast_open) = native_client(&text(Form::Adit, &full));
    assert_eq!((client.obfs, client.server, fast_open), (full.obfs.clone(), full.server.clone(), true));
    let link = text(Form::Shadowrocket, &Deployment { obfs: ObfsClient::Off, ..full });
    assert!(link.ends_with("?tfo=1&version=4#%E6%9D%B1%E4%BA%AC%201\n"), "{link}");
}

#[test]
fn what_cannot_be_said_is_named() {
    let tls = Deployment { obfs: ObfsClient::Tls("h".into()), ..deployment("k") };
    let http = Deployment { obfs: ObfsClient::Http("h".into()), ..deployment("k") };
    for (form, deployment, field) in [
        (Form::Surge, tls.clone(), Some("obfs")),
        (Form::SingBox, tls.clone(), Some("obfs")),
        (Form::Mihomo, tls, None),
        (Form::Shadowrocket, http, Some("obfs")),
        (Form::Surge, deployment("a\"b"), Some("psk")),
        (Form::Surge, deployment("a,b#c"), None),
        (Form::OpenSnell, deployment("`#"), Some("psk")),
        (Form::OpenSnell, deployment("%(x)s"), Some("psk")),
        (Form::OpenSnell, deployment("a\nb"), Some("psk")),
        (Form::Shadowrocket, deployment("a@b"), Some("psk")),
        (Form::Mihomo, deployment(""), Some("psk")),
        (Form::Surge, Deployment { name: "a=b".into(), ..deployment("k") }, Some("name")),
        (Form::Surge, Deployment { name: "# a".into(), ..deployment("k") }, Some("name")),
        (Form::Mihomo, Deployment { name: "".into(), ..deployment("k") }, Some("name")),
        (Form::Adit, Deployment { name: "n".repeat(65).into(), ..deployment("k") }, Some("name")),
        (Form::Surge, Deployment { server: "a,b:1".parse().unwrap(), ..deployment("k") }, Some("server")),
        (Form::Surge, Deployment { server: "a:0".parse().unwrap(), ..deployment("k") }, Some("server")),
        (
            Form::Adit,
            Deployment { obfs: ObfsClient::Http("a b".into()), ..deployment("k") },
            Some("obfs-host"),
        ),
    ] {
        assert_eq!(refusal(form, &deployment), field, "{form} {}", deployment.name);
    }
    let error = share(Form::Surge, &deployment("secret\"")).unwrap_err().to_string();
    assert_eq!(error, "surge has no form for psk: it holds a double quote or a backslash");
}

#[test]
fn names_of_forms() {
    for form in Form::ALL {
        assert_eq!(form.to_string().parse(), Ok(form));
    }
    assert_eq!("clash".parse(), Ok(Form::Mihomo));
    assert_eq!("v2ray".parse::<Form>(), Err(UnknownForm));
}

#[test]
fn a_deployment_of_an_inbound() {
    let text = "[[inbound]]\nprotocol = \"snell\"\nlisten = \":6160\"\npsk = \"k\"\nobfs = \"http\"\n\
                [[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:1\"\n";
    let config = adit_toml::parse("t", text).unwrap().config;
    let host = Host::parse(b"a.example").unwrap();
    let [of] = &Deployment::of(&config.inbounds[0], &host, None)[..] else { panic!("one server") };
    assert_eq!((of.server.to_string().as_str(), &*of.name), ("a.example:6160", "snell"));
    assert_eq!(of.obfs, ObfsClient::Http("a.example".into()));
    assert_eq!(Deployment::of(&config.inbounds[0], &host, Some("snell")), []);
    assert_eq!(Deployment::of(&config.inbounds[1], &host, None), []);
    assert!(!format!("{:?}", share(Form::Adit, of)).contains("psk ="));
}

fn users(psk: &str, user: Option<&str>) -> Vec<Deployment> {
    let text = format!(
        "[[inbound]]\nname = \"s\"\nprotocol = \"snell\"\nlisten = \":6160\"\n{psk}users = [{{ name = \"ann\", \
         password = \"of ann\" }}, {{ name = \"bob\", password = \"of bob\" }}]\n"
    );
    let config = adit_toml::parse("t", &text).unwrap().config;
    Deployment::of(&config.inbounds[0], &Host::parse(b"a.example").unwrap(), user)
}

#[test]
fn users_with_a_key_each_are_ordinary_servers() {
    let all = users("", None);
    assert_eq!(all.iter().map(|one| &*one.name).collect::<Vec<_>>(), ["s ann", "s bob"]);
    for form in Form::ALL {
        assert_eq!(refusal(form, &all[0]), None, "{form}");
    }
    let line = "s ann = snell, a.example, 6160, psk=\"of ann\", version=5, reuse=true, udp-relay=true, block-quic=off\n";
    assert_eq!(text(Form::Surge, &all[0]), line);
    assert_eq!(users("", Some("bob")), all[1..]);
    assert_eq!(users("", Some("eve")), []);
}

#[test]
fn users_of_one_key_are_told_apart_where_clients_can() {
    let all = users("psk = \"common\"\n", None);
    assert_eq!(users("psk = \"common\"\n", Some("bob")), all[1..]);
    let bob = &all[1];
    let json = text(Form::SingBox, bob);
    assert!(json.contains("\"psk\": \"common\",\n  \"userkey\": \"of bob\","), "{json}");
    let (client, _) = native_client(&text(Form::Adit, bob));
    assert_eq!((client.psk, client.client_id), (bob.psk.clone(), bob.client_id.clone()));
    let loaded = crate::import::parse(None, "t", &json).unwrap();
    let (client, _) = client_of(loaded.config);
    assert_eq!(client.client_id.map(|id| id.expose().to_owned()).as_deref(), Some("of bob"));
    for form in [Form::Surge, Form::Mihomo, Form::OpenSnell, Form::Shadowrocket] {
        assert_eq!(refusal(form, bob), Some("user-key"), "{form}");
    }
    let long = Deployment { client_id: Some(Secret::new("x".repeat(256))), ..bob.clone() };
    assert_eq!(refusal(Form::Adit, &long), Some("user-key"));
}

fn shadow(keys: &str) -> Vec<Shadowsocks> {
    let text = format!("[[inbound]]\nname = \"s\"\nprotocol = \"shadowsocks\"\nlisten = \":8388\"\n{keys}");
    let config = adit_toml::parse("t", &text).unwrap().config;
    Shadowsocks::of(&config.inbounds[0], &Host::parse(b"a.example").unwrap(), None)
}

#[test]
fn one_user_of_shadowsocks() {
    let text = "[[inbound]]\nname = \"s\"\nprotocol = \"shadowsocks\"\nlisten = \":8388\"\nmethod = \"2022-blake3-aes-128-gcm\"\n\
                password = \"AAAAAAAAAAAAAAAAAAAAAA==\"\nusers = [{ name = \"u\", password = \"AQAAAAAAAAAAAAAAAAAAAA==\" }, \
                { name = \"v\", password = \"AgAAAAAAAAAAAAAAAAAAAA==\" }]\n";
    let config = adit_toml::parse("t", text).unwrap().config;
    let host = Host::parse(b"a.example").unwrap();
    let names = |user| {
        let all = Shadowsocks::of(&config.inbounds[0], &host, user);
        all.into_iter().map(|one| one.name.into_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(None), ["s u", "s v"]);
    assert_eq!(names(Some("v")), ["s v"]);
    assert_eq!(names(Some("w")), Vec::<String>::new());
}

#[test]
fn shadowsocks_in_every_form() {
    let plain = "method = \"aes-128-gcm\"\npassword = \"p,#: é\"\n";
    let users = "method = \"2022-blake3-aes-128-gcm\"\npassword = \"AAAAAAAAAAAAAAAAAAAAAA==\"\n\
                 users = [{ name = \"u\", password = \"AQAAAAAAAAAAAAAAAAAAAA==\" }]\n";
    for (keys, name) in [
        (plain.to_owned(), "s"),
        (format!("{plain}network = \"tcp-and-udp\"\ntcp-fast-open = true\nobfs = \"tls\"\n"), "s"),
        (users.to_owned(), "s u"),
    ] {
        let servers = shadow(&keys);
        assert_eq!((servers.len(), &*servers[0].name), (1, name));
        let server = &servers[0];
        for form in [Form::Surge, Form::Mihomo, Form::SingBox, Form::Shadowrocket] {
            let text = share_shadowsocks(form, server).unwrap().text;
            let loaded = crate::import::parse(None, "t", &text).unwrap();
            assert!(loaded.diagnostics.is_empty(), "{}", loaded.diagnostics);
            let outbound = &loaded.config.outbounds[0];
            let OutboundProtocol::Shadowsocks(client) = &outbound.protocol else { panic!("{text}") };
            assert_eq!(
                (&*outbound.name, &client.server, &client.key),
                (&*server.name, &server.server, &server.key)
            );
            assert_eq!(client.cover, adit_model::ClientCover::Obfs(server.obfs.clone()), "{text}");
            // A link says neither.
            if form != Form::Shadowrocket {
                assert_eq!(
                    (client.transports, outbound.dial.fast_open),
                    (server.transports, server.fast_open)
                );
            }
        }
        let own = adit_toml::parse("t", &share_shadowsocks(Form::Adit, server).unwrap().text).unwrap().config;
        let OutboundProtocol::Shadowsocks(client) = &own.outbounds[0].protocol else {
            panic!("not shadowsocks")
        };
        assert_eq!((&client.key, client.transports), (&server.key, server.transports));
        let refused = share_shadowsocks(Form::OpenSnell, server).unwrap_err().to_string();
        assert_eq!(refused, "opensnell has no form for protocol: it speaks Snell alone");
    }
    let refused = |keys: &str, form| share_shadowsocks(form, &shadow(keys)[0]).unwrap_err().field;
    assert_eq!(refused("method = \"aes-128-gcm\"\npassword = 'a\"b'\n", Form::Surge), "password");
    assert_eq!(refused(&format!("{plain}plugin = \"v2ray-plugin\"\n"), Form::Mihomo), "plugin");
    assert_eq!(refused(&format!("{plain}network = \"udp\"\n"), Form::SingBox), "network");
    assert_eq!(refused("method = \"aes-128-gcm\"\nkey = \"AAAAAAAAAAAAAAAAAAAAAA==\"\n", Form::Surge), "key");
}

#[test]
fn generated_keys() {
    struct Counter(u8);
    impl Rng for Counter {
        fn fill(&mut self, out: &mut [u8]) {
            for byte in out {
                self.0 = self.0.wrapping_mul(181).wrapping_add(71);
                *byte = self.0;
            }
        }
    }
    let mut rng = Counter(1);
    let (one, other) = (generate_key(&mut rng, KEY_LEN), generate_key(&mut Counter(2), KEY_LEN));
    assert_eq!(one.expose().len(), 32);
    assert!(one.expose().bytes().all(|b| b.is_ascii_alphanumeric()));
    assert_ne!(one, other);
    for form in Form::ALL {
        assert_eq!(refusal(form, &deployment(one.expose())), None);
    }
}

fn native_client(text: &str) -> (adit_model::SnellClient, bool) {
    client_of(adit_toml::parse("t", text).unwrap().config)
}

fn client_of(mut config: Config) -> (adit_model::SnellClient, bool) {
    let outbound = config.outbounds.remove(0);
    let OutboundProtocol::Snell(client) = outbound.protocol else { panic!("not snell") };
    (client, outbound.dial.fast_open)
}

/// The key that a client reads out of a form.
fn psk_in(form: Form, text: &str) -> String {
    match form {
        Form::Surge => {
            let (_, rest) = text.split_once("psk=\"").unwrap();
            rest.split_once('"').unwrap().0.to_owned()
        }
        Form::Mihomo => {
            // The quoting of YAML's double-quoted scalars and TOML's basic strings is one as far as it is used.
            let line = text.lines().find_map(|line| line.strip_prefix("  psk: ")).unwrap();
            let document = toml_edit::Document::parse(format!("psk = {line}")).unwrap();
            document.as_table()["psk"].as_str().unwrap().to_owned()
        }
        Form::SingBox => {
            serde_json::from_str::<serde_json::Value>(text).unwrap()["psk"].as_str().unwrap().to_owned()
        }
        Form::OpenSnell => {
            let loaded = snell::parse(snell::SnellProgram::Client, None, "t", text).unwrap();
            assert!(loaded.diagnostics.is_empty(), "{}", loaded.diagnostics);
            client_of(loaded.config).0.psk.expose().to_owned()
        }
        Form::Shadowrocket => {
            let inside = text.strip_prefix("snell://").unwrap().split('?').next().unwrap();
            let inside = base64::engine::general_purpose::STANDARD.decode(inside).unwrap();
            let inside = String::from_utf8(inside).unwrap();
            let (_, rest) = inside.split_once(':').unwrap();
            rest.split_once('@').unwrap().0.to_owned()
        }
        Form::Adit => native_client(text).0.psk.expose().to_owned(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn odd_keys_come_out_as_they_went_in(
        psk in prop_oneof!["[a-z \"'`#;,=\\\\%()s@:{}é中😀\u{7f}\u{85}\u{2028}\u{feff}]{1,12}", "\\PC{1,20}", any::<String>()],
    ) {
        let deployment = deployment(&psk);
        for form in Form::ALL {
            match share(form, &deployment) {
                Ok(shared) => prop_assert_eq!(psk_in(form, &shared.text), psk.clone(), "{}", form),
                Err(error) => prop_assert_eq!(error.field, "psk"),
            }
        }
    }

    #[test]
    fn odd_names_do_not_break_out(name in any::<String>()) {
        let deployment = Deployment { name: name.clone().into(), ..deployment("k") };
        for form in Form::ALL {
            match share(form, &deployment) {
                Ok(shared) => prop_assert_eq!(psk_in(form, &shared.text), "k"),
                Err(error) => prop_assert_eq!(error.field, "name"),
            }
        }
    }
}

#[test]
fn versions() {
    let of = |version: SnellVersion| Deployment {
        version,
        reuse: version.fixed_reuse().unwrap_or(true),
        ..deployment("twelve bytes")
    };
    let unshaped = of(SnellVersion::V6(SnellMode::Unshaped));
    let line = "home = snell, 192.0.2.1, 6160, psk=\"twelve bytes\", version=6, mode=unshaped, reuse=true\n";
    assert_eq!(text(Form::Surge, &unshaped), line);
    let json = text(Form::SingBox, &unshaped);
    assert!(json.contains("\"version\": 6,") && json.contains("\"mode\": \"unshaped\","), "{json}");
    let file = text(Form::Adit, &unshaped);
    assert!(file.contains("version = 6\nmode = \"unshaped\"\n"), "{file}");
    for form in [Form::Mihomo, Form::OpenSnell, Form::Shadowrocket] {
        assert_eq!(refusal(form, &unshaped), Some("version"), "{form}");
    }
    let line = "home = snell, 192.0.2.1, 6160, psk=\"twelve bytes\", version=2\n";
    assert_eq!(text(Form::Surge, &of(SnellVersion::V2)), line);
    for (form, refused) in [
        (Form::Mihomo, None),
        (Form::SingBox, Some("version")),
        (Form::OpenSnell, Some("version")),
        (Form::Shadowrocket, None),
        (Form::Adit, None),
    ] {
        assert_eq!(refusal(form, &of(SnellVersion::V3)), refused, "{form}");
    }
    let short = Deployment { psk: Secret::new("short"), ..unshaped.clone() };
    assert_eq!(refusal(Form::Adit, &short), Some("psk"));
    let covered = Deployment { obfs: ObfsClient::Http("h".into()), ..unshaped };
    assert_eq!(refusal(Form::Adit, &covered), Some("obfs"));
}
