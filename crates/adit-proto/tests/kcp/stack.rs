//! The stages put together: smux over snappy over KCP over FEC over the crypt layer.

use std::time::{Duration, Instant};

use adit_proto::kcp::arq::{self, Arq, Arrival};
use adit_proto::kcp::crypt::{Crypt, Method, Secret};
use adit_proto::kcp::fec::{self, Decoder, Encoder, Received, Shards};
use adit_testkit::FixedRng;

/// Datagrams in, datagrams out.
pub(crate) struct Carrier {
    pub(crate) arq: Arq,
    crypt: Crypt,
    encoder: Option<Encoder>,
    decoder: Decoder,
    rng: FixedRng,
    recovered: Vec<u8>,
}

pub(crate) struct Setup {
    pub(crate) method: Method,
    pub(crate) shards: Option<Shards>,
    /// Length of a datagram.
    pub(crate) mtu: usize,
    pub(crate) arq: arq::Settings,
}

impl Setup {
    /// KCP bytes of a datagram.
    fn kcp_len(&self) -> usize {
        let fec = if self.shards.is_some() { fec::HEADER_LEN } else { 0 };
        self.mtu - self.method.head_len() - self.method.tail_len() - fec
    }
}

impl Carrier {
    pub(crate) fn new(setup: &Setup, seed: u64, now: Instant) -> Self {
        let settings = arq::Settings { mtu: setup.kcp_len(), ..setup.arq.clone() };
        Self {
            arq: Arq::new(7, settings, now),
            crypt: Crypt::new(setup.method, &Secret::derive(b"test-key-1")),
            encoder: setup.shards.map(Encoder::new),
            decoder: Decoder::new(setup.shards),
            rng: FixedRng::new(seed),
            recovered: Vec::new(),
        }
    }

    pub(crate) fn handle(&mut self, mut datagram: Vec<u8>, now: Instant) {
        let range = self.crypt.open(&mut datagram).expect("links lose, but do not change");
        if let Received::Data(bytes) = self.decoder.handle(&datagram[range]).expect("a legal packet") {
            self.arq.handle_datagram(bytes, Arrival::Received, now).expect("legal segments");
        }
        while self.decoder.poll_recovered(&mut self.recovered) {
            self.arq.handle_datagram(&self.recovered, Arrival::Recovered, now).expect("legal segments");
            self.recovered.clear();
        }
    }

    /// Calls `emit` with each datagram that is to leave.
    pub(crate) fn transmit(&mut self, now: Instant, mut emit: impl FnMut(Vec<u8>)) {
        let (head, tail) = (self.crypt.method().head_len(), self.crypt.method().tail_len());
        let fec_head = if self.encoder.is_some() { fec::HEADER_LEN } else { 0 };
        loop {
            let mut datagram = vec![0; head + fec_head];
            if !self.arq.poll_transmit(now, &mut datagram) {
                return;
            }
            let mut parities = Vec::new();
            if let Some(encoder) = &mut self.encoder {
                encoder.seal(&mut datagram[head..], now);
                let mut parity = vec![0; head];
                while encoder.poll_parity(&mut parity) {
                    parities.push(std::mem::replace(&mut parity, vec![0; head]));
                }
            }
            for mut datagram in std::iter::once(datagram).chain(parities) {
                datagram.resize(datagram.len() + tail, 0);
                self.crypt.seal(&mut datagram, &mut self.rng);
                emit(datagram);
            }
        }
    }
}

pub(crate) fn kcptun(nodelay: bool, interval: u64, send_window: u16, recv_window: u16) -> arq::Settings {
    arq::Settings {
        nodelay,
        interval: Duration::from_millis(interval),
        resend: 2,
        congestion: false,
        send_window,
        recv_window,
        ack_delay: Duration::from_secs(5),
        ..arq::Settings::default()
    }
}
