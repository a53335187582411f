//! Folders, processes and peers that do not outlive their test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// The version that the program prints.
pub(crate) const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("ADIT_PROFILE"), ")");

/// Longest wait for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The pre-shared key of the tests.
pub(crate) const PSK: &str = "TestLoopbackPsk0123456789abcdefg";

/// A fresh folder, removed when dropped.
pub(crate) struct Dir(PathBuf);

impl Dir {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let dir = std::env::temp_dir();
        // A run that was killed may have left a folder of the same name.
        for _ in 0..1000 {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = dir.join(format!("adit-test-{}-{count}", std::process::id()));
            if std::fs::create_dir(&path).is_ok() {
                return Self(path);
            }
        }
        panic!("no folder can be made in {}", dir.display());
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file and gives its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        // Many hold keys, and a file that others may read is worth a warning.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// A command that runs here.
    pub(crate) fn command(&self, program: impl AsRef<Path>, args: &[&str]) -> Command {
        let mut command = Command::new(program.as_ref());
        command.args(args).current_dir(&self.0).stdin(Stdio::null());
        // The environment of the person who runs the tests changes no output and no connection.
        for name in [
            "NO_COLOR",
            "CLICOLOR_FORCE",
            "COLUMNS",
            "RUST_LOG",
            "http_proxy",
            "HTTP_PROXY",
            "all_proxy",
            "ALL_PROXY",
        ] {
            command.env_remove(name);
        }
        // The counters of users are kept with the test.
        command.env_remove("STATE_DIRECTORY").env("XDG_STATE_HOME", &self.0);
        // So are the sockets, and nobody is told of it.
        command.env_remove("RUNTIME_DIRECTORY").env("XDG_RUNTIME_DIR", &self.0).env_remove("NOTIFY_SOCKET");
        command
    }

    /// adit, here.
    pub(crate) fn adit(&self, args: &[&str]) -> Command {
        self.command(env!("CARGO_BIN_EXE_adit"), args)
    }

    /// Runs adit to its end: status, standard output, standard error.
    pub(crate) fn run(&self, args: &[&str]) -> (i32, String, String) {
        finish(self.adit(args), "")
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// A link of that name to adit.
pub(crate) fn link(dir: &Dir, name: &str) -> PathBuf {
    let path = dir.path().join(name);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_adit"), &path).unwrap();
    path
}

/// Runs a command to its end: status, standard output, standard error.
pub(crate) fn finish(mut command: Command, input: &str) -> (i32, String, String) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let pid = child.id();
    child.stdin.take().unwrap().write_all(input.as_bytes()).ok();
    let (done, over) = std::sync::mpsc::channel();
    thread::spawn(move || done.send(child.wait_with_output()));
    let Ok(output) = over.recv_timeout(PATIENCE) else {
        signal(pid, "KILL");
        panic!("{command:?} does not end");
    };
    let Output { status, stdout, stderr } = output.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap_or(-1), text(stdout), text(stderr))
}

/// Sends a signal by name.
pub(crate) fn signal(pid: u32, name: &str) {
    let status = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status().unwrap();
    assert!(status.success());
}

/// A process that runs until it is told otherwise; killed when dropped.
pub(crate) struct Running {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    readers: Vec<thread::JoinHandle<()>>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let streams: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        let follow = |stream| {
            let lines = lines.clone();
            thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    lines.lock().unwrap().push(line);
                }
            })
        };
        let readers = streams.into_iter().map(follow).collect();
        Self { child, lines, readers }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything written so far.
    pub(crate) fn log(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }

    /// The first line that holds `text`, once it is there.
    pub(crate) fn line(&self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.lines.lock().unwrap().iter().find(|line| line.contains(text)).cloned();
            if let Some(line) = found {
                return line;
            }
            assert!(Instant::now() < deadline, "no line with {text:?} in:\n{}", self.log());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The address that the first `listening` line names.
    pub(crate) fn address(&self) -> SocketAddr {
        let line = self.line("listening");
        let rest = line.split_once("address").unwrap_or_else(|| panic!("{line}")).1;
        let rest = rest.trim_start_matches(['"', ':', '=']);
        let end = rest.find([' ', '"', '}']).unwrap_or(rest.len());
        rest[..end].parse().unwrap_or_else(|_| panic!("{line}"))
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Whether it has not ended.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for the end: the status, and everything that was written.
    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        let deadline = Instant::now() + PATIENCE;
        while self.is_running() {
            assert!(Instant::now() < deadline, "it does not end:\n{}", self.log());
            thread::sleep(Duration::from_millis(5));
        }
        let status = self.child.wait().unwrap();
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        (status, self.log())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Bytes of memory that a program has, resident.
pub(crate) fn memory(running: &Running) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// The head of a request or an answer of HTTP; what follows it stays unread.
pub(crate) fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// A target that sends back all bytes; gone with the process of the tests.
pub(crate) fn echo() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut reader = stream.try_clone().unwrap();
                let mut writer = stream;
                std::io::copy(&mut reader, &mut writer).ok();
                writer.shutdown(std::net::Shutdown::Write).ok();
            });
        }
    });
    address
}

/// A connection through a SOCKS5 proxy; `host` is sent as a name unless it is an IPv4 address.
pub(crate) fn socks5(proxy: SocketAddr, host: &str, port: u16) -> TcpStream {
    let mut stream = TcpStream::connect(proxy).unwrap();
    stream.write_all(&[5, 1, 0]).unwrap();
    socks5_on(stream, host, port)
}

/// The same over a connection whose greeting has been sent.
pub(crate) fn socks5_on(mut stream: TcpStream, host: &str, port: u16) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let mut choice = [0; 2];
    stream.read_exact(&mut choice).unwrap();
    assert_eq!(choice, [5, 0]);
    let mut request = vec![5, 1, 0];
    match host.parse::<Ipv4Addr>() {
        Ok(ip) => {
            request.push(1);
            request.extend(ip.octets());
        }
        Err(_) => {
            request.extend([3, u8::try_from(host.len()).unwrap()]);
            request.extend(host.as_bytes());
        }
    }
    request.extend(port.to_be_bytes());
    stream.write_all(&request).unwrap();
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[..2], [5, 0]);
    stream
}

/// Sends bytes and expects them back.
pub(crate) fn round_trip(stream: &mut TcpStream, len: usize) {
    let writer = stream.try_clone().unwrap();
    round_trip_over(stream, writer, len);
}

/// The same over the two halves of any stream.
pub(crate) fn round_trip_over(reader: &mut impl Read, mut writer: impl Write + Send + 'static, len: usize) {
    let bytes: Vec<u8> = (0..len).map(|i| u8::try_from(i * 31 % 251).unwrap()).collect();
    let sent = bytes.clone();
    let writing = thread::spawn(move || writer.write_all(&sent).unwrap());
    let mut back = vec![0; len];
    reader.read_exact(&mut back).unwrap();
    writing.join().unwrap();
    assert!(back == bytes, "other bytes came back");
}

/// Tells a test that [`within_namespace`] runs it.
const WITHIN: &str = "ADIT_TEST_WITHIN_NAMESPACE";

/// Whether [`within_namespace`] runs the calling test. All ignored tests run now and then, and then this one is nothing by
/// itself.
pub(crate) fn is_within_namespace() -> bool {
    std::env::var_os(WITHIN).is_some()
}

/// Repeats a test, by its whole name, in a network namespace of its own, with these commands before; false if this machine does
/// not let us.
pub(crate) fn within_namespace(test: &str, before: &str) -> bool {
    let me = std::env::current_exe().unwrap();
    let script = format!("{before} && exec \"$0\" --exact {test} --ignored --nocapture");
    let mut command = Command::new("unshare");
    let output = command.args(["-n", "sh", "-c", &script]).arg(me).env(WITHIN, "1").output();
    let Ok(output) = output else { return false };
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if text.contains("running 1 test") {
        assert!(output.status.success(), "{text}");
        return true;
    }
    false
}
