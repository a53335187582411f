//! Servers that tell a manager how much they have carried.

use std::time::Duration;

use adit_engine::Meter;
use adit_formats::shadowsocks::manager::emit_report;
use adit_formats::shadowsocks::{ManagerAddress, ProgramFamily};
use adit_net::messages::MessageSender;
use adit_net::rt::{self, Cores, Stopper};

use super::beside::BackgroundLoop;

/// Time between two reports (shadowsocks-libev 3.3.5, shadowsocks-rust 1.25).
pub(super) fn interval(family: ProgramFamily) -> Duration {
    Duration::from_secs(if family == ProgramFamily::Libev { 5 } else { 10 })
}

/// Reports what `meter` shows, once in every `interval`.
pub(super) fn start(
    family: ProgramFamily,
    address: ManagerAddress,
    meter: Meter,
    interval: Duration,
) -> std::io::Result<BackgroundLoop> {
    let (stopper, mut stop) = Stopper::new();
    let mut cores = Cores::default();
    let manager = match address {
        ManagerAddress::Udp(target) => MessageSender::Udp(target),
        ManagerAddress::Unix(path) => MessageSender::Unix(path),
    };
    cores.start("adit-report".into(), move || async move {
        let report = async {
            let mut is_heard = true;
            loop {
                rt::sleep(interval).await;
                for (port, bytes) in meter.bytes() {
                    let sent = manager.send(&emit_report(family, port, bytes)).await;
                    if let Err(error) = &sent
                        && is_heard
                    {
                        tracing::warn!(%error, "cannot send reports to the manager");
                    }
                    is_heard = sent.is_ok();
                }
            }
        };
        rt::race(stop.ending(), report).await;
    })?;
    Ok(BackgroundLoop::new(stopper, cores))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use adit_formats::adit_toml;
    use adit_model::{Config, Dial, Outbound, OutboundProtocol};

    use super::*;

    #[test]
    fn reports_come_again_and_again() {
        let text = "[[inbound]]\nname = \"in\"\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:0\"\n";
        let config = adit_toml::parse("t", text).unwrap().config;
        let direct = Outbound { name: "d".into(), dial: Dial::default(), protocol: OutboundProtocol::Direct };
        let outbounds = if config.outbounds.is_empty() { vec![direct] } else { config.outbounds.clone() };
        let running = adit_engine::start(&Config { cores: Some(1), outbounds, ..config }).unwrap();
        let port = running.addresses()[0].1.port();
        let path = std::env::temp_dir().join(format!("adit-report-{}", std::process::id()));
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        for (family, end) in [(ProgramFamily::Libev, "\0"), (ProgramFamily::Rust, "\n")] {
            let address = ManagerAddress::Unix(path.clone());
            let reporter = start(family, address, running.meter(), Duration::from_millis(10)).unwrap();
            let mut buffer = [0; 64];
            for _ in 0..2 {
                let len = manager.recv(&mut buffer).unwrap();
                let want = format!("stat: {{\"{port}\":0}}{end}");
                assert_eq!(std::str::from_utf8(&buffer[..len]), Ok(&*want));
            }
            drop(reporter);
            manager.set_nonblocking(true).unwrap();
            while manager.recv(&mut buffer).is_ok() {}
            manager.set_nonblocking(false).unwrap();
        }
        running.end();
        std::fs::remove_file(path).unwrap();
    }
}
