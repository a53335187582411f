//! The server and the client of a soak run, and their two configurations.

use std::net::SocketAddr;
use std::path::Path as FilePath;

use anyhow::Result;
use serde::Serialize;

use crate::held::{Held, Usage};
use crate::load::Path;
use crate::subject::{Entry, free_port, loopback};

const KEY: &str = "a key for the lab";
/// Salts of methods before 2022, and of Snell without reuse, are remembered by the million: memory would rise for hours
/// until there are so many.
const METHOD: &str = "2022-blake3-aes-128-gcm";
/// Its key, 16 bytes in Base64.
const METHOD_KEY: &str = "YSBrZXkgZm9yIGEgbGFiIQ==";

/// Ports of the server: Shadowsocks, Snell, and Shadowsocks over KCP.
#[derive(Debug, Clone, Copy)]
struct Ports {
    shadowsocks: SocketAddr,
    snell: SocketAddr,
    kcp: SocketAddr,
}

impl Ports {
    /// The server's file; every other one has a second user.
    fn server(&self, with_guest: bool) -> String {
        let Self { shadowsocks, snell, kcp } = self;
        let guest = if with_guest { ", { name = \"guest\", password = \"a guest's key\" }" } else { "" };
        format!(
            "[[inbound]]\nname = \"ss\"\nprotocol = \"shadowsocks\"\nlisten = \"{shadowsocks}\"\nmethod = \"{METHOD}\"\n\
             password = \"{METHOD_KEY}\"\nnetwork = \"tcp-and-udp\"\nallow-private = true\n\
             [[inbound]]\nname = \"snell\"\nprotocol = \"snell\"\nlisten = \"{snell}\"\nversion = 5\n\
             users = [{{ name = \"lab\", password = \"{KEY}\" }}{guest}]\nallow-private = true\n\
             [[inbound]]\nname = \"kcp\"\nprotocol = \"shadowsocks\"\nlisten = \"{kcp}\"\nmethod = \"{METHOD}\"\n\
             password = \"{METHOD_KEY}\"\ncarrier = \"kcp\"\ncarrier-key = \"{KEY}\"\nallow-private = true\n"
        )
    }

    /// The client's file: `entries` are SOCKS ports that lead to the server's, in the order of the fields, `tunnel` takes
    /// datagrams for `echo`. Every other file has one rule more.
    fn client(
        &self,
        entries: [SocketAddr; 3],
        tunnel: SocketAddr,
        echo: SocketAddr,
        with_rule: bool,
    ) -> String {
        let Self { shadowsocks, snell, kcp } = self;
        let mut text = String::new();
        if with_rule {
            text += "[[rule]]\ndomain-suffix = [\"guest.example\"]\nreject = \"reset\"\n";
        }
        for (entry, name) in entries.into_iter().zip(["ss", "snell", "kcp"]) {
            text += &format!(
                "[[inbound]]\nname = \"to-{name}\"\nprotocol = \"socks\"\nlisten = \"{entry}\"\noutbound = \"{name}\"\n"
            );
        }
        text += &format!(
            "[[inbound]]\nname = \"datagrams\"\nprotocol = \"tunnel\"\nlisten = \"{tunnel}\"\ntarget = \"{echo}\"\n\
             network = \"udp\"\noutbound = \"ss\"\n"
        );
        text += &format!(
            "[[outbound]]\nname = \"ss\"\nprotocol = \"shadowsocks\"\nserver = \"{shadowsocks}\"\nmethod = \"{METHOD}\"\n\
             password = \"{METHOD_KEY}\"\nnetwork = \"tcp-and-udp\"\n\
             [[outbound]]\nname = \"snell\"\nprotocol = \"snell\"\nserver = \"{snell}\"\nversion = 5\npsk = \"{KEY}\"\nreuse = true\n\
             [[outbound]]\nname = \"kcp\"\nprotocol = \"shadowsocks\"\nserver = \"{kcp}\"\nmethod = \"{METHOD}\"\n\
             password = \"{METHOD_KEY}\"\ncarrier = \"kcp\"\ncarrier-key = \"{KEY}\"\n"
        );
        text
    }
}

/// Both programs at one moment.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Both {
    pub(super) server: Usage,
    pub(super) client: Usage,
}

/// The running programs.
pub(super) struct Site {
    server: Held,
    client: Held,
    ports: Ports,
    entries: [SocketAddr; 3],
    echo: SocketAddr,
    /// Takes datagrams for the echo.
    pub(super) tunnel: SocketAddr,
    reloads: usize,
}

impl Site {
    /// Starts both; datagrams go to `echo`.
    pub(super) fn start(adit: &FilePath, echo: SocketAddr) -> Result<Self> {
        let [shadowsocks, snell, kcp] = [free_port()?, free_port()?, free_port()?].map(loopback);
        let ports = Ports { shadowsocks, snell, kcp };
        let entries = [free_port()?, free_port()?, free_port()?].map(loopback);
        let tunnel = loopback(free_port()?);
        let server = Held::start(adit, &ports.server(false), None, None)?;
        server.wait_for_port(shadowsocks)?;
        let client = Held::start(adit, &ports.client(entries, tunnel, echo, false), None, None)?;
        client.wait_for_port(entries[2])?;
        Ok(Self { server, client, ports, entries, echo, tunnel, reloads: 0 })
    }

    /// The ways to `target`: Shadowsocks, Snell, and Shadowsocks over KCP.
    pub(super) fn paths(&self, target: SocketAddr) -> [Path; 3] {
        self.entries.map(|address| Path { address, entry: Entry::Socks5, target })
    }

    /// Gives both the other configuration.
    pub(super) fn reload(&mut self) -> Result<()> {
        self.reloads += 1;
        let is_other = !self.reloads.is_multiple_of(2);
        self.server.reload(&self.ports.server(is_other), self.reloads)?;
        let client = self.ports.client(self.entries, self.tunnel, self.echo, is_other);
        self.client.reload(&client, self.reloads)
    }

    pub(super) fn usage(&self) -> Result<Both> {
        Ok(Both { server: self.server.usage()?, client: self.client.usage()? })
    }
}
