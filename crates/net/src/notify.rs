//! Messages to the manager that has started this process, as `sd_notify(3)` describes them: datagrams with lines
//! `NAME=VALUE` to the socket that `NOTIFY_SOCKET` names, a path or an abstract name behind `@`.

use std::env::var;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use crate::handover::{Kept, Label};

/// Time for the manager to take a socket.
const STORE: Duration = Duration::from_secs(1);

/// A way to the manager.
#[derive(Debug)]
pub struct Notify {
    socket: UnixDatagram,
    to: SocketAddr,
    watchdog: Option<Duration>,
}

impl Notify {
    /// The manager that the environment names; `None` if there is none.
    ///
    /// # Errors
    /// When the name is none of a socket, or there cannot be another socket.
    pub fn from_environment() -> io::Result<Option<Self>> {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let number = |name| var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let micros = number("WATCHDOG_USEC").filter(|micros| *micros > 0 && is_ours);
        Self::to(&name, micros.map(Duration::from_micros)).map(Some)
    }

    fn to(name: &OsString, watchdog: Option<Duration>) -> io::Result<Self> {
        let bytes = name.as_encoded_bytes();
        let to = match bytes.split_first() {
            #[cfg(target_os = "linux")]
            Some((b'@', name)) => {
                use std::os::linux::net::SocketAddrExt as _;
                SocketAddr::from_abstract_name(name)?
            }
            Some((b'/', _)) => SocketAddr::from_pathname(name)?,
            _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "NOTIFY_SOCKET is no path")),
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, to, watchdog })
    }

    /// Time within which the manager wants to hear [`Notify::alive`], over and over; `None` if it does not care.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// The process serves, and `status` says more.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", status.replace('\n', " ")));
    }

    /// The process takes a new configuration; [`Notify::ready`] comes next.
    pub fn reloading(&self) {
        let micros = adit_sys::process::monotonic_us();
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
    }

    /// The process begins to end.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Another process serves from now on in the place of this one, which has been told of it last: `main` is its number.
    pub fn is_followed_by(&self, main: u32, status: &str) {
        self.send(&format!("MAINPID={main}\nREADY=1\nSTATUS={}", status.replace('\n', " ")));
    }

    /// Leaves a copy of a listening socket with the manager, which passes it to the next process of the service
    /// (`FileDescriptorStoreMax=` of systemd).
    ///
    /// # Errors
    /// The system's error.
    pub fn store(&self, kept: &Kept) -> io::Result<()> {
        let text = format!("FDSTORE=1\nFDNAME={}", kept.label());
        // A datagram with descriptors goes to the peer of a socket.
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&self.to)?;
        socket.set_write_timeout(Some(STORE))?;
        adit_sys::pass::send_with(&socket, text.as_bytes(), &[kept.as_fd()]).map(drop)
    }

    /// Has the manager close what it keeps under this name.
    pub fn forget(&self, label: Label) {
        self.send(&format!("FDSTOREREMOVE=1\nFDNAME={label}"));
    }

    /// The process works.
    pub fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    /// A manager that is gone or busy loses the message.
    fn send(&self, text: &str) {
        if let Err(error) = self.socket.send_to_addr(text.as_bytes(), &self.to) {
            tracing::debug!(%error, "the service manager was not told");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_go_to_the_store_and_out_of_it() {
        let path = std::env::temp_dir().join(format!("adit-store-{}", std::process::id()));
        let manager = UnixDatagram::bind(&path).unwrap();
        let notify = Notify::to(&path.clone().into(), None).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let label = Label { kind: crate::handover::Kind::Streams, key: 7, index: 1 };
        notify.store(&Kept::new(label, &listener).unwrap()).unwrap();
        let (mut bytes, mut passed) = ([0; 200], Vec::new());
        let len = adit_sys::pass::receive_with(&manager, &mut bytes, &mut passed).unwrap();
        let text = String::from_utf8_lossy(&bytes[..len]).into_owned();
        assert_eq!(text, format!("FDSTORE=1\nFDNAME={label}"));
        let stored = std::net::TcpListener::from(passed.pop().unwrap());
        assert_eq!(stored.local_addr().unwrap(), listener.local_addr().unwrap());
        notify.forget(label);
        notify.is_followed_by(17, "2\n3");
        for text in [format!("FDSTOREREMOVE=1\nFDNAME={label}"), "MAINPID=17\nREADY=1\nSTATUS=2 3".into()] {
            let len = manager.recv(&mut bytes).unwrap();
            assert_eq!(String::from_utf8_lossy(&bytes[..len]), text);
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn messages_arrive_by_path_and_by_name() {
        let name = format!("adit-notify-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let by_path = UnixDatagram::bind(&path).unwrap();
        #[cfg(target_os = "linux")]
        let by_name = {
            use std::os::linux::net::SocketAddrExt as _;
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap()
        };
        let mut managers = vec![(path.clone().into_os_string(), by_path)];
        #[cfg(target_os = "linux")]
        managers.push((format!("@{name}").into(), by_name));
        for (to, manager) in managers {
            let notify = Notify::to(&to, None).unwrap();
            notify.ready("2 inbounds\nopen");
            notify.reloading();
            notify.stopping();
            let mut buffer = [0; 256];
            let mut next = || {
                let len = manager.recv(&mut buffer).unwrap();
                String::from_utf8_lossy(&buffer[..len]).into_owned()
            };
            assert_eq!(next(), "READY=1\nSTATUS=2 inbounds open");
            let reloading = next();
            let micros = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
            assert!(micros.parse::<u64>().unwrap() > 0);
            assert_eq!(next(), "STOPPING=1");
        }
        std::fs::remove_file(path).unwrap();
        assert!(Notify::to(&"relative".into(), None).is_err());
    }
}
