//! The stages put together: smux over snappy over KCP over FEC over the crypt layer.

use std::time::{Duration, Instant};

use adit_proto::kcp::arq::{self, Arq, Arrival};
use adit_proto::kcp::crypt::{Crypt, KcpMethod, KcpSecret};
use adit_proto::kcp::fec::{FecDecoder, FecPacketKind, Sending, Shards};
use adit_testkit::FixedRng;

/// Datagrams in, datagrams out.
pub(crate) struct Carrier {
    pub(crate) arq: Arq,
    crypt: Crypt,
    sending: Option<Sending>,
    /// Parity packets sent.
    pub(crate) parity: u64,
    /// KCP bytes of a datagram without parity.
    kcp_len: usize,
    decoder: FecDecoder,
    rng: FixedRng,
    recovered: Vec<u8>,
}

pub(crate) struct Setup {
    pub(crate) method: KcpMethod,
    pub(crate) shards: Option<Shards>,
    /// Parity follows the loss.
    pub(crate) follows: bool,
    /// Length of a datagram.
    pub(crate) mtu: usize,
    pub(crate) arq: arq::ArqSettings,
}

impl Setup {
    /// KCP bytes of a datagram.
    fn kcp_len(&self) -> usize {
        self.mtu - self.method.head_len() - self.method.tail_len()
    }
}

impl Carrier {
    pub(crate) fn new(setup: &Setup, seed: u64, now: Instant) -> Self {
        let settings = arq::ArqSettings { mtu: setup.kcp_len(), ..setup.arq.clone() };
        let mut carrier = Self {
            arq: Arq::new(7, settings, now),
            crypt: Crypt::new(setup.method, &KcpSecret::derive(b"test-key-1")),
            sending: setup
                .shards
                .map(|shards| if setup.follows { Sending::measured(now) } else { Sending::fixed(shards) }),
            parity: 0,
            kcp_len: setup.kcp_len(),
            decoder: FecDecoder::new(setup.shards.filter(|_| !setup.follows)),
            rng: FixedRng::new(seed),
            recovered: Vec::new(),
        };
        carrier.make_room(now);
        carrier
    }

    /// Room for the header of the next datagram, in front of its KCP bytes; returns its length.
    fn make_room(&mut self, now: Instant) -> usize {
        let seen = self.arq.seen();
        let theirs = self.decoder.shards();
        let fec_head = self.sending.as_mut().map_or(0, |sending| sending.head_len(theirs, seen, now));
        self.arq.set_mtu(self.kcp_len - fec_head);
        fec_head
    }

    pub(crate) fn handle(&mut self, mut datagram: Vec<u8>, now: Instant) {
        let range = self.crypt.open(&mut datagram).expect("links lose, but do not change");
        if let FecPacketKind::Data(bytes) = self.decoder.handle(&datagram[range]).expect("a legal packet") {
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
        loop {
            let fec_head = self.make_room(now);
            let mut datagram = vec![0; head + fec_head];
            if !self.arq.poll_transmit(now, &mut datagram) {
                return;
            }
            let mut parities = Vec::new();
            if datagram.len() > head + self.kcp_len {
                datagram.drain(head..head + fec_head);
            } else if let Some(sending) = self.sending.as_mut().filter(|_| fec_head > 0) {
                sending.seal(&mut datagram[head..], now);
                let mut parity = vec![0; head];
                while sending.poll_parity(&mut parity) {
                    self.parity += 1;
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

pub(crate) fn kcptun(nodelay: bool, interval: u64, send_window: u16, recv_window: u16) -> arq::ArqSettings {
    arq::ArqSettings {
        nodelay,
        interval: Duration::from_millis(interval),
        resend: 2,
        congestion: false,
        send_window,
        recv_window,
        ack_delay: Duration::from_secs(5),
        ..arq::ArqSettings::default()
    }
}
