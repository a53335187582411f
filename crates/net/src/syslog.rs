//! The system's log: one datagram a line (RFC 3164, as syslog(3) of Linux writes it to `/dev/log`).

use std::io;
use std::os::unix::net::UnixDatagram;

/// Socket of the system's log.
const PATH: &str = "/dev/log";
/// Facility "system daemons".
const DAEMON: u8 = 3;
/// Longest line that every log takes, in bytes (RFC 3164, 4.1: 1024 with what stands in front).
const MAX_LINE: usize = 960;

/// A way to the system's log.
#[derive(Debug)]
pub struct Syslog {
    socket: UnixDatagram,
    path: Box<str>,
    tag: String,
}

impl Syslog {
    /// A way to the log, for lines of the program `name`.
    ///
    /// # Errors
    /// When nobody listens there.
    pub fn open(name: &str) -> io::Result<Self> {
        Self::at(PATH, name)
    }

    fn at(path: &str, name: &str) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        // Connecting tells whether somebody is there; a log that is started again is found by its path.
        UnixDatagram::unbound()?.connect(path)?;
        Ok(Self { socket, path: path.into(), tag: format!("{name}[{}]", std::process::id()) })
    }

    /// Writes a line of this severity, 0 (emergency) to 7 (debug). A line too long is cut; a log that is full or gone
    /// loses it.
    pub fn write(&self, severity: u8, line: &str) {
        let mut end = line.len().min(MAX_LINE);
        while !line.is_char_boundary(end) {
            end -= 1;
        }
        let line = format!("<{}>{}: {}", DAEMON * 8 + severity.min(7), self.tag, line[..end].trim_end());
        drop(self.socket.send_to(line.as_bytes(), &*self.path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_arrive() {
        let path = std::env::temp_dir().join(format!("adit-syslog-{}", std::process::id()));
        let path = path.to_str().unwrap();
        let log = UnixDatagram::bind(path).unwrap();
        let to = Syslog::at(path, "ss-server").unwrap();
        to.write(4, "careful\n");
        to.write(6, &"é".repeat(1000));
        let mut buffer = [0; 2048];
        let len = log.recv(&mut buffer).unwrap();
        let want = format!("<28>ss-server[{}]: careful", std::process::id());
        assert_eq!(std::str::from_utf8(&buffer[..len]), Ok(&*want));
        let len = log.recv(&mut buffer).unwrap();
        assert!(len <= 1024 && std::str::from_utf8(&buffer[..len]).is_ok());
        std::fs::remove_file(path).unwrap();
        assert!(Syslog::at(path, "x").is_err());
        to.write(4, "nobody is there");
    }
}
