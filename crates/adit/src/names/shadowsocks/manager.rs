//! `ss-manager` and `ssmanager`: servers that are added and removed by datagrams, inside this process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc;

use adit_engine::{OpenPort, PortOpener};
use adit_formats::shadowsocks::manager::{Add, Answer, Listed, MAX_REQUEST, Malformed, Request};
use adit_formats::shadowsocks::{Manager, ManagerAddress, ProgramFamily};
use adit_model::{Inbound, InboundProtocol, Tag};
use adit_net::messages::{self, MessageSocket};
use adit_net::rt::{self, Cores, Stop, Stopper};
use anyhow::Context as _;

use super::beside::BackgroundLoop;
use crate::serve::LEADS_ANYWHERE;

/// Most servers. Each holds a socket and a port or two, on every core.
const MAX_SERVERS: usize = 4096;

/// The socket of `ss-manager` that is told none, in its directory or else the user's (shadowsocks-libev 3.3.5).
const DEFAULT: &str = ".ss-manager.socks";

/// Starts a manager with its first servers.
pub(super) fn start(
    manager: Manager,
    first: Vec<Inbound>,
    ports: PortOpener,
) -> anyhow::Result<BackgroundLoop> {
    let (stopper, stop) = Stopper::new();
    let (ready, made) = mpsc::channel();
    let mut cores = Cores::default();
    cores.start("adit-manager".into(), move || async move {
        let socket = match bind(&manager).await {
            Ok(socket) => socket,
            Err(error) => return drop(ready.send(Err(error))),
        };
        let mut servers = Servers::new(manager, ports);
        for inbound in first {
            servers.begin(inbound);
        }
        drop(ready.send(Ok(())));
        serve(&socket, &mut servers, stop).await;
    })?;
    made.recv().context("the manager has ended")??;
    Ok(BackgroundLoop::new(stopper, cores))
}

async fn bind(manager: &Manager) -> anyhow::Result<MessageSocket> {
    tracing::info!("clients of servers may reach private addresses, and this machine: {LEADS_ANYWHERE}");
    let address = manager.address.clone().unwrap_or_else(|| {
        let home = || std::env::var_os("HOME").map(PathBuf::from);
        ManagerAddress::Unix(manager.directory.clone().or_else(home).unwrap_or_default().join(DEFAULT))
    });
    match address {
        ManagerAddress::Unix(path) => {
            let socket = MessageSocket::bind_unix(&path);
            tracing::info!(socket = %path.display(), "accepting manager commands");
            socket.with_context(|| format!("manager_address: cannot listen on {}", path.display()))
        }
        ManagerAddress::Udp(target) => {
            let addr =
                messages::resolve(&target).await.with_context(|| format!("manager_address: {target}"))?;
            let socket = MessageSocket::bind_udp(addr)
                .with_context(|| format!("manager_address: cannot listen on {addr}"))?;
            let addr = socket.local_addr().unwrap_or(addr);
            if !addr.ip().to_canonical().is_loopback() {
                let hint = "listen on 127.0.0.1 or on a unix socket";
                tracing::warn!(hint, "everyone who reaches the manager's port can add and remove servers");
            }
            tracing::info!(socket = %addr, "accepting manager commands");
            Ok(socket)
        }
    }
}

/// Answers orders until told to end.
async fn serve(socket: &MessageSocket, servers: &mut Servers, mut stop: Stop) {
    let answer = async {
        // One byte more than the longest request, so that what is too long is seen to be.
        let mut buffer = vec![0; MAX_REQUEST + 1];
        loop {
            match socket.receive(&mut buffer).await {
                Ok((len, from)) => {
                    for part in servers.answer(&buffer[..len]) {
                        if let Err(error) = socket.answer(&part, &from) {
                            tracing::debug!(%error, "an answer could not be sent");
                        }
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "an order could not be received");
                    rt::sleep(std::time::Duration::from_millis(100)).await;
                }
            }
            rt::yield_now().await;
        }
    };
    rt::race(stop.ending(), answer).await;
}

/// The servers of a manager.
struct Servers {
    manager: Manager,
    ports: PortOpener,
    open: BTreeMap<u16, Server>,
    /// Names of the ports that the file has, by which it gives them access lists.
    named: BTreeMap<u16, Tag>,
    /// Commands that were none.
    malformed: u64,
}

struct Server {
    listed: Listed,
    /// `None` for one that could not be started; `ss-manager` lists it all the same.
    port: Option<OpenPort>,
}

impl Servers {
    fn new(manager: Manager, ports: PortOpener) -> Self {
        Self { manager, ports, open: BTreeMap::new(), named: BTreeMap::new(), malformed: 0 }
    }

    /// The datagrams that answer one.
    fn answer(&mut self, datagram: &[u8]) -> Vec<Vec<u8>> {
        let family = self.manager.family;
        match Request::parse(family, datagram) {
            Err(Malformed { answer, why }) => {
                self.malformed += 1;
                if self.malformed.is_power_of_two() {
                    let (len, times) = (datagram.len(), self.malformed);
                    tracing::warn!(len, times, "manager command not understood: {why}");
                }
                answer.map(|text| text.as_bytes().to_vec()).into_iter().collect()
            }
            // Servers count inside; there are no others to listen to.
            Ok(Request::Stat(_)) => Vec::new(),
            Ok(Request::List) => {
                let listed: Vec<Listed> = self.open.values().map(|server| server.listed.clone()).collect();
                Answer::List(&listed).emit(family)
            }
            Ok(Request::Ping) => {
                let bytes = |server: &Server| server.port.as_ref().map_or(0, OpenPort::bytes);
                let stat: Vec<(u16, u64)> =
                    self.open.iter().map(|(port, server)| (*port, bytes(server))).collect();
                Answer::Stat(&stat).emit(family)
            }
            Ok(Request::Remove(port)) => {
                if self.open.remove(&port).is_some() {
                    tracing::info!(port, "server removed");
                }
                Answer::Done.emit(family)
            }
            Ok(Request::Add(add)) => match self.add(&add) {
                Ok(()) => Answer::Done.emit(family),
                Err(why) => {
                    tracing::warn!(port = add.port, why, "server not added");
                    Answer::Failed(&why).emit(family)
                }
            },
        }
    }

    /// Adds a server, in the place of one that has the port.
    fn add(&mut self, add: &Add) -> Result<(), String> {
        if self.open.len() >= MAX_SERVERS && !self.open.contains_key(&add.port) {
            return Err(format!("there are {MAX_SERVERS} servers already"));
        }
        let listed = Listed {
            port: add.port,
            password: add.password.clone(),
            method: add.method.clone().unwrap_or_else(|| self.manager.method.name().into()),
            users: add.users.clone(),
        };
        let port = match (self.manager.server(add), self.manager.family) {
            (Ok(mut inbound), _) => {
                if let Some(name) = self.named.get(&add.port) {
                    inbound.name = name.clone();
                }
                // Its connections end, and its port is free.
                self.open.remove(&add.port);
                Some(self.listen(inbound)?)
            }
            (Err(why), ProgramFamily::Libev) => {
                // ss-manager answers before the server that it starts has looked at any of it.
                tracing::error!(port = add.port, why, "server cannot be started");
                self.open.remove(&add.port);
                None
            }
            (Err(why), ProgramFamily::Rust) => return Err(why),
        };
        self.open.insert(add.port, Server { listed, port });
        Ok(())
    }

    /// One of the servers that the file names. A failed start of one does not keep the others from starting.
    fn begin(&mut self, inbound: Inbound) {
        let InboundProtocol::Shadowsocks(server) = &inbound.protocol else { return };
        let Some(number) = inbound.listen.first().map(std::net::SocketAddr::port) else { return };
        self.named.insert(number, inbound.name.clone());
        let listed = Listed {
            port: number,
            password: server.key.key().text().clone(),
            method: server.key.method().name().into(),
            users: server.key.users().iter().map(|user| ((&*user.name).into(), user.key.clone())).collect(),
        };
        match self.listen(inbound) {
            Ok(port) => drop(self.open.insert(number, Server { listed, port: Some(port) })),
            Err(why) => tracing::error!(port = number, why, "server cannot be started"),
        }
    }

    fn listen(&self, inbound: Inbound) -> Result<OpenPort, String> {
        let (name, spoken) = (inbound.name.clone(), inbound.protocol.label());
        let port = self.ports.open(inbound).map_err(|error| format!("{:#}", anyhow::Error::from(error)))?;
        for warning in port.warnings() {
            tracing::warn!("{warning}");
        }
        for address in port.addresses() {
            tracing::info!(inbound = &*name, protocol = spoken, %address, "listening");
        }
        Ok(port)
    }
}

#[cfg(test)]
mod tests {
    use adit_model::{Config, Dial, Outbound, OutboundProtocol, TcpOptions, Transports};
    use adit_testkit::{unused_addr, wait_for};

    use super::*;

    fn servers(family: ProgramFamily) -> (adit_engine::Running, Servers) {
        let direct =
            Outbound { name: "direct".into(), dial: Dial::default(), protocol: OutboundProtocol::Direct };
        let config = Config { cores: Some(1), outbounds: vec![direct], ..Config::default() };
        let running = adit_engine::start(&config).unwrap();
        let manager = Manager {
            family,
            address: None,
            hosts: vec![unused_addr().ip()],
            method: "chacha20-ietf-poly1305".parse().unwrap(),
            transports: Transports::Both,
            plugin: None,
            fast_open: false,
            tcp: TcpOptions::default(),
            reuse_port: false,
            directory: None,
        };
        let servers = Servers::new(manager, running.ports());
        (running, servers)
    }

    fn text(servers: &mut Servers, request: &str) -> Option<String> {
        let parts = servers.answer(request.as_bytes());
        (!parts.is_empty()).then(|| String::from_utf8(parts.concat()).unwrap())
    }

    /// Answers of the real managers, word for word.
    #[test]
    fn recorded_exchanges() {
        let vectors: serde_json::Value =
            serde_json::from_str(include_str!("../../../../../testdata/shadowsocks/control-plane.json"))
                .unwrap();
        for (name, family) in [
            ("ss_manager_libev_3_3_5_udp", ProgramFamily::Libev),
            ("ssmanager_rust_1_25_0_udp", ProgramFamily::Rust),
        ] {
            let (running, mut servers) = servers(family);
            for exchange in vectors[name]["exchanges"].as_array().unwrap() {
                let request = exchange[0].as_str().unwrap();
                assert_eq!(text(&mut servers, request).as_deref(), exchange[1].as_str(), "{name}: {request}");
            }
            drop(servers);
            running.end();
        }
    }

    #[test]
    fn ports_that_are_taken() {
        for (family, want) in
            [(ProgramFamily::Libev, "port is not available"), (ProgramFamily::Rust, "cannot listen on")]
        {
            let (running, mut servers) = servers(family);
            let addr = std::net::SocketAddr::new(servers.manager.hosts[0], 28_200);
            #[expect(clippy::disallowed_methods, reason = "the holder of the port is a plain socket")]
            let taken = std::net::TcpListener::bind(addr).unwrap();
            let add = "add: {\"server_port\":28200,\"password\":\"p\"}";
            let answer = text(&mut servers, add).unwrap();
            assert!(answer.contains(want), "{answer}");
            drop(taken);
            // A program that another test starts holds a copy of the socket until it has replaced the test's image.
            wait_for("the port is free", || text(&mut servers, add).unwrap().trim() == "ok");
            // The same holds for the socket of the port that makes room.
            wait_for("it takes the place of the first", || text(&mut servers, add).unwrap().trim() == "ok");
            let hostile = format!("add: {}", "[".repeat(30_000));
            for request in
                [hostile.as_str(), "", "\0", "add: {\"server_port\":0,\"password\":\"\"}", "ping:{"]
            {
                text(&mut servers, request);
            }
            assert_eq!(text(&mut servers, "ping").unwrap().trim(), "stat: {\"28200\":0}");
            drop(servers);
            running.end();
        }
    }
}
