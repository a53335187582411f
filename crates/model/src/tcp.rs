use std::time::Duration;

/// TCP options of the sockets of one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpOptions {
    /// Silence after which the peer is asked whether it is there, and the time between questions; whole seconds, from
    /// [`TcpOptions::MIN_KEEP_ALIVE`] to [`TcpOptions::MAX_KEEP_ALIVE`].
    pub keep_alive: Duration,
    /// Room for bytes that have not been acknowledged (`SO_SNDBUF`); otherwise as much as the system finds right.
    pub send_buffer: Option<u32>,
    /// Room for bytes that have not been read (`SO_RCVBUF`); otherwise as much as the system finds right.
    pub receive_buffer: Option<u32>,
    /// Several paths per connection where the peer can (Multipath TCP, RFC 8684).
    pub multipath: bool,
}

impl TcpOptions {
    /// Shortest [`TcpOptions::keep_alive`].
    pub const MIN_KEEP_ALIVE: Duration = Duration::from_secs(1);
    /// Longest [`TcpOptions::keep_alive`]; the limit of Linux.
    pub const MAX_KEEP_ALIVE: Duration = Duration::from_secs(32_767);
    /// Longest buffers, in bytes; the limit of Linux.
    pub const MAX_BUFFER: u32 = (i32::MAX as u32) / 2;
}

impl Default for TcpOptions {
    /// The replaced programs that are written in Go, and shadowsocks-rust, ask every 15 seconds.
    fn default() -> Self {
        Self {
            keep_alive: Duration::from_secs(15),
            send_buffer: None,
            receive_buffer: None,
            multipath: false,
        }
    }
}
