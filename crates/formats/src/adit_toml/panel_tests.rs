//! Users of panels in configurations of `adit.toml`.

use adit_model::{Config, InboundProtocol, PanelUser, Secret, ServerKeyOf, UserLimits};

use super::{parse, to_toml};

fn user<'a>(id: &'a str, secret: &'a str) -> PanelUser<'a> {
    let (name, limits) = (format!("p/{id}").into(), UserLimits::default());
    PanelUser { id, name, secret, key: None, limits }
}

fn config(inbounds: &str) -> Config {
    let panel = "[[panel]]\nname = \"p\"\nurl = \"https://p.example\"\ntoken = \"t\"\nnode = \"1\"\n";
    let loaded = parse("t.toml", &format!("{panel}{inbounds}")).unwrap();
    let again = parse("t.toml", &to_toml(&loaded.config)).unwrap();
    assert_eq!(again.config, loaded.config);
    loaded.config
}

const UUID: &str = "00000000-1111-4222-8333-444455556666";
const ALL: &str = "
[[inbound]]
name = \"ss16\"
protocol = \"shadowsocks\"
listen = \":1\"
method = \"2022-blake3-aes-128-gcm\"
panel = \"p\"
[[inbound]]
name = \"ss32\"
protocol = \"shadowsocks\"
listen = \":2\"
method = \"2022-blake3-aes-256-gcm\"
password = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\"
panel = \"p\"
[[inbound]]
name = \"classic\"
protocol = \"shadowsocks\"
listen = \":3\"
method = \"chacha20-ietf-poly1305\"
panel = \"p\"
[[inbound]]
name = \"snell\"
protocol = \"snell\"
listen = \":4\"
panel = \"p\"
[[inbound]]
name = \"named\"
protocol = \"snell\"
listen = \":5\"
psk = \"0123456789abcdef\"
panel = \"p\"
[[inbound]]
name = \"ssr\"
protocol = \"ssr\"
listen = \":6\"
method = \"aes-256-ctr\"
password = \"outer\"
ssr-protocol = \"auth_aes128_md5\"
panel = \"p\"
";

#[test]
fn one_list_serves_every_protocol() {
    let mut config = config(ALL);
    let users = [user("17", UUID), user("18", "99999999-1111-4222-8333-444455556666")];
    let server = ServerKeyOf {
        method: "2022-blake3-aes-128-gcm".into(),
        key: Some(Secret::new("MjQ5MjBkZWNmODNmNjk2MA==")),
    };
    let problems = config.set_panel_users("p", &users, Some(&server));
    // The file has other methods than the panel on two ports.
    assert_eq!(problems.len(), 2, "{problems:?}");
    for inbound in &config.inbounds {
        let users = inbound.protocol.users();
        assert_eq!(users.len(), 2, "{}", inbound.name);
        assert_eq!(&*users[0].name, "p/17");
        let wanted = match &*inbound.name {
            "ss16" => "MDAwMDAwMDAtMTExMS00Mg==",
            "ss32" => "MDAwMDAwMDAtMTExMS00MjIyLTgzMzMtNDQ0NDU1NTU=",
            _ => UUID,
        };
        assert_eq!(users[0].key.expose(), wanted, "{}", inbound.name);
        if let InboundProtocol::Shadowsocks(server) = &inbound.protocol
            && &*inbound.name == "ss16"
        {
            assert_eq!(server.key.key().text().expose(), "MjQ5MjBkZWNmODNmNjk2MA==");
        }
    }
}

#[test]
fn an_empty_list_serves_nobody() {
    let mut config = config(ALL);
    assert_eq!(config.set_panel_users("p", &[], None), Vec::<String>::new());
    for inbound in &config.inbounds {
        let [only] = inbound.protocol.users() else { panic!("{}", inbound.name) };
        assert_eq!(&*only.name, "nobody");
        assert_ne!(only.key.expose(), "");
    }
}

#[test]
fn users_whose_keys_do_not_fit_are_left_out() {
    let mut config = config(ALL);
    let users =
        [user("17", UUID), user("17", "another one with that id"), user("x", "short"), user("18", UUID)];
    let problems = config.set_panel_users("p", &users, None);
    assert_eq!(problems.len(), 6, "{problems:?}");
    assert!(problems.iter().all(|problem| !problem.contains(UUID) && problem.contains("left out")));
    let of = |name: &str| config.inbound(name).unwrap().protocol.users().len();
    assert_eq!((of("ss16"), of("ssr"), of("snell")), (1, 1, 2));
}
