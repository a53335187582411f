//! The server under attack and the client of its users.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;

use anyhow::Result;

use crate::held::Held;
use crate::subject::{free_port, loopback};

const KEY: &str = "a key for the lab";

/// The server.
pub(super) struct Server {
    pub(super) held: Held,
    pub(super) shadowsocks: SocketAddr,
    pub(super) snell: SocketAddr,
    pub(super) kcp: SocketAddr,
    /// Metrics, and the control interface of mihomo.
    pub(super) http: [SocketAddr; 2],
}

impl Server {
    /// Starts it with a limit of descriptors and of memory.
    pub(super) fn start(adit: &Path, limit: Option<u64>, bytes: Option<u64>) -> Result<Self> {
        let [shadowsocks, snell, kcp, http, clash] =
            [free_port()?, free_port()?, free_port()?, free_port()?, free_port()?].map(loopback);
        let config = format!(
            "[admin]\nhttp = \"{http}\"\nclash = \"{clash}\"\n[[inbound]]\nname = \"ss\"\nprotocol = \"shadowsocks\"\nlisten = \"{shadowsocks}\"\n\
             method = \"aes-128-gcm\"\npassword = \"{KEY}\"\nnetwork = \"tcp-and-udp\"\n\
             allow-private = true\n[[inbound]]\nname = \"snell\"\nprotocol = \"snell\"\nlisten = \"{snell}\"\nversion = 5\npsk = \"{KEY}\"\n\
             allow-private = true\n[[inbound]]\nname = \"kcp\"\nprotocol = \"shadowsocks\"\nlisten = \"{kcp}\"\n\
             method = \"aes-128-gcm\"\npassword = \"{KEY}\"\ncarrier = \"kcp\"\ncarrier-key = \"{KEY}\"\n\
             allow-private = true\n"
        );
        let held = Held::start(adit, &config, limit, bytes)?;
        held.wait_for_port(shadowsocks)?;
        Ok(Self { held, shadowsocks, snell, kcp, http: [http, clash] })
    }
}

/// The client of the users, and of those who record.
pub(super) struct Client {
    _held: Held,
    /// SOCKS ports, one by Shadowsocks and one by Snell.
    pub(super) users: [SocketAddr; 2],
    /// Takes datagrams that go to the first recorder, sealed.
    pub(super) tunnel: SocketAddr,
    /// A SOCKS port that leads over KCP to the second recorder.
    pub(super) kcp: SocketAddr,
}

impl Client {
    /// Starts it; datagrams of the tunnel are for `sink`.
    pub(super) fn start(
        adit: &Path,
        server: &Server,
        sink: SocketAddr,
        recorders: &[UdpSocket; 2],
    ) -> Result<Self> {
        let ports = [free_port()?, free_port()?, free_port()?, free_port()?].map(loopback);
        let [a, b, tunnel, kcp] = ports;
        let [first, second] = [recorders[0].local_addr()?, recorders[1].local_addr()?];
        let Server { shadowsocks, snell, .. } = server;
        let ss = |name: &str, server: SocketAddr| {
            format!(
                "[[outbound]]\nname = \"{name}\"\nprotocol = \"shadowsocks\"\nserver = \"{server}\"\n\
                 method = \"aes-128-gcm\"\npassword = \"{KEY}\"\n"
            )
        };
        let socks = |listen: SocketAddr, outbound: &str| {
            format!("[[inbound]]\nprotocol = \"socks\"\nlisten = \"{listen}\"\noutbound = \"{outbound}\"\n")
        };
        let config = [
            socks(a, "ss"),
            socks(b, "snell"),
            socks(kcp, "kcp"),
            format!(
                "[[inbound]]\nprotocol = \"tunnel\"\nlisten = \"{tunnel}\"\ntarget = \"{sink}\"\n\
                 network = \"udp\"\noutbound = \"recorded\"\n"
            ),
            ss("ss", *shadowsocks),
            ss("recorded", first),
            "network = \"tcp-and-udp\"\n".to_owned(),
            ss("kcp", second),
            format!("carrier = \"kcp\"\ncarrier-key = \"{KEY}\"\n"),
            format!(
                "[[outbound]]\nname = \"snell\"\nprotocol = \"snell\"\nserver = \"{snell}\"\nversion = 5\n\
                 psk = \"{KEY}\"\nreuse = false\n"
            ),
        ];
        let held = Held::start(adit, &config.concat(), None, None)?;
        held.wait_for_port(b)?;
        Ok(Self { _held: held, users: [a, b], tunnel, kcp })
    }
}
