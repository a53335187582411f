//! Users over HTTPS: every address of both interfaces, bad input, and a restart. The client is curl.

use std::net::{SocketAddr, TcpListener};

use serde_json::{Value, json};

use crate::support::{Dir, Running, echo, finish, round_trip, socks5};

const SECRET: &str = "0123456789abcdefghijkl";
const METHOD: &str = "chacha20-ietf-poly1305";
const NEW_KEY: &str = "QUJDREVGR0hJSktMTU5PUA==";

/// A server with one user, one with a 2022 method, and one with a key for all.
fn config(dir: &Dir, manage: SocketAddr, keys: SocketAddr) {
    let text = format!(
        "state = \"state\"\n[admin]\nsocket = \"adit.sock\"\nmanage = \"{manage}\"\nmanage-secret = \"{SECRET}\"\n\
         [[inbound]]\nname = \"in\"\nprotocol = \"shadowsocks\"\nlisten = \"{keys}\"\nmethod = \"{METHOD}\"\n\
         allow-private = true\nusers = [{{ name = \"first\", password = \"p\" }}]\n\
         [[inbound]]\nname = \"new\"\nprotocol = \"shadowsocks\"\nlisten = \"127.0.0.1:0\"\n\
         method = \"2022-blake3-aes-128-gcm\"\npassword = \"MDEyMzQ1Njc4OWFiY2RlZg==\"\n\
         users = [{{ name = \"ann\", password = \"MTIzNDU2Nzg5MGFiY2RlZg==\" }}]\n\
         [[inbound]]\nname = \"one\"\nprotocol = \"shadowsocks\"\nlisten = \"127.0.0.1:0\"\nmethod = \"{METHOD}\"\n\
         password = \"p\"\n"
    );
    dir.file("adit.toml", &text);
}

fn start(dir: &Dir) -> Running {
    let running = Running::start(dir.adit(&["run", "-c", "adit.toml"]));
    running.line("users can be managed");
    running.line("inbound=one");
    running
}

/// Asks with curl, which checks the certificate; status and body.
fn ask(dir: &Dir, at: SocketAddr, method: &str, path: &str, body: &str) -> (u16, Value) {
    let url = format!("https://localhost:{}/{path}", at.port());
    let resolve = format!("localhost:{}:{}", at.port(), at.ip());
    let mut args =
        vec!["-sS", "--noproxy", "*", "--cacert", "state.manage.crt", "-X", method, "-w", "\n%{http_code}"];
    if !body.is_empty() {
        args.extend(["--data-binary", "@-"]);
    }
    args.extend(["--resolve", &resolve, &url]);
    let (status, out, err) = finish(dir.command("curl", &args), body);
    assert_eq!(status, 0, "{method} {path}: {err}");
    let (body, code) = out.rsplit_once('\n').unwrap();
    (code.parse().unwrap(), serde_json::from_str(body).unwrap_or(Value::Null))
}

/// A client with the access of a key, through which bytes pass.
fn passes(dir: &Dir, keys: SocketAddr, key: &Value) {
    let (ip, port, password) = (keys.ip(), &key["port"], key["password"].as_str().unwrap());
    let text = format!(
        "[admin]\nsocket = \"off\"\n[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\n[[outbound]]\n\
         protocol = \"shadowsocks\"\nserver = \"{ip}:{port}\"\nmethod = \"{METHOD}\"\npassword = \"{password}\"\n"
    );
    dir.file("client.toml", &text);
    let client = Running::start(dir.adit(&["run", "-c", "client.toml"]));
    round_trip(&mut socks5(client.address(), "127.0.0.1", echo().port()), 50_000);
}

#[test]
fn outline_manages_access_keys() {
    let dir = Dir::new();
    let (at, keys) = (adit_testkit::unused_addr(), adit_testkit::unused_addr());
    config(&dir, at, keys);
    let running = start(&dir);
    let put = |method: &str, path: &str, body: Value| {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        ask(&dir, at, method, &format!("{SECRET}/{path}"), &body)
    };
    let get = |path: &str| put("GET", path, Value::Null);
    // The line for the Manager.
    let (status, line, err) = dir.run(&["node", "outline", "-c", "adit.toml"]);
    assert_eq!((status, &*err), (0, ""));
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["apiUrl"], format!("https://{at}/{SECRET}"));
    assert_eq!(line["certSha256"].as_str().unwrap().len(), 64);

    let (status, server) = get("server");
    assert_eq!((status, &server["portForNewAccessKeys"]), (200, &json!(keys.port())), "{server}");
    assert_eq!(server["hostnameForAccessKeys"], "localhost");
    assert_eq!(put("PUT", "name", json!({ "name": "Home" })).0, 204);
    assert_eq!(put("PUT", "server/hostname-for-access-keys", json!({ "hostname": "a.example" })).0, 204);
    assert_eq!(put("PUT", "metrics/enabled", json!({ "metricsEnabled": true })).0, 204);
    assert_eq!(get("metrics/enabled"), (200, json!({ "metricsEnabled": true })));

    // A key, and its use.
    let (status, key) = put("POST", "access-keys", Value::Null);
    assert_eq!((status, &key["id"], &key["method"]), (201, &json!("0"), &json!(METHOD)));
    assert_eq!(key["password"].as_str().unwrap().len(), 22);
    let url = key["accessUrl"].as_str().unwrap();
    assert!(
        url.starts_with("ss://") && url.ends_with(&format!("@a.example:{}/?outline=1", keys.port())),
        "{url}"
    );
    passes(&dir, keys, &key);
    let (status, sent) = get("metrics/transfer");
    assert_eq!(status, 200);
    assert_eq!(sent["bytesTransferredByUserId"]["0"], 100_000, "{sent}");
    let named = json!({ "name": "bob", "password": "bob's own", "limit": { "bytes": 5000 } });
    assert_eq!(put("PUT", "access-keys/bob", named.clone()).0, 201);
    assert_eq!(put("PUT", "access-keys/bob", named).0, 409);
    let (_, bob) = get("access-keys/bob");
    assert_eq!((&bob["name"], &bob["dataLimit"]), (&json!("bob"), &json!({ "bytes": 5000 })));
    assert_eq!(put("PUT", "access-keys/0/name", json!({ "name": "ann" })).0, 204);
    assert_eq!(put("PUT", "access-keys/0/data-limit", json!({ "limit": { "bytes": 7000 } })).0, 204);
    assert_eq!(put("DELETE", "access-keys/0/data-limit", Value::Null).0, 204);
    assert_eq!(put("PUT", "server/access-key-data-limit", json!({ "limit": { "bytes": 900 } })).0, 204);
    let file = std::fs::read_to_string(dir.path().join("adit.toml")).unwrap();
    assert_eq!((file.matches("\"900B\"").count(), file.matches("\"5000B\"").count()), (2, 1), "{file}");
    assert_eq!(get("server").1["accessKeyDataLimit"], json!({ "bytes": 900 }));
    assert_eq!(put("DELETE", "server/access-key-data-limit", Value::Null).0, 204);

    // Another port.
    let taken = TcpListener::bind((keys.ip(), 0)).unwrap();
    let port = |port: u16| put("PUT", "server/port-for-new-access-keys", json!({ "port": port })).0;
    assert_eq!(port(taken.local_addr().unwrap().port()), 409);
    let other = adit_testkit::unused_addr().port();
    assert_eq!(port(other), 204);
    let (status, moved) = put("POST", "access-keys", json!({ "name": "far" }));
    assert_eq!((status, &moved["port"], &moved["id"]), (201, &json!(other), &json!("1")));
    passes(&dir, keys, &moved);
    running.signal("TERM");
    let (status, log) = running.end();
    assert_eq!(status.code(), Some(0));
    assert!(!log.contains(SECRET) && !log.contains("bob's own"), "{log}");

    // All of it is there after a restart, with the same certificate.
    let running = start(&dir);
    let (_, all) = get("access-keys");
    let ids: Vec<&str> =
        all["accessKeys"].as_array().unwrap().iter().map(|key| key["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["first", "0", "bob", "1"]);
    assert_eq!(all["accessKeys"][1]["name"], "ann");
    let (_, server) = get("server");
    assert_eq!((&server["name"], &server["portForNewAccessKeys"]), (&json!("Home"), &json!(other)));
    assert_eq!(get("metrics/transfer").1["bytesTransferredByUserId"]["0"], 100_000);
    passes(&dir, keys, &key);
    for id in ids {
        assert_eq!(put("DELETE", &format!("access-keys/{id}"), Value::Null).0, 204);
        assert_eq!(put("DELETE", &format!("access-keys/{id}"), Value::Null).0, 404);
    }
    assert_eq!(get("access-keys"), (200, json!({ "accessKeys": [] })));
    drop(running);
}

#[test]
fn bad_requests_change_nothing() {
    let dir = Dir::new();
    let at = adit_testkit::unused_addr();
    config(&dir, at, adit_testkit::unused_addr());
    let _running = start(&dir);
    let before = std::fs::read_to_string(dir.path().join("adit.toml")).unwrap();
    for (method, path, body, status) in [
        ("PUT", "name", "{", 400),
        ("PUT", "name", "[]", 400),
        ("PUT", "name", "{\"name\":7}", 400),
        ("PUT", "server/hostname-for-access-keys", "{\"hostname\":\"a b\"}", 400),
        ("PUT", "server/port-for-new-access-keys", "{\"port\":65536}", 400),
        ("PUT", "server/access-key-data-limit", "{\"limit\":{\"bytes\":-1}}", 400),
        ("PUT", "access-keys/first/data-limit", "{}", 400),
        ("PUT", "access-keys/none/name", "{\"name\":\"x\"}", 404),
        ("GET", "access-keys/none", "", 404),
        ("POST", "access-keys", "{\"method\":\"aes-128-gcm\"}", 400),
        ("POST", "access-keys", "{\"password\":\"\"}", 400),
        ("PUT", "access-keys/manage-nobody", "{}", 400),
        ("PUT", "access-keys/%00", "", 400),
        ("DELETE", "server", "", 405),
        ("GET", "experimental/server/metrics", "", 404),
        ("POST", "server/new/v1/users", "{\"username\":\"x\",\"uPSK\":\"short\"}", 400),
        ("GET", "server/none/v1/users", "", 404),
    ] {
        let (code, told) = ask(&dir, at, method, &format!("{SECRET}/{path}"), body);
        assert_eq!(code, status, "{method} {path} {body}: {told}");
    }
    let long = format!("{{\"name\":\"{}\"}}", "x".repeat(2 << 20));
    assert_eq!(ask(&dir, at, "PUT", &format!("{SECRET}/name"), &long).0, 413);
    for _ in 0..5 {
        assert_eq!(ask(&dir, at, "GET", "0123456789abcdefghijkm/server", ""), (404, Value::Null));
    }
    // Guesses are answered ever more seldom, and lock nobody out who shares their address.
    for _ in 0..10 {
        assert_eq!(ask(&dir, at, "GET", "0123456789abcdefghijkm/server", "").0, 429);
        assert_eq!(ask(&dir, at, "GET", &format!("{SECRET}/server"), "").0, 200);
    }
    assert_eq!(std::fs::read_to_string(dir.path().join("adit.toml")).unwrap(), before);
}

#[test]
fn scripts_manage_users_of_a_server() {
    let dir = Dir::new();
    let (at, keys) = (adit_testkit::unused_addr(), adit_testkit::unused_addr());
    config(&dir, at, keys);
    let running = start(&dir);
    let call = |method: &str, path: &str, body: &str| {
        ask(&dir, at, method, &format!("{SECRET}/server/{path}"), body)
    };
    assert_eq!(call("GET", "new/v1", "").1["apiVersion"], "v1");
    assert_eq!(call("GET", "one/v1/users", "").0, 404, "one key for all");
    let bob = json!({ "username": "bob", "uPSK": NEW_KEY });
    assert_eq!(call("POST", "new/v1/users", &bob.to_string()), (201, bob.clone()));
    assert_eq!(call("POST", "new/v1/users", &bob.to_string()).0, 400);
    assert_eq!(call("GET", "new/v1/users", "").1["users"][1], bob);
    let (status, one) = call("GET", "new/v1/users/bob", "");
    assert_eq!((status, &one["uPSK"], &one["downlinkBytes"]), (200, &json!(NEW_KEY), &json!(0)));
    let other = json!({ "uPSK": "YWJjZGVmZ2hpamtsbW5vcA==" }).to_string();
    assert_eq!(call("PATCH", "new/v1/users/bob", &other).0, 204);
    assert_eq!(call("PATCH", "new/v1/users/none", &other).0, 404);
    assert_eq!(call("PATCH", "new/v1/users/bob", "{}").0, 400);
    drop(running);
    let _running = start(&dir);
    assert_eq!(call("GET", "new/v1/users/bob", "").1["uPSK"], "YWJjZGVmZ2hpamtsbW5vcA==");
    // A user with a password of its own, its bytes, and a zero that moves.
    let (_, list) = ask(&dir, at, "GET", &format!("{SECRET}/access-keys"), "");
    passes(&dir, keys, &list["accessKeys"][0]);
    let (_, stats) = call("GET", "in/v1/stats?clear=true", "");
    assert_eq!(
        (&stats["uplinkBytes"], &stats["users"][0]["downlinkBytes"]),
        (&json!(50_000), &json!(50_000))
    );
    let (_, stats) = call("GET", "in/v1/stats", "");
    assert_eq!((&stats["uplinkBytes"], &stats["users"][0]["downlinkBytes"]), (&json!(0), &json!(0)));
    let (_, sent) = ask(&dir, at, "GET", &format!("{SECRET}/metrics/transfer"), "");
    assert_eq!(sent["bytesTransferredByUserId"]["first"], 100_000, "accounts stay as they are");
    for user in ["ann", "bob"] {
        assert_eq!(call("DELETE", &format!("new/v1/users/{user}"), "").0, 204);
        assert_eq!(call("DELETE", &format!("new/v1/users/{user}"), "").0, 404);
    }
    assert_eq!(call("GET", "new/v1/users", "").1, json!({ "users": [] }));
}
