//! Names of others in everything that a person reads: they stay in their place.

use std::net::TcpListener;

use adit_testkit::unused_localhost;

use crate::support::{Dir, Running, finish};

/// A node's name that would end its line, forge another, colour the screen and turn the direction of the rest.
const YAML: &str = r"x\nDIRECT direct 0 0\r\e[31m\u009b1m\u202eevil\u2066\u2028\u200e\u061c\u200b\x7fend";

/// Whether `text` holds nothing that acts on what stands beside it.
#[track_caller]
fn is_plain(what: &str, text: &str) {
    let bad = |c: char| {
        c.is_control() && !matches!(c, '\n' | '\t')
            || matches!(c, '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{61c}')
    };
    let found = text.chars().find(|c| bad(*c));
    assert!(found.is_none(), "{what}: {found:?} in {text:?}");
    let forged = text.lines().find(|line| line.trim_start().starts_with("DIRECT direct 0"));
    assert!(forged.is_none(), "{what}: a forged line in {text:?}");
}

fn config(mixed: u16, dead: u16) -> String {
    format!(
        "mixed-port: {mixed}\nlog-level: debug\nproxies:\n- {{name: \"{YAML}\", type: ss, server: 127.0.0.1, port: {dead}, cipher: aes-128-gcm, password: pw}}\n\
         proxy-groups:\n- {{name: \"g{YAML}\", type: fallback, proxies: [\"{YAML}\"], url: 'http://127.0.0.1:{dead}/', interval: 300}}\n\
         rules:\n- 'DOMAIN,a.test,DIRECT'\n- \"MATCH,g{YAML}\"\n"
    )
}

#[test]
fn names_of_nodes_forge_nothing() {
    let dir = Dir::new();
    let (mixed, dead) = (unused_localhost(), unused_localhost());
    dir.file("config.yaml", &config(mixed.port(), dead.port()));
    let running = Running::start(dir.adit(&["run", "-c", "config.yaml", "--log-level", "debug"]));
    running.line("listening");
    // A connection that fails leaves the name in records, errors and the log.
    let (status, ..) = finish(
        dir.command("curl", &["-s", "--noproxy", "", "-x", &format!("http://{mixed}"), "http://b.test/"]),
        "",
    );
    assert_eq!(status, 0);
    let pid = running.pid().to_string();
    let node = "x\u{fffd}DIRECT direct 0";
    for (args, shows) in [
        (&["status", "--pid", &pid][..], true),
        (&["status", "--pid", &pid, "--users"], true),
        (&["conns", "--pid", &pid], false),
        (&["check", "-c", "config.yaml"], false),
        (&["explain", "-c", "config.yaml", "--to", "b.test:1"], true),
        (&["test", "nosuch", "-c", "config.yaml"], true),
        (&["doctor", "-c", "config.yaml", "--offline", "--all"], false),
        (&["diff", "-c", "config.yaml"], false),
        (&["import", "config.yaml"], false),
        (&["convert", "config.yaml"], false),
        (&["status"], false),
    ] {
        let (_, out, err) = dir.run(args);
        assert!(!(out.is_empty() && err.is_empty()), "{args:?} says nothing");
        let both = out + &err;
        is_plain(&args.join(" "), &both);
        assert!(!shows || both.contains(node), "{args:?} does not show the name: {both:?}");
    }
    // JSON is data: a reader gets the name as it is.
    let (_, out, _) = dir.run(&["status", "--pid", &pid, "--json"]);
    assert!(out.lines().count() == 1 && !out.contains('\u{1b}'), "{out:?}");
    let status: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(status.to_string().contains("evil"), "{status}");
    let names = status["outbounds"].as_array().unwrap().iter().filter_map(|of| of["name"].as_str());
    assert!(names.into_iter().any(|name| name.contains("\u{202e}evil")), "{status}");
    is_plain("the log", &running.log());
    assert!(running.log().contains("evil"), "{}", running.log());
}

#[test]
fn a_log_keeps_each_text_on_its_line_in_every_shape() {
    for shape in ["text", "json"] {
        let dir = Dir::new();
        let (mixed, dead) = (unused_localhost(), unused_localhost());
        dir.file("config.yaml", &config(mixed.port(), dead.port()));
        let flags = ["--log-level", "debug", "--log-format", shape, "run", "-c", "config.yaml"];
        let running = Running::start(dir.adit(&flags));
        adit_testkit::wait_for("the port listens", || std::net::TcpStream::connect(mixed).is_ok());
        let url = "http://b.test/";
        finish(dir.command("curl", &["-s", "--noproxy", "", "-x", &format!("http://{mixed}"), url]), "");
        adit_testkit::wait_for("the log names the node", || running.log().contains("evil"));
        is_plain(shape, &running.log());
    }
}

/// A name in a link, and the words of a server that answers.
#[test]
fn a_link_and_a_server_forge_nothing() {
    let dir = Dir::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    drop(listener);
    let name = "x%0aDIRECT%20direct%200%1b%5b31m%e2%80%aeevil%e2%80%a8";
    let link = format!("ss://YWVzLTEyOC1nY206cHc=@{at}#{name}");
    for args in [&["test", "--timeout", "2", &*link][..], &["import", "links"], &["check", "-c", "links"]] {
        dir.file("links", &format!("{link}\n"));
        let (_, out, err) = dir.run(args);
        assert!(!(out.is_empty() && err.is_empty()), "{args:?} says nothing");
        is_plain(&args.join(" "), &(out + &err));
    }
}

/// Names of the own file, which may hold what is no control character.
#[test]
fn lines_for_clients_hold_no_hidden_character() {
    let dir = Dir::new();
    let text = "[admin]\nsocket = \"off\"\n[[inbound]]\nname = \"home\\u202e\\u2028\\u200e\"\nprotocol = \"shadowsocks\"\n\
                listen = \"127.0.0.1:0\"\nmethod = \"chacha20-ietf-poly1305\"\n\
                users = [{ name = \"ann\\u202e\\u2066\", password = \"p\" }, { name = \"b\", password = \"q\" }]\n";
    dir.file("adit.toml", text);
    for args in [
        &["share", "-c", "adit.toml", "--host", "a.example"][..],
        &["share", "-c", "adit.toml", "--host", "a.example", "--qr=dark"],
        &["user", "list", "-c", "adit.toml"],
        &["check", "-c", "adit.toml"],
    ] {
        let (status, out, err) = dir.run(args);
        assert_eq!(status, 0, "{args:?}: {err}");
        assert!(!out.is_empty(), "{args:?}");
        is_plain(&args.join(" "), &(out + &err));
    }
}
