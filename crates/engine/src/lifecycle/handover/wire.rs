//! The messages between two processes: a frame of the link each, as JSON. Fingerprints of salts follow in frames of their own.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use adit_net::handover::HandoverLink;
use adit_net::udp::divert::Led;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::replay::Print;
use crate::transparent::CaptureFacts;
use crate::users::{AwayChange, Credit};

/// The version of these messages. A process talks to one of the same version alone.
pub(super) const VERSION: u32 = 1;
/// Descriptors of one message.
pub(super) const PER_MESSAGE: usize = 64;
/// Fingerprints of one frame.
const PRINTS: usize = 1 << 20;

/// Messages of the old process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "kebab-case")]
pub(super) enum Message {
    /// The first one.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// The version of the program.
        program: String,
        /// The number of its event loops, which the sockets are for.
        cores: usize,
        /// The sockets' labels; their descriptors follow in this order.
        sockets: Vec<String>,
    },
    /// The next descriptors.
    Sockets,
    /// The files may be opened.
    Stores {
        /// The key of the fingerprints of salts, if there are any.
        salts: Option<[u8; 16]>,
        /// The capture, if there is one; the descriptor of the socket that owns its table comes along where there is one.
        capture: Option<CaptureFacts>,
    },
    /// Serve from now on. The descriptors of the pairs follow, that of the link for verdicts, then the fingerprints.
    Go {
        /// The sockets for datagrams that the old process has read.
        datagrams: Vec<SocketClients>,
        /// Names with fake addresses.
        names: Vec<(u32, String)>,
        /// Frames of fingerprints.
        prints: usize,
        /// Whether the old process asks about the salts that it sees from now on.
        has_verdicts: bool,
    },
    /// The service manager knows of the new process.
    Announced,
    /// The bytes and requests of users in the old process.
    Credits {
        /// User by user.
        users: Vec<Credit>,
    },
    /// The old process has no connections left.
    Bye,
}

/// The clients of one socket for datagrams.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SocketClients {
    /// The socket's number in `Hello`.
    pub(super) socket: usize,
    /// The addresses of the clients.
    pub(super) peers: Vec<SocketAddr>,
    /// The streams behind an interface.
    #[serde(default)]
    pub(super) led: Vec<Led>,
}

/// Messages of the new process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "kebab-case")]
pub(super) enum SuccessorMessage {
    /// The configuration can run.
    Prepared,
    /// Everything is open.
    Ready {
        /// The numbers of the sockets that were taken.
        taken: Vec<usize>,
        /// Whether the capture was.
        #[serde(default)]
        has_capture: bool,
    },
    /// It accepts.
    Serving {
        /// The version of the program.
        program: String,
    },
    /// It cannot take over.
    Failed {
        /// The cause.
        cause: String,
    },
    /// Changes that concern users of the old process.
    Changes {
        /// User by user.
        users: Vec<AwayChange>,
    },
}

/// Sends one message.
pub(super) fn send(
    link: &HandoverLink,
    message: &impl Serialize,
    passed: &[BorrowedFd<'_>],
) -> io::Result<()> {
    link.send(&serde_json::to_vec(message).map_err(io::Error::other)?, passed)
}

/// Receives one message, with its descriptors.
pub(super) fn receive<T: DeserializeOwned>(
    link: &HandoverLink,
    patience: Option<Duration>,
) -> io::Result<(T, Vec<OwnedFd>)> {
    let (bytes, passed) = link.receive(patience)?;
    let message = serde_json::from_slice(&bytes).map_err(|error| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("the other process speaks another version: {error}"),
        )
    })?;
    Ok((message, passed))
}

/// Sends descriptors in messages of [`Message::Sockets`].
pub(super) fn send_all(link: &HandoverLink, passed: &[BorrowedFd<'_>]) -> io::Result<()> {
    passed.chunks(PER_MESSAGE).try_for_each(|part| send(link, &Message::Sockets, part))
}

/// Receives so many descriptors.
pub(super) fn receive_all(link: &HandoverLink, count: usize, patience: Duration) -> io::Result<Vec<OwnedFd>> {
    let mut all = Vec::new();
    while all.len() < count {
        let (message, passed) = receive(link, Some(patience))?;
        let Message::Sockets = message else { return Err(unexpected(&message)) };
        if passed.is_empty() || all.len() + passed.len() > count {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "descriptors do not match their labels"));
        }
        all.extend(passed);
    }
    Ok(all)
}

/// The number of frames for so many fingerprints.
pub(super) fn frames_of(prints: &[Print]) -> usize {
    prints.len().div_ceil(PRINTS)
}

/// Sends fingerprints.
pub(super) fn send_prints(link: &HandoverLink, prints: &[Print]) -> io::Result<()> {
    for part in prints.chunks(PRINTS) {
        let bytes: Vec<u8> = part.iter().flat_map(|print| print.emit()).collect();
        link.send(&bytes, &[])?;
    }
    Ok(())
}

/// Receives so many frames of fingerprints, and gives each to `take`.
pub(super) fn receive_prints(
    link: &HandoverLink,
    frames: usize,
    patience: Duration,
    mut take: impl FnMut(Print),
) -> io::Result<()> {
    for _ in 0..frames {
        let (bytes, _) = link.receive(Some(patience))?;
        let (prints, rest) = bytes.as_chunks::<{ Print::LEN }>();
        if !rest.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame of fingerprints is cut"));
        }
        prints.iter().for_each(|print| take(Print::parse(*print)));
    }
    Ok(())
}

/// Fuzz target: `data` as a message of each side, and as a frame of fingerprints. A message that is understood is written
/// and read to the same again.
#[doc(hidden)]
pub fn fuzz_handover(data: &[u8]) {
    fn again<T: Serialize + DeserializeOwned + std::fmt::Debug>(data: &[u8]) {
        let Ok(message) = serde_json::from_slice::<T>(data) else { return };
        let written = serde_json::to_vec(&message).expect("a message that was read can be written");
        let read: T = serde_json::from_slice(&written).expect("a message that was written can be read");
        assert_eq!(serde_json::to_vec(&read).expect("as before"), written);
        assert!(unexpected(&message).to_string().ends_with("came at the wrong time"));
    }
    again::<Message>(data);
    again::<SuccessorMessage>(data);
    for print in data.as_chunks::<{ Print::LEN }>().0 {
        assert_eq!(Print::parse(*print).emit()[1..], print[1..]);
    }
}

/// A message that does not belong there. Its content stays out of the log.
pub(super) fn unexpected(message: &impl std::fmt::Debug) -> io::Error {
    let text = format!("{message:?}");
    let name = text.split([' ', '(', '{']).next().unwrap_or_default();
    io::Error::new(io::ErrorKind::InvalidData, format!("message {name} came at the wrong time"))
}
