//! Each rule against a small workspace that breaks it in one place.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{RULES, Report, check};

const ROOT: &str = "#![forbid(unsafe_code)]\n";
const LINTS: &str = "[lints]\nworkspace = true\n";

/// A workspace in a temporary folder, gone when dropped.
struct Tree {
    root: PathBuf,
}

impl Tree {
    /// A tree without findings.
    fn tidy() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("adit-tidy-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let tree = Self { root: std::env::temp_dir().join(name) };
        tree.write(
            "Cargo.toml",
            "[workspace]\nresolver = \"3\"\nmembers = [\"crates/*\"]\n[workspace.lints]\n",
        );
        tree.krate("adit", "adit-engine = { path = \"../engine\" }\n");
        tree.krate("adit-formats", "");
        tree.krate("adit-model", "");
        tree.krate("adit-engine", "adit-net = { path = \"../net\" }\n");
        tree.krate("adit-net", "tokio = \"1\"\nadit-sys = { path = \"../sys\" }\n");
        tree.krate("adit-proto", "");
        tree.krate("adit-sys", "libc = \"0.2\"\n");
        tree.write("crates/sys/src/lib.rs", "#![allow(unsafe_code)]\npub fn f() { unsafe {} }\n");
        tree
    }

    fn krate(&self, name: &str, dependencies: &str) {
        let folder = name.strip_prefix("adit-").unwrap_or(name);
        self.write(&format!("crates/{folder}/Cargo.toml"), &manifest(name, dependencies));
        self.write(&format!("crates/{folder}/src/lib.rs"), ROOT);
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn check(&self) -> Report {
        check(&self.root).unwrap()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // A folder that stays behind in the temporary directory harms nothing.
        std::fs::remove_dir_all(&self.root).ok();
    }
}

fn manifest(name: &str, dependencies: &str) -> String {
    format!("[package]\nname = \"{name}\"\nedition = \"2024\"\n\n{LINTS}\n[dependencies]\n{dependencies}")
}

/// The findings in a tidy tree whose file `path` holds `text`: `file:line: rule`, without the explanation.
fn found(path: &str, text: &str) -> Vec<String> {
    let tree = Tree::tidy();
    tree.write(path, text);
    let findings = tree.check().findings;
    findings.iter().map(|f| format!("{}:{}: {}", f.file, f.line, f.rule)).collect()
}

#[test]
fn a_tidy_tree_has_no_findings() {
    let report = Tree::tidy().check();
    assert_eq!(report.findings, []);
    assert_eq!(report.questions, []);
    assert_eq!(report.crates, 7);
}

#[test]
fn findings_name_file_line_and_rule() {
    let tree = Tree::tidy();
    tree.write("crates/engine/src/a.rs", "\nfn f() { todo!() }\n");
    let findings = tree.check().findings;
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].to_string(), "crates/engine/src/a.rs:2: leftovers: todo!");
}

#[test]
fn dependencies_point_down() {
    let path = "crates/formats/Cargo.toml";
    let up = manifest("adit-formats", "adit-engine = { path = \"../engine\" }\n");
    assert_eq!(found(path, &up), ["crates/formats/Cargo.toml:9: direction"]);
    let tests_too = "\n[dev-dependencies]\nadit-net.path = \"../net\"\n";
    let up = manifest("adit-proto", tests_too);
    assert_eq!(found("crates/proto/Cargo.toml", &up), ["crates/proto/Cargo.toml:11: direction"]);
}

#[test]
fn every_crate_has_a_place() {
    let tree = Tree::tidy();
    tree.krate("adit-extra", "");
    let findings = tree.check().findings;
    assert_eq!(findings.len(), 1);
    assert!(findings[0].to_string().starts_with("crates/extra/Cargo.toml:1: direction: adit-extra"));
}

#[test]
fn tokio_stays_in_adit_net() {
    for kind in ["", "\n[dev-dependencies]\n", "\n[build-dependencies]\n"] {
        let text = manifest("adit-engine", &format!("{kind}tokio = \"1\"\n"));
        let line = text.lines().position(|line| line.starts_with("tokio")).unwrap() + 1;
        assert_eq!(
            found("crates/engine/Cargo.toml", &text),
            [format!("crates/engine/Cargo.toml:{line}: confined")],
        );
    }
    let other = manifest("adit-engine", "tokio-like = \"1\"\n");
    assert_eq!(found("crates/engine/Cargo.toml", &other), [""; 0]);
}

#[test]
fn lints_are_inherited() {
    let without = manifest("adit-engine", "").replace(LINTS, "[lints.rust]\nunsafe_code = \"allow\"\n");
    assert_eq!(found("crates/engine/Cargo.toml", &without), ["crates/engine/Cargo.toml:1: lints"]);
}

#[test]
fn unsafe_stays_in_adit_sys() {
    let path = "crates/net/src/a.rs";
    assert_eq!(found(path, "\nfn f() { unsafe { g() } }\n"), ["crates/net/src/a.rs:2: unsafe"]);
    assert_eq!(found(path, "#[cfg(test)]\nunsafe fn f() {}\n"), ["crates/net/src/a.rs:2: unsafe"]);
    assert_eq!(found(path, "// unsafe\nconst A: &str = \"unsafe\";\n"), [""; 0]);
}

#[test]
fn crates_forbid_unsafe() {
    let here = ["crates/engine/src/lib.rs:1: forbid-unsafe"];
    assert_eq!(found("crates/engine/src/lib.rs", "//! #![forbid(unsafe_code)]\n"), here);
    assert_eq!(found("crates/engine/src/lib.rs", "#![deny(unsafe_code)]\n"), here);
    let program = found("crates/engine/src/bin/x.rs", "fn main() {}\n");
    assert_eq!(program, ["crates/engine/src/bin/x.rs:1: forbid-unsafe"]);
}

#[test]
fn protocols_do_no_io() {
    let path = "crates/proto/src/snell/mod.rs";
    for bad in [
        "use std::net::TcpStream;",
        "use std::{fmt, env};",
        "use std::net::{IpAddr, UdpSocket};",
        "fn f() { let now = std::time::Instant::now(); }",
        "fn f(at: Instant) { at.elapsed(); }",
        "fn f() { tokio::spawn(x); }",
        "use tokio;",
        "fn f() { tracing::info!(1); }",
        "fn f() { getrandom::fill(&mut x); }",
        "use aws_lc_rs::rand::SystemRandom;",
        "fn f() { std::env::var(\"X\"); }",
    ] {
        let found = found(path, &format!("\n{bad}\n"));
        assert_eq!(found, ["crates/proto/src/snell/mod.rs:2: sans-io"], "{bad}");
    }
    for good in [
        "use std::net::{IpAddr, SocketAddr};",
        "use std::time::{Duration, Instant};",
        "fn f(now: Instant, log: u8, elapsed: u8) { now.duration_since(log + elapsed) }",
        "/// Like [`Instant::now`], but given.\nfn f() { \"Instant::now\" }",
        "#[cfg(test)]\nmod tests {\n    fn f() { Instant::now(); }\n}",
    ] {
        assert_eq!(found(path, good), [""; 0], "{good}");
    }
    assert_eq!(found("crates/net/src/a.rs", "fn f() { Instant::now(); tokio::spawn(x) }"), [""; 0]);
}

#[test]
fn sockets_are_opened_in_adit_net() {
    let bad = "\nfn f() { std::net::TcpListener::bind(x) }\n";
    assert_eq!(found("crates/engine/src/a.rs", bad), ["crates/engine/src/a.rs:2: sockets"]);
    assert_eq!(found("crates/net/src/a.rs", bad), [""; 0]);
    assert_eq!(found("crates/engine/tests/a.rs", bad), [""; 0]);
    let child = "use std::process::Command;\n";
    assert_eq!(found("crates/formats/src/a.rs", child), ["crates/formats/src/a.rs:1: sockets"]);
}

#[test]
fn foreign_names_stay_in_the_dialects() {
    let text = "\nconst KEY: &str = \"egress-interface\";\n";
    assert_eq!(found("crates/engine/src/a.rs", text), ["crates/engine/src/a.rs:2: foreign-names"]);
    assert_eq!(
        found("crates/model/src/a.rs", "fn f() { r#\"{ \"server_port\": 1 }\"# }"),
        ["crates/model/src/a.rs:1: foreign-names"],
    );
    for elsewhere in [
        "crates/formats/src/a/b.rs",
        "crates/formats/src/a.rs",
        "crates/engine/tests/a.rs",
        "crates/engine/src/a/tests.rs",
        "docs/a.md",
    ] {
        assert_eq!(found(elsewhere, text), [""; 0], "{elsewhere}");
    }
    let other = "// egress-interface\nconst KEY: &str = \"my-egress-interface\";\nlet server_port = 1;\n";
    assert_eq!(found("crates/engine/src/a.rs", other), [""; 0]);
}

#[test]
fn protocol_folders_know_no_other() {
    for (path, text) in [
        ("snell/mod.rs", "use crate::obfs::Http;"),
        ("snell/mod.rs", "use crate::{buf::RecvBuf, obfs::http::{Client, Server}};"),
        ("snell/mod.rs", "fn f() { crate::obfs::f() }"),
        ("snell/mod.rs", "use super::obfs;"),
        ("snell/codec.rs", "use super::super::obfs;"),
        ("snell/mod.rs", "#[cfg(test)] mod tests { use super::super::obfs; }"),
        ("snell/tests.rs", "use crate::obfs;"),
        ("snell.rs", "use crate::obfs;"),
    ] {
        let tree = Tree::tidy();
        tree.write("crates/proto/src/obfs/mod.rs", "");
        tree.write(&format!("crates/proto/src/{path}"), text);
        let findings = tree.check().findings;
        assert_eq!(findings.len(), 1, "{text}: {findings:?}");
        let expected = format!("crates/proto/src/{path}:1: protocol-folders: snell uses obfs");
        assert!(findings[0].to_string().starts_with(&expected), "{}", findings[0]);
    }
    for (path, text) in [
        ("snell/mod.rs", "use crate::{buf, crypto::Aead, wire::Layer};"),
        ("snell/mod.rs", "use crate::snell::codec;"),
        ("snell/codec.rs", "use super::obfs;"),
        ("lib.rs", "#![forbid(unsafe_code)] use crate::obfs;"),
        ("wire/mod.rs", "#[cfg(test)] mod tests { use super::Host; }"),
    ] {
        let tree = Tree::tidy();
        tree.write("crates/proto/src/obfs/mod.rs", "");
        tree.write(&format!("crates/proto/src/{path}"), text);
        assert_eq!(tree.check().findings, [], "{text}");
    }
}

#[test]
fn neutral_modules_name_no_protocol() {
    for module in ["lifecycle", "stream", "routing", "dns", "relay", "datagram"] {
        let path = format!("crates/engine/src/{module}/mod.rs");
        assert_eq!(found(&path, "\n// as in Snell\n"), [format!("{path}:2: protocol-words")]);
    }
    let path = "crates/engine/src/relay/stack.rs";
    for bad in [
        "fn snell_frame() {}",
        "struct TcpSSRKey;",
        "enum Kind { SsrOrigin }",
        "/// For SOCKS5 clients.",
        "//! The ss-local program.",
        "use adit_proto::shadowsocks::Cipher;",
        "const A: &str = \"kcp\";",
        "/* GoQuiet */",
        "fn quic_lane() {}",
        "// SIP022 and SIP004",
        "let snowflakes = 1;",
    ] {
        assert_eq!(found(path, bad), ["crates/engine/src/relay/stack.rs:1: protocol-words"], "{bad}");
    }
    assert_eq!(
        found("crates/engine/src/relay.rs", "// SSR"),
        ["crates/engine/src/relay.rs:1: protocol-words"]
    );
    let good = "// less-than, quickly: pass class missing loss-rate, websockets\n\
                #[cfg(test)]\nmod tests { use adit_proto::snell; }\n";
    assert_eq!(found(path, good), [""; 0]);
    for elsewhere in [
        "crates/engine/src/listener/mod.rs",
        "crates/engine/src/relay/tests.rs",
        "crates/engine/src/datagram/tests/a.rs",
        "crates/net/src/relay/mod.rs",
    ] {
        assert_eq!(found(elsewhere, "fn snell() {}"), [""; 0], "{elsewhere}");
    }
}

/// Findings of `module-cycle`, in full, of an adit-engine with these files.
fn cycles(files: &[(&str, &str)]) -> Vec<String> {
    let tree = Tree::tidy();
    for (path, text) in files {
        tree.write(&format!("crates/engine/src/{path}"), text);
    }
    tree.check().findings.iter().map(ToString::to_string).collect()
}

#[test]
fn modules_import_each_other_without_cycles() {
    let two = "crates/engine/src/a.rs:1: module-cycle: a -> b (a.rs:1) -> a (b/x.rs:2)";
    for (first, second) in [
        ("use crate::b::B;", "\nuse crate::a;"),
        ("use crate::{c, b::{x::B}};", "\nfn f() { crate::a::f() }"),
        ("use super::b;", "\nuse super::super::a::A;"),
        ("fn f() -> crate::b::B {}", "\nuse {std::fmt, crate::{b, a}};"),
    ] {
        let files = [("a.rs", first), ("b/x.rs", second), ("c.rs", "")];
        assert_eq!(cycles(&files), [two], "{first} {second}");
    }
    let three = [("a.rs", "use crate::b;"), ("b.rs", "use crate::c;"), ("c/mod.rs", "use crate::a;")];
    let cycle = "a -> b (a.rs:1) -> c (b.rs:1) -> a (c/mod.rs:1)";
    assert_eq!(cycles(&three), [format!("crates/engine/src/a.rs:1: module-cycle: {cycle}")]);
}

#[test]
fn a_name_of_a_visible_type_is_defined_once_in_a_crate() {
    let tree = Tree::tidy();
    let text = "pub struct Flow;\nstruct Own;\npub(crate) struct Other;\n";
    tree.write("crates/engine/src/a.rs", text);
    tree.write("crates/engine/src/b.rs", "struct Own;\n\npub(super) enum Flow {}\n");
    tree.write("crates/net/src/c.rs", "pub struct Flow;\npub struct Signals;\n");
    tree.write("crates/net/src/windows.rs", "pub struct Signals;\n");
    let found: Vec<String> = tree.check().findings.iter().map(ToString::to_string).collect();
    let [a, b] = ["crates/engine/src/a.rs:1", "crates/engine/src/b.rs:3"];
    let wanted = [(a, b), (b, a)]
        .map(|(here, there)| format!("{here}: type-names: Flow is defined at {there} too: say what it is"));
    assert_eq!(found, wanted);
}

#[test]
fn a_file_name_stands_for_three_files_at_most() {
    let tree = Tree::tidy();
    for folder in ["a", "b", "c", "d"] {
        tree.write(&format!("crates/engine/src/{folder}/mod.rs"), "");
        tree.write(&format!("crates/engine/src/{folder}/inbound.rs"), "");
        let path =
            if folder == "d" { "crates/engine/tests/d/link.rs" } else { "crates/engine/src/X/link.rs" };
        tree.write(&path.replace('X', folder), "");
    }
    assert_eq!(tree.check().findings, []);
    tree.write("crates/engine/src/d/link.rs", "");
    let found = tree.check().findings;
    assert_eq!(found.len(), 4, "{found:?}");
    let last = "crates/engine/src/d/link.rs:1: file-names: 4 files of engine are named link.rs: \
                say what each is about";
    assert_eq!(found[3].to_string(), last);
}

/// A folder of any crate, and all beneath it, imports another one or is imported by it.
#[test]
fn folders_import_each_other_in_one_direction() {
    let tree = Tree::tidy();
    tree.write("crates/net/src/x/mod.rs", "use crate::y::Y;\nuse self::inner::I;\n");
    tree.write("crates/net/src/x/inner.rs", "use super::X;\n");
    tree.write("crates/net/src/y/part.rs", "\nuse crate::x::X;\n");
    tree.write("crates/net/src/y/mod.rs", "");
    let found: Vec<String> = tree.check().findings.iter().map(ToString::to_string).collect();
    let [x, y] = ["crates/net/src/x/", "crates/net/src/y/"];
    let wanted = format!("{x}mod.rs:1: module-cycle: {x} -> {y} ({x}mod.rs:1), {y} -> {x} ({y}part.rs:2)");
    assert_eq!(found, [wanted]);
}

#[test]
fn every_import_of_a_cycle_is_named() {
    let a = ("a.rs", "use crate::b;\nuse crate::c;");
    let found =
        cycles(&[a, ("b.rs", "use crate::a;"), ("c.rs", "use crate::a;\nuse crate::d;"), ("d.rs", "")]);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].ends_with("a -> b (a.rs:1) -> a (b.rs:1)"), "{}", found[0]);
    assert!(found[1].ends_with("a -> c (a.rs:2) -> a (c.rs:1)"), "{}", found[1]);
}

#[test]
fn imports_that_make_no_cycle() {
    let line = [("a.rs", "use crate::{b, c};"), ("b.rs", "use crate::c;"), ("c.rs", "use crate::c;")];
    assert_eq!(cycles(&line), [""; 0]);
    let tests = [
        ("a.rs", "use crate::b;"),
        ("b.rs", "#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n"),
        ("b/tests.rs", "use crate::a;"),
        ("b/more_tests.rs", "use crate::a;"),
        ("lib.rs", "#![forbid(unsafe_code)]\nmod a;\npub use a::A;"),
    ];
    assert_eq!(cycles(&tests), [""; 0]);
    assert_eq!(
        cycles(&[("a.rs", "// use crate::b;\nuse crate::b::a;"), ("b.rs", "// crate::a::A")]),
        [""; 0]
    );
}

#[test]
fn event_loops_do_not_sleep() {
    for bad in
        ["fn f() { std::thread::sleep(x) }", "fn f() { thread::sleep(x) }", "use std::thread::{self, sleep};"]
    {
        assert_eq!(found("crates/engine/src/a.rs", bad), ["crates/engine/src/a.rs:1: no-sleep"], "{bad}");
        assert_eq!(found("crates/net/src/a.rs", bad), ["crates/net/src/a.rs:1: no-sleep"], "{bad}");
        for elsewhere in ["engine/src/users/key_search.rs", "engine/tests/a.rs", "sys/src/a.rs"] {
            let bad = format!("// Pause.\n{bad}");
            assert_eq!(found(&format!("crates/{elsewhere}"), &bad), [""; 0], "{elsewhere}");
        }
        let test = format!("#[cfg(test)]\nmod tests {{\n    // Pause.\n    {bad}\n}}\n");
        assert_eq!(found("crates/engine/src/a.rs", &test), [""; 0]);
    }
    assert_eq!(found("crates/engine/src/a.rs", "fn f() { rt::sleep(x) } // thread::sleep"), [""; 0]);
}

#[test]
fn sleeps_of_tests_say_what_they_are_for() {
    let (file, one) = ("crates/sys/src/a.rs", ["crates/sys/src/a.rs:4: test-sleep"]);
    let test =
        |body: &str| format!("#[cfg(test)]\nmod tests {{\n    fn f() {{\n        {body}\n    }}\n}}\n");
    for bad in ["thread::sleep(x);", "rt::sleep(x).await;", "wait_for(|| { sleep(x); y });"] {
        assert_eq!(found(file, &test(bad)), one, "{bad}");
        assert_eq!(found(file, &format!("fn f() {{ {bad} }}")), [""; 0], "no test: {bad}");
        assert_eq!(found("crates/sys/tests/a.rs", &format!("fn f() {{ {bad} }}")).len(), 1, "{bad}");
        for good in [
            format!("{bad} // The answer takes its time."),
            format!("// The answer takes its time.\n        {bad}"),
            format!("while is_absent {{ {bad} }}"),
        ] {
            assert_eq!(found(file, &test(&good)), [""; 0], "{good}");
        }
    }
}

#[test]
fn leftovers_are_found() {
    let path = "crates/engine/tests/a.rs";
    for bad in ["dbg!(x)", "todo!()", "unimplemented!()", "std::todo!()"] {
        let found = found(path, &format!("fn f() {{ {bad} }}"));
        assert_eq!(found, ["crates/engine/tests/a.rs:1: leftovers"], "{bad}");
    }
    assert_eq!(found(path, "fn todo() { todo != 1; \"dbg!()\" } // todo!()"), [""; 0]);
}

#[test]
fn machine_paths_are_found() {
    let home = concat!("/ho", "me/");
    assert_eq!(found("README.md", &format!("a\nsee {home}me/x\n")), ["README.md:2: machine-paths"]);
    assert_eq!(found("a.toml", &format!("x = \"{home}me\"")), ["a.toml:1: machine-paths"]);
    assert_eq!(found("README.md", &format!("https://example.com{home}page ${{HOME}}{home}x")), [""; 0]);
}

#[test]
fn comments_begin_with_the_thing_or_the_action() {
    let file = "crates/engine/src/a.rs";
    let one = ["crates/engine/src/a.rs:1: plain-words"];
    for text in [
        "//! What this is.\n",
        "/// Where it listens.\nfn f() {}\n",
        "    // How long it takes.\n",
        "/// - Who asks.\nfn f() {}\n",
        "//! One thing. Which is another one.\n",
    ] {
        assert_eq!(found(file, text), one, "{text}");
    }
    for text in [
        "/// Whether it is open.\nfn f() {}\n",
        "/// Hows and wheres.\nfn f() {}\n",
        "/// The address that it listens on, and what\n/// is more. (See Where.)\nfn f() {}\n",
        "const A: &str = \"\n// \"; // a\n",
        "fn f() { What(1) }\n",
    ] {
        assert_eq!(found(file, text), [""; 0], "{text}");
    }
    assert_eq!(found("docs/a.md", "What a document asks.\n"), [""; 0]);
}

#[test]
fn private_words_are_found() {
    let words = [
        concat!("Stran", "gers"),
        concat!("disg", "uised"),
        concat!("what", "ever"),
        concat!("who", "ever"),
        concat!("which", "ever"),
    ];
    for word in words {
        assert_eq!(found("docs/a.md", &format!("a\n{word} b\n")), ["docs/a.md:2: plain-words"]);
        let name = format!("fn no_{word}_here() {{}}\n");
        assert_eq!(found("crates/net/tests/a.rs", &name), ["crates/net/tests/a.rs:1: plain-words"]);
        assert_eq!(found("CHANGELOG.md", word), [""; 0]);
        assert_eq!(found("a.toml", &format!("# {word}")), [""; 0]);
    }
}

#[test]
fn length_is_a_question() {
    let tree = Tree::tidy();
    let body = "    f();\n".repeat(120);
    tree.write("crates/engine/src/a.rs", &format!("\nfn long() {{\n{body}}}\n"));
    tree.write("crates/engine/src/b.rs", &"fn f() {}\n".repeat(1001));
    let rows = "        (1, 2),\n".repeat(1200);
    tree.write("crates/engine/tests/a.rs", &format!("fn table() {{\n    let rows = [\n{rows}    ];\n}}\n"));
    let report = tree.check();
    assert_eq!(report.findings, []);
    let questions: Vec<String> = report.questions.iter().map(ToString::to_string).collect();
    assert_eq!(
        questions,
        [
            "crates/engine/src/a.rs:2: long-function: long has 122 lines",
            "crates/engine/src/b.rs:1: long-file: 1001 lines",
        ]
    );
}

/// The document that explains the invariants names the rule that keeps each.
#[test]
fn every_rule_is_explained() {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ARCHITECTURE.md");
    let text = std::fs::read_to_string(document).unwrap();
    for rule in RULES {
        assert!(text.contains(&format!("`{rule}`")), "ARCHITECTURE.md does not name `{rule}`");
    }
}
