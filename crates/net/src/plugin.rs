//! Programs that carry a stream in our place (SIP003): started, watched, started again, and never left behind.
//!
//! ```text
//!   client   adit ──▶ LOCAL, where the plugin listens ──▶ REMOTE, the server
//!   server   REMOTE, where the plugin listens ──▶ LOCAL, where adit listens
//! ```
//!
//! One thread starts all of them and lives as long as they may: when the process ends, however that happens, the
//! kernel tells them (see [`adit_sys::process::end_with_parent`]).

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::pending;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use adit_model::{self as model, Tag};
use adit_proto::wire::Target;
use adit_sys::user::User;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use crate::child;
use crate::holder::is_held;
use crate::listen::free_port;
use crate::rt::{self, Cores, Stop, Stopper};

/// Pause before a plugin that has ended is started again; it doubles up to the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));
/// A plugin that has run for this long has not failed because of its options: the pause is the first one again.
const STABLE: Duration = Duration::from_secs(60);
/// A plugin that does not listen by then may still come; `sslocal` gives up at the same time.
const READY: Duration = Duration::from_secs(3);
/// Time to end in order before it is killed.
const GRACE: Duration = Duration::from_secs(1);
/// Last output of a plugin is read for this long after its end.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// Well-known plugins, and where they come from.
const PACKAGES: &[(&str, &str)] = &[
    ("obfs-local", "the package simple-obfs of Debian; adit is one too: link it to that name"),
    ("obfs-server", "the package simple-obfs of Debian; adit is one too: link it to that name"),
    ("gq-client", "adit: link it to that name"),
    ("gq-server", "adit: link it to that name"),
    ("v2ray-plugin", "the package shadowsocks-v2ray-plugin of Debian, where it is called ss-v2ray-plugin"),
    ("ss-v2ray-plugin", "the package shadowsocks-v2ray-plugin of Debian"),
    ("xray-plugin", "the releases of github.com/teddysun/xray-plugin"),
    ("kcptun-client", "adit: link it to that name"),
    ("kcptun-server", "adit: link it to that name"),
    ("ck-client", "the releases of github.com/cbeuw/Cloak"),
    ("ck-server", "the releases of github.com/cbeuw/Cloak"),
];
/// Longest line of a plugin that is logged in one piece, in bytes.
const MAX_LINE: usize = 1024;

/// The end that a plugin is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// It connects to `server`.
    Client {
        /// The server, its name not resolved.
        server: Target,
    },
    /// It listens in our place.
    Server {
        /// Address that clients connect to.
        public: SocketAddr,
        /// Address that we listen on.
        local: SocketAddr,
    },
}

/// Address that a client's plugin listens on. It may move when the plugin is started again.
#[derive(Debug, Clone, Default)]
pub struct PluginPort(Arc<AtomicU16>);

impl PluginPort {
    /// The address, at this moment.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), self.0.load(Ordering::Relaxed))
    }
}

/// Follows a plugin that ends and comes back, on the thread of the plugins.
pub trait Observer: Send + Sync {
    /// It has ended and will be started again; why, in one line.
    fn ended(&self, name: &Tag, why: &str);

    /// It listens.
    fn started(&self, name: &Tag);
}

/// The plugins of this process. Dropping it ends them.
pub struct Plugins {
    stopper: Stopper,
    stop: Stop,
    host: Option<Host>,
    user: Option<Arc<str>>,
    observer: Option<Arc<dyn Observer>>,
}

impl fmt::Debug for Plugins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugins").field("user", &self.user).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Host {
    orders: mpsc::UnboundedSender<Order>,
    thread: JoinHandle<()>,
}

struct Order {
    job: Job,
    ready: std::sync::mpsc::Sender<io::Result<()>>,
}

/// One plugin to be kept running.
struct Job {
    name: Tag,
    plugin: model::Plugin,
    role: Role,
    port: PluginPort,
    user: Option<Arc<str>>,
    observer: Option<Arc<dyn Observer>>,
}

impl Plugins {
    /// None yet; all of them will run as `user`, by name or number, or as the user of this process.
    pub fn new(user: Option<&str>) -> Self {
        let (stopper, stop) = Stopper::new();
        Self { stopper, stop, host: None, user: user.map(Into::into), observer: None }
    }

    /// Plugins that are started from now on are followed by `observer`, which writes about those that end.
    #[must_use]
    pub fn observed_by(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Starts a plugin for the inbound or outbound `name` and keeps it running. Returns when it listens for all of its
    /// transports, or has had the time to; for a client, with where that is.
    ///
    /// # Errors
    /// When the program cannot be started, or ends at once, with the last line that it wrote.
    pub fn start(&mut self, name: &Tag, plugin: &model::Plugin, role: Role) -> io::Result<PluginPort> {
        let port = PluginPort::default();
        let job = Job {
            name: name.clone(),
            plugin: plugin.clone(),
            role,
            port: port.clone(),
            user: self.user.clone(),
            observer: self.observer.clone(),
        };
        let (ready, started) = std::sync::mpsc::channel();
        let dead = || io::Error::other("the thread that starts plugins has died");
        self.host()?.orders.send(Order { job, ready }).map_err(|_| dead())?;
        started.recv().map_err(|_| dead())??;
        Ok(port)
    }

    /// Plugins that end from now on are not started again.
    pub fn drain(&self) {
        self.stopper.drain();
    }

    fn host(&mut self) -> io::Result<&Host> {
        if self.host.is_none() {
            let (orders, inbox) = mpsc::unbounded_channel();
            let stop = self.stop.clone();
            let run = move || {
                if let Err(error) = Cores::block_on(run_host(inbox, stop)) {
                    warn!(%error, "no event loop for plugins");
                }
            };
            let thread = std::thread::Builder::new().name("adit-plugins".into()).spawn(run)?;
            self.host = Some(Host { orders, thread });
        }
        Ok(self.host.as_ref().expect("just made"))
    }
}

impl Drop for Plugins {
    fn drop(&mut self) {
        self.stopper.end();
        if let Some(Host { orders, thread }) = self.host.take() {
            drop(orders);
            drop(thread.join());
        }
    }
}

async fn run_host(mut inbox: mpsc::UnboundedReceiver<Order>, stop: Stop) {
    let mut all = tokio::task::JoinSet::new();
    while let Some(Order { job, ready }) = inbox.recv().await {
        all.spawn_local(supervise(job, ready, stop.clone()));
    }
    while all.join_next().await.is_some() {}
}

/// Keeps one plugin running until told to end.
async fn supervise(job: Job, ready: std::sync::mpsc::Sender<io::Result<()>>, stop: Stop) {
    let mut first = Some(ready);
    let mut pause = PAUSE.0;
    let mut tried = false;
    loop {
        let since = rt::now();
        let end = Box::pin(run_once(&job, &mut first, stop.clone())).await;
        if matches!(end, End::Told) {
            return;
        }
        if matches!((&first, &job.role, &end), (Some(_), Role::Client { .. }, End::Exited(..))) && !tried {
            // Its port may have become somebody else's before it had it: the next one is another.
            tried = true;
            job.port.0.store(0, Ordering::Relaxed);
            continue;
        }
        if let Some(ready) = first.take() {
            // The caller shows it.
            let hint = if end.is_missing() { missing(&job.plugin.program) } else { String::new() };
            drop(ready.send(Err(io::Error::other(format!("plugin {}: {end}{hint}", job.plugin.program)))));
            return;
        }
        if stop.is_draining() {
            return;
        }
        let ran_for = rt::now().saturating_duration_since(since);
        if ran_for >= STABLE {
            pause = PAUSE.0;
        }
        if ran_for < READY {
            // It may have been the port.
            job.port.0.store(0, Ordering::Relaxed);
        }
        let program = &*job.plugin.program;
        match &job.observer {
            Some(observer) => {
                let seconds = pause.as_secs_f32();
                let why = format!("plugin {program} has ended: {end}; it is started again in {seconds} s");
                observer.ended(&job.name, &why);
            }
            None => warn!(name = &*job.name, plugin = program, %end, again_in = ?pause, "plugin has ended"),
        }
        let mut told = stop.clone();
        rt::race(told.draining(), rt::sleep(pause)).await;
        if stop.is_draining() {
            return;
        }
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// The way in which a plugin ended.
#[derive(Debug)]
enum End {
    /// We told it to.
    Told,
    /// It could not be started.
    NotStarted(io::Error),
    /// By itself, and the last that it wrote.
    Exited(ExitStatus, String),
}

impl End {
    /// Whether there is no such program.
    fn is_missing(&self) -> bool {
        matches!(self, Self::NotStarted(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

/// The place where a missing program was looked for, and the package that has it.
fn missing(program: &str) -> String {
    let place = if program.contains('/') { "at this path" } else { "in the folders of PATH" };
    let file = program.rsplit('/').next().unwrap_or(program);
    let package = PACKAGES.iter().find(|(name, _)| *name == file).map(|(_, package)| *package);
    let package = package.map_or_else(String::new, |package| format!("; it is in {package}"));
    format!(" (it was looked for {place}{package})")
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told => f.write_str("told to end"),
            Self::NotStarted(error) => write!(f, "cannot be started: {error}"),
            Self::Exited(status, line) if line.is_empty() => write!(f, "{status}"),
            Self::Exited(status, line) => write!(f, "{status}, its last words: {line}"),
        }
    }
}

/// Runs a plugin once. `first` is told when it listens.
async fn run_once(
    job: &Job,
    first: &mut Option<std::sync::mpsc::Sender<io::Result<()>>>,
    mut stop: Stop,
) -> End {
    let (mut child, listens_at) = match spawn(job) {
        Ok(spawned) => spawned,
        Err(error) => return End::NotStarted(error),
    };
    info!(name = &*job.name, plugin = &*job.plugin.program, pid = child.id(), "plugin started");
    let last = RefCell::new(String::new());
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let mut lines = std::pin::pin!(async {
        let log_out = |line: &str| debug!(name = &*job.name, plugin = &*job.plugin.program, "{line}");
        let log_err = |line: &str| info!(name = &*job.name, plugin = &*job.plugin.program, "{line}");
        tokio::join!(forward(out, &last, log_out), forward(err, &last, log_err));
    });
    let announce = async {
        let listens = async {
            while !is_held(listens_at, job.plugin.transports) {
                rt::sleep(Duration::from_millis(20)).await;
            }
        };
        if rt::timeout(READY, listens).await.is_err() && cfg!(target_os = "linux") {
            warn!(name = &*job.name, plugin = &*job.plugin.program, at = %listens_at, "plugin does not listen yet");
        }
        if let Some(ready) = first.take() {
            drop(ready.send(Ok(())));
        } else if let Some(observer) = &job.observer {
            observer.started(&job.name);
        }
        pending::<()>().await;
    };
    let all_read = Cell::new(false);
    let reading = async {
        lines.as_mut().await;
        all_read.set(true);
        pending::<()>().await;
    };
    let status = tokio::select! {
        status = child.wait() => Some(status),
        () = stop.ending() => None,
        () = announce => None,
        () = reading => None,
    };
    match status {
        None => {
            end(&mut child).await;
            End::Told
        }
        Some(Ok(status)) => {
            if !all_read.get() {
                rt::timeout(LAST_WORDS, lines).await.ok();
            }
            End::Exited(status, last.take())
        }
        Some(Err(error)) => End::NotStarted(error),
    }
}

async fn end(child: &mut Child) {
    // `id` is there as long as the child has not been waited for.
    if let Some(pid) = child.id() {
        drop(adit_sys::process::terminate(pid));
    }
    if rt::timeout(GRACE, child.wait()).await.is_err() {
        drop(child.kill().await);
    }
}

/// Starts the program; returns with it where it will listen.
fn spawn(job: &Job) -> io::Result<(Child, SocketAddr)> {
    let Job { plugin, role, port, user, name: _, observer: _ } = job;
    let (remote, local, listens_at) = match role {
        Role::Client { server } => {
            // Free at this moment: the plugin has to open it itself. The same again, if that can be: flows of datagrams
            // go on then.
            let free = free_port(IpAddr::V4(Ipv4Addr::LOCALHOST), port.0.load(Ordering::Relaxed))?;
            port.0.store(free.port(), Ordering::Relaxed);
            ((server.host.to_string(), server.port), free, free)
        }
        Role::Server { public, local } => ((public.ip().to_string(), public.port()), *local, *public),
    };
    let mut command = Command::from(child::command(&*plugin.program));
    command
        .args(plugin.args.iter().map(|arg| &**arg))
        .env("SS_REMOTE_HOST", remote.0)
        .env("SS_REMOTE_PORT", remote.1.to_string())
        .env("SS_LOCAL_HOST", local.ip().to_string())
        .env("SS_LOCAL_PORT", local.port().to_string())
        .env_remove("SS_PLUGIN_OPTIONS")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    // A terminal's interrupt is for us: the plugin is needed until the last connection has ended.
    #[cfg(unix)]
    command.process_group(0);
    if !plugin.options.is_empty() {
        command.env("SS_PLUGIN_OPTIONS", &*plugin.options);
    }
    if let Some(user) = user {
        User::find(user)?.run_child(command.as_std_mut());
    }
    adit_sys::process::end_with_parent(command.as_std_mut());
    Ok((command.spawn()?, listens_at))
}

/// Passes what a plugin writes on, line by line, and keeps the last one.
async fn forward(pipe: Option<impl AsyncRead + Unpin>, last: &RefCell<String>, log: impl Fn(&str)) {
    let Some(mut pipe) = pipe else { return };
    let mut take = |line: &str| {
        log(line);
        line.clone_into(&mut last.borrow_mut());
    };
    let mut lines = Lines::default();
    let mut buffer = [0; 1024];
    while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
        lines.feed(&buffer[..read], &mut take);
    }
    lines.finish(&mut take);
}

/// Cuts bytes into lines of bounded length.
#[derive(Debug, Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn feed(&mut self, bytes: &[u8], take: &mut impl FnMut(&str)) {
        for byte in bytes {
            if *byte != b'\n' {
                self.0.push(*byte);
            }
            if *byte == b'\n' || self.0.len() >= MAX_LINE {
                self.finish(take);
            }
        }
    }

    fn finish(&mut self, take: &mut impl FnMut(&str)) {
        let line = String::from_utf8_lossy(&self.0).replace(char::is_control, " ");
        self.0.clear();
        let line = line.trim();
        if !line.is_empty() {
            take(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    fn shell(script: &str) -> model::Plugin {
        model::Plugin {
            program: "sh".into(),
            options: "a=b;c".into(),
            args: vec!["-c".into(), script.into()],
            transports: model::Transports::Tcp,
        }
    }

    fn server() -> Role {
        // Nobody listens there; a plugin counts as ready after a while.
        let free = free_port(IpAddr::V4(Ipv4Addr::LOCALHOST), 0).unwrap();
        Role::Server { public: free, local: "127.0.0.1:9".parse().unwrap() }
    }

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("adit-plugin-{name}-{}", std::process::id()));
        drop(fs::remove_file(&path));
        path
    }

    fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
        for _ in 0..6000 {
            if let Some(found) = look() {
                return found;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("waited in vain");
    }

    fn is_running(pid: &str) -> bool {
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    }

    #[test]
    fn lines_are_cut() {
        let mut seen = Vec::new();
        let mut take = |line: &str| seen.push(line.to_owned());
        let mut lines = Lines::default();
        lines.feed(b"one\r\ntw", &mut take);
        lines.feed(b"o\n\n \x1b[31mred\xff", &mut take);
        lines.feed(&[b'x'; 2 * MAX_LINE], &mut take);
        lines.finish(&mut take);
        assert_eq!(seen[..2], ["one", "two"]);
        assert!(seen[2].starts_with("[31mred\u{fffd}xxx"), "{}", seen[2]);
        assert!(seen.iter().all(|line| line.len() <= MAX_LINE + 2));
    }

    #[test]
    #[ignore = "needs root"]
    fn it_runs_as_the_user_that_is_named() {
        let (file, written) = (scratch("user"), |file: &PathBuf| fs::read_to_string(file).ok());
        fs::write(&file, "").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        fs::set_permissions(&file, mode).unwrap();
        let mut plugins = Plugins::new(Some("nobody"));
        let script = format!("echo $(id -un) $(id -G) $$ > {}; exec sleep 1000", file.display());
        plugins.start(&"s".into(), &shell(&script), server()).unwrap();
        let line = wait_for(|| written(&file).filter(|line| line.ends_with('\n')));
        let [user, group, pid] = line.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{line}") };
        assert!(user == "nobody" && group != "0" && is_running(pid), "{line}");
        drop(plugins);
        wait_for(|| (!is_running(pid)).then_some(()));
        fs::remove_file(&file).unwrap();
    }

    #[test]
    fn what_does_not_start_is_an_error() {
        let mut plugins = Plugins::new(None);
        let missing = model::Plugin { program: "no-such-plugin".into(), ..shell("") };
        let error = plugins.start(&"x".into(), &missing, server()).unwrap_err().to_string();
        assert!(error.starts_with("plugin no-such-plugin: cannot be started: "), "{error}");
        let error = plugins.start(&"x".into(), &shell("echo bad option >&2; exit 3"), server()).unwrap_err();
        assert_eq!(error.to_string(), "plugin sh: exit status: 3, its last words: bad option");
    }

    #[test]
    fn the_environment_says_both_ends_and_the_end_is_clean() {
        let path = scratch("env");
        let script =
            format!("env >{0}.new; echo PID=$$ >>{0}.new; mv {0}.new {0}; exec sleep 600", path.display());
        let mut plugins = Plugins::new(None);
        let target = Target::new(b"proxy.example", 8388).unwrap();
        let port = plugins.start(&"x".into(), &shell(&script), Role::Client { server: target }).unwrap();
        let text = wait_for(|| fs::read_to_string(&path).ok());
        for wanted in [
            "SS_REMOTE_HOST=proxy.example",
            "SS_REMOTE_PORT=8388",
            "SS_LOCAL_HOST=127.0.0.1",
            &format!("SS_LOCAL_PORT={}", port.addr().port()),
            "SS_PLUGIN_OPTIONS=a=b;c",
        ] {
            assert!(text.lines().any(|line| line == wanted), "{wanted}\n{text}");
        }
        let pid = text.lines().find_map(|line| line.strip_prefix("PID=")).unwrap().to_owned();
        assert!(is_running(&pid));
        drop(plugins);
        assert!(!is_running(&pid));
        drop(fs::remove_file(&path));
    }

    #[test]
    fn one_that_ends_is_started_again() {
        let path = scratch("again");
        let script = format!("echo $$ >>{}; exec sleep 600", path.display());
        let mut plugins = Plugins::new(None);
        plugins.start(&"x".into(), &shell(&script), server()).unwrap();
        let pids = |count: usize| {
            let read = || fs::read_to_string(&path).ok().filter(|text| text.lines().count() >= count);
            wait_for(read).lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let first = pids(1).remove(0);
        adit_sys::process::terminate(first.parse().unwrap()).unwrap();
        let second = pids(2).remove(1);
        assert!(is_running(&second) && !is_running(&first));
        plugins.drain();
        adit_sys::process::terminate(second.parse().unwrap()).unwrap();
        wait_for(|| (!is_running(&second)).then_some(()));
        // It would be started again within this time.
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(pids(2).len(), 2, "not while draining");
        drop(plugins);
        drop(fs::remove_file(&path));
    }

    /// The process that [`no_orphan_is_left_by_a_kill`] kills.
    #[test]
    #[ignore = "the other half of another test"]
    fn host_of_a_plugin() {
        let Some(path) = std::env::var_os("ADIT_TEST_PLUGIN_PID") else { return };
        let script = format!("echo $$ >{}; exec sleep 600", PathBuf::from(path).display());
        let mut plugins = Plugins::new(None);
        plugins.start(&"x".into(), &shell(&script), server()).unwrap();
        // Until it is killed.
        std::thread::sleep(Duration::from_secs(600));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn no_orphan_is_left_by_a_kill() {
        let path = scratch("orphan");
        let mut host = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "plugin::tests::host_of_a_plugin"])
            .env("ADIT_TEST_PLUGIN_PID", &path)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = wait_for(|| fs::read_to_string(&path).ok().filter(|pid| pid.ends_with('\n')));
        assert!(is_running(pid.trim()));
        host.kill().unwrap();
        host.wait().unwrap();
        wait_for(|| (!is_running(pid.trim())).then_some(()));
        drop(fs::remove_file(&path));
    }

    #[test]
    fn one_that_does_not_listen_to_reason_is_killed() {
        let path = scratch("stubborn");
        let script = format!("trap '' TERM; echo $$ >{}; while :; do sleep 1; done", path.display());
        let mut plugins = Plugins::new(None);
        plugins.start(&"x".into(), &shell(&script), server()).unwrap();
        let pid = wait_for(|| fs::read_to_string(&path).ok().filter(|pid| pid.ends_with('\n')));
        drop(plugins);
        assert!(!is_running(pid.trim()));
        drop(fs::remove_file(&path));
    }
}
