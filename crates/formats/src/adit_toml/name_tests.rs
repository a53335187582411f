//! Keys that had another name.

use adit_model::{ClientCover, Config, InboundProtocol, OutboundProtocol, Transports};

use super::{EXAMPLE, parse, to_toml};

/// A file that is read under both names: `network` and `plugin-network`, or what they were called before.
fn file(network: &str, plugin_network: &str) -> String {
    format!(
        "[[inbound]]\nprotocol = \"tunnel\"\nlisten = \"127.0.0.1:1\"\ntarget = \"a:1\"\n{network} = \"udp\"\n\
         [[inbound]]\nprotocol = \"shadowsocks\"\nlisten = \":2\"\nmethod = \"aes-128-gcm\"\npassword = \"p\"\n\
         {network} = \"tcp-and-udp\"\n\
         [[outbound]]\nprotocol = \"shadowsocks\"\nserver = \"b:1\"\nmethod = \"aes-128-gcm\"\npassword = \"p\"\n\
         {network} = \"tcp-and-udp\"\nplugin = \"x\"\n{plugin_network} = \"udp\"\n"
    )
}

fn carried(config: &Config) -> Vec<Transports> {
    let [first, second] = &*config.inbounds else { panic!("not two") };
    let InboundProtocol::Tunnel { transports, .. } = &first.protocol else { panic!("not a tunnel") };
    let InboundProtocol::Shadowsocks(server) = &second.protocol else { panic!("not a server") };
    let OutboundProtocol::Shadowsocks(client) = &config.outbounds[0].protocol else { panic!("not a client") };
    let ClientCover::Plugin(plugin) = &client.cover else { panic!("no plugin") };
    vec![*transports, server.transports, client.transports, plugin.transports]
}

#[test]
fn an_old_name_is_read_with_a_warning_that_gives_the_new_one() {
    let new = parse("t.toml", &file("network", "plugin-network")).unwrap();
    assert!(new.diagnostics.is_empty(), "{}", new.diagnostics);
    let old = parse("t.toml", &file("mode", "plugin-mode")).unwrap();
    assert_eq!(old.config, new.config);
    assert_eq!(carried(&old.config), [Transports::Udp, Transports::Both, Transports::Both, Transports::Udp]);
    let hint = "the old name of `network`\n  hint: write network; two more releases take mode\n";
    assert_eq!(
        old.diagnostics.to_string(),
        format!(
            "t.toml:5:1: warning: inbound[0].mode: {hint}t.toml:11:1: warning: inbound[1].mode: {hint}\
             t.toml:17:1: warning: outbound[0].mode: {hint}t.toml:19:1: warning: outbound[0].plugin-mode: \
             the old name of `plugin-network`\n  hint: write plugin-network; two more releases take plugin-mode\n"
        )
    );
}

#[test]
fn only_new_names_are_written() {
    let text = to_toml(&parse("t.toml", &file("mode", "plugin-mode")).unwrap().config);
    assert!(
        text.contains("\nnetwork = \"udp\"\n") && text.contains("\nplugin-network = \"udp\"\n"),
        "{text}"
    );
    assert!(!text.contains("mode"), "{text}");
    let again = parse("t.toml", &text).unwrap();
    assert!(again.diagnostics.is_empty(), "{}", again.diagnostics);
    let example = parse("t.toml", EXAMPLE).unwrap();
    assert!(example.diagnostics.is_empty(), "{}", example.diagnostics);
}

#[test]
fn mistakes_under_an_old_name() {
    let rejected = |text: &str| parse("t.toml", text).unwrap_err().to_string();
    let tunnel = "[[inbound]]\nprotocol = \"tunnel\"\nlisten = \"127.0.0.1:1\"\ntarget = \"a:1\"\n";
    assert_eq!(
        rejected(&format!("{tunnel}mode = \"udp\"\nnetwork = \"udp\"\n")),
        "t.toml:5:1: inbound[0].mode: the old name of `network`, which is given too\n  hint: keep network\n"
    );
    let wrong = rejected(&format!("{tunnel}mode = \"default\"\n"));
    assert!(wrong.contains("t.toml:5:8: inbound[0].mode: unknown value: default\n"), "{wrong}");
    let local = "[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:1\"\nmode = \"udp\"\n";
    assert!(rejected(local).contains("4:1: inbound[0].mode: protocol mixed has no such key"), "{local}");
    let snell = "[[inbound]]\nprotocol = \"snell\"\nlisten = \":1\"\npsk = \"k\"\nnetwork = \"udp\"\n";
    assert!(rejected(snell).contains("inbound[0].network: protocol snell has no such key"), "{snell}");
    let lone = "[[inbound]]\nprotocol = \"shadowsocks\"\nlisten = \":2\"\nmethod = \"aes-128-gcm\"\npassword = \"p\"\n\
                plugin-mode = \"udp\"\n";
    assert!(rejected(lone).contains("6:15: inbound[0].plugin-mode: no plugin is set"), "{lone}");
}
