//! Databases that rules need: fetched where the file says so, and named where it does not.

use super::*;
use crate::clash_api;

/// `GeoSite.dat` with a list of one name.
fn sites(code: &str, name: &str) -> Vec<u8> {
    let message = |tag: u8, bytes: &[u8]| [&[tag, u8::try_from(bytes.len()).unwrap()], bytes].concat();
    let domain = [&[8, 3][..], &message(0x12, name.as_bytes())].concat();
    message(0x0a, &[message(0x0a, code.as_bytes()), message(0x12, &domain)].concat())
}

fn database(code: &str, name: &str) -> Script {
    Script::Bytes(sites(code, name))
}

fn config(keys: &str) -> String {
    format!(
        "hosts: {{echo.test: 127.0.0.1}}\n{keys}\
         rules:\n- DOMAIN,other.test,DIRECT\n- GEOSITE,LIST,REJECT\n- MATCH,DIRECT\n"
    )
}

/// A file that is fetched is there before the first request; a newer one takes its place, and nothing else does.
#[test]
fn databases_are_fetched() {
    let (server, target, control) = (Server::start(database("LIST", "echo.test")), echo(), unused_addr());
    let dir = Dir::new();
    let file = dir.path().join("GeoSite.dat");
    let text = config(&format!(
        "external-controller: {control}\ngeox-url: {{geosite: 'http://{}/s.dat?token=hunter2'}}\n",
        server.at
    ));
    dir.file("config.yaml", &text);
    // A test of the file opens nothing.
    let (status, out, _) = dir.run(&["mihomo", "-d", ".", "-t"]);
    assert!(status == 0 && out.contains("it is fetched when this starts"), "{out}");
    let (status, out, err) = dir.run(&["check", "config.yaml"]);
    assert!(status == 0 && out.contains("it is fetched when this starts"), "{out}{err}");
    assert!(!file.exists() && server.requests() == 0);

    let (running, port) = start(&dir, &text);
    let reaches =
        || open(port, "echo.test", target.port()).is_some_and(|mut stream| ask(&mut stream) == "who");
    assert!(!reaches(), "{}", running.log());
    assert_eq!(fs::read(&file).unwrap(), sites("LIST", "echo.test"));
    let shown = clash_api::get(control, "/configs");
    assert!(shown["geox-url"]["geo-site"].as_str().unwrap().ends_with("/s.dat?token=hunter2"), "{shown}");
    assert!(!clash_api::get(control, "/providers/rules").to_string().contains("GeoSite"));

    let update = || clash_api::ask(control, "POST", "/configs/geo", &[], "");
    assert_eq!((update().status, server.requests()), (204, 2));
    assert!(server.requests.lock().unwrap()[1].to_lowercase().contains("if-none-match: "));
    server.set(database("LIST", "another.test"));
    assert_eq!(update().status, 204);
    wait_for("the other database", || running.log(), reaches);
    for (script, wants) in [
        (Script::Status(500), "the server answered with status 500"),
        (Script::Huge, "longer than 134217728 bytes"),
        (Script::Cut("x".into()), "bad answer"),
        (Script::Document("<html><body>please log in</body></html>".into()), "GeoSite.dat: "),
        (database("MORE", "echo.test"), "the database has no list list"),
    ] {
        server.set(script);
        let answer = update();
        assert!(answer.status == 500 && answer.body.contains(wants), "{} {}", answer.status, answer.body);
        assert_eq!(fs::read(&file).unwrap(), sites("LIST", "another.test"), "{wants}");
        assert!(reaches(), "{wants}");
    }
    assert!(memory(&running) < 200 << 20, "{} bytes", memory(&running));
    assert!(!running.log().contains("hunter2"), "{}", running.log());
    drop(running);

    // The file that is there is used, and the server is not asked.
    let before = server.requests();
    let (running, _) = start(&dir, &text);
    assert_eq!(server.requests(), before, "{}", running.log());
}

/// By time a database is fetched when it is older than the interval.
#[test]
fn databases_are_kept_up_to_date() {
    let (server, target) = (Server::start(database("LIST", "echo.test")), echo());
    let dir = Dir::new();
    let file = dir.path().join("geosite.DAT");
    fs::write(&file, sites("LIST", "another.test")).unwrap();
    let two_hours_ago = std::time::SystemTime::now() - Duration::from_secs(7200);
    fs::File::options().write(true).open(&file).unwrap().set_modified(two_hours_ago).unwrap();
    let keys = |hours: u32| {
        config(&format!(
            "geox-url: {{geosite: 'http://{}/'}}\ngeo-auto-update: true\ngeo-update-interval: {hours}\n",
            server.at
        ))
    };
    let (running, _) = start(&dir, &keys(3));
    assert_eq!(server.requests(), 0);
    drop(running);
    let (running, port) = start(&dir, &keys(1));
    let is_refused = || {
        let stream = open(port, "echo.test", target.port());
        stream.is_none_or(|mut stream| ask(&mut stream) != "who")
    };
    wait_for("the newer database", || running.log(), is_refused);
    // It is saved once it is in use.
    let is_saved = || fs::read(&file).unwrap() == sites("LIST", "echo.test");
    wait_for("the newer database in its file", || running.log(), is_saved);
}

/// Without the database nothing starts: the rule that needs it is named, and why it is not there.
#[test]
fn databases_that_cannot_be_had() {
    let server = Server::start(Script::Status(500));
    let dir = Dir::new();
    let file = dir.path().join("GeoSite.dat");
    let begin = |text: &str| {
        dir.file("config.yaml", text);
        dir.run(&["mihomo", "-d", "."])
    };
    let (status, out, _) = begin(&config(""));
    let rule = "config.yaml:4:3: rules[1]: GEOSITE rules need GeoSite.dat in ., which is not there";
    assert!(status == 1 && out.contains(rule), "{out}");
    assert!(out.contains("geo-auto-update: true"), "{out}");
    let text = config(&format!("geox-url: {{geosite: 'http://{}/?token=hunter2'}}\n", server.at));
    for (script, wants) in [
        (Script::Status(500), "cannot be fetched: the server answered with status 500"),
        (Script::Cut("x".into()), "cannot be fetched: bad answer"),
        (Script::Document("<html><body>please log in</body></html>".into()), "cannot be fetched: "),
        (database("MORE", "echo.test"), "cannot be fetched: the database has no list list"),
    ] {
        server.set(script);
        let (status, out, err) = begin(&text);
        let place = "config.yaml:5:3: rules[1]: GEOSITE rules need GeoSite.dat";
        assert!(status == 1 && out.contains(place) && out.contains(wants), "{wants}: {out}");
        assert!(!file.exists() && !out.contains("hunter2") && !err.contains("hunter2"), "{out}{err}");
    }
    // A file that is none is replaced by one that is; without a server it stays.
    fs::write(&file, "no database").unwrap();
    assert_eq!(begin(&text).0, 1);
    assert_eq!(fs::read(&file).unwrap(), b"no database");
    server.set(database("LIST", "echo.test"));
    drop(start(&dir, &text));
    assert_eq!(fs::read(&file).unwrap(), sites("LIST", "echo.test"));
}

/// A server that hangs keeps nobody waiting for ever.
#[test]
#[ignore = "waits for 60 s"]
fn a_server_of_databases_that_hangs() {
    let server = Server::start(Script::Hang);
    let dir = Dir::new();
    dir.file("config.yaml", &config(&format!("geox-url: {{geosite: 'http://{}/'}}\n", server.at)));
    let begun = Instant::now();
    let (status, out, _) = dir.run(&["mihomo", "-d", "."]);
    assert!(status == 1 && out.contains("cannot be fetched: not there after "), "{out}");
    assert!(begun.elapsed() < Duration::from_secs(80), "{:?}", begun.elapsed());
}
