//! Questions of clients and short answers to them, read and written in place.
//!
//! ```text
//!   header:   id 2 | flags 2 | questions 2 | answers 2 | authorities 2 | additional 2         big-endian
//!   flags:    QR 1 | opcode 4 | AA 1 | TC 1 | RD 1 | RA 1 | Z 1 | AD 1 | CD 1 | rcode 4
//!   question: labels (length 1 | text) .. 0 | type 2 | class 2                    RFC 1035, section 4
//!   OPT:      0 | 41 2 | size 2 | rcode, high bits 1 | version 1 | DO, zeros 2 | length 2 | ..  RFC 6891, section 6
//! ```
//!
//! Only the usual form is read here: one question, and at most an OPT record. The rest is left to the library.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::message::UDP_PAYLOAD;

const HEAD_LEN: usize = 12;
/// Bytes of an OPT record without options.
const OPT_LEN: usize = 11;
const OPT: u16 = 41;
/// Classes and types.
const IN: u16 = 1;
pub(super) const A: u16 = 1;
pub(super) const PTR: u16 = 12;
pub(super) const AAAA: u16 = 28;
pub(super) const SVCB: u16 = 64;
pub(super) const HTTPS: u16 = 65;
/// Codes of answers (RFC 1035 section 4.1.1, RFC 6891 section 9).
pub(super) const NO_ERROR: u16 = 0;
pub(super) const FORM_ERR: u16 = 1;
pub(super) const SERV_FAIL: u16 = 2;
pub(super) const NX_DOMAIN: u16 = 3;
const NOT_IMP: u16 = 4;
const BAD_VERS: u16 = 16;
/// Largest answer over UDP that a client can ask for; larger ones would be cut into many fragments.
const MAX_UDP: u16 = 4096;
/// Least size of a datagram that every client takes.
const MIN_UDP: u16 = 512;

/// Longest answer that is written here: header, question, PTR record and OPT record.
pub(crate) const MAX_SHORT: usize = HEAD_LEN + 259 + 12 + 255 + OPT_LEN;

/// A name in text: lower case, with dots between the labels. Bytes that no name of a host has are there as they came,
/// and a dot within a label is written as a zero, so that no two names have one text.
#[derive(Clone, Copy)]
pub(crate) struct AskedName {
    bytes: [u8; 254],
    len: u8,
}

/// A question of the usual form.
pub(crate) struct DnsQuestion {
    /// The name.
    pub(crate) name: AskedName,
    /// The type of the records.
    pub(crate) kind: u16,
    /// End of the question in the message.
    end: usize,
    /// Size of the client's datagrams, if it speaks EDNS.
    edns: Option<u16>,
}

/// A message of a client, as far as it was read.
#[expect(
    clippy::large_enum_variant,
    reason = "it is used where it is made, and nothing is allocated for a question"
)]
pub(crate) enum Read {
    /// No question: nothing is answered.
    Nothing,
    /// It is answered with this code alone; the question ends at the place, if it is to be repeated.
    Refused(u16, Option<usize>),
    /// A question.
    Asked(DnsQuestion),
    /// A question of another form.
    Other,
}

/// The record of a short answer.
pub(crate) enum ShortQuestion<'a> {
    /// None, with a code.
    None(u16),
    /// An A record.
    V4(Ipv4Addr),
    /// An AAAA record.
    V6(Ipv6Addr),
    /// A PTR record to a name of plain labels.
    Name(&'a str),
}

impl AskedName {
    /// The text, if it is one of ASCII without zeros.
    pub(crate) fn text(&self) -> Option<&str> {
        let bytes = &self.bytes[..usize::from(self.len)];
        if bytes.contains(&0) {
            return None;
        }
        std::str::from_utf8(bytes).ok().filter(|text| text.is_ascii())
    }
}

impl DnsQuestion {
    /// Bytes of the longest answer over UDP.
    pub(crate) fn max_udp(&self) -> usize {
        self.edns.unwrap_or(MIN_UDP).clamp(MIN_UDP, MAX_UDP).into()
    }
}

/// Reads a message.
pub(crate) fn read(message: &[u8]) -> Read {
    let Some(head) = message.first_chunk::<HEAD_LEN>() else { return Read::Nothing };
    if head[2] & 0x80 != 0 {
        return Read::Nothing;
    }
    if head[2] >> 3 & 15 != 0 {
        return Read::Refused(NOT_IMP, None);
    }
    let count = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    if count(4) != 1 {
        return Read::Refused(FORM_ERR, None);
    }
    let Some((name, at)) = name(message) else { return Read::Refused(FORM_ERR, None) };
    let Some([kind, class]) = pair(message, at) else { return Read::Refused(FORM_ERR, None) };
    let end = at + 4;
    if class != IN {
        return Read::Refused(NOT_IMP, Some(end));
    }
    if count(6) != 0 || count(8) != 0 || count(10) > 1 {
        return Read::Other;
    }
    let mut asked = DnsQuestion { name, kind, end, edns: None };
    if count(10) == 1 {
        let Some(opt) = message.get(end..).and_then(|rest| rest.first_chunk::<OPT_LEN>()) else {
            return Read::Refused(FORM_ERR, Some(end));
        };
        if opt[0] != 0 || u16::from_be_bytes([opt[1], opt[2]]) != OPT {
            return Read::Other;
        }
        if opt[6] != 0 {
            return Read::Refused(BAD_VERS, Some(end));
        }
        asked.edns = Some(u16::from_be_bytes([opt[3], opt[4]]));
    }
    Read::Asked(asked)
}

/// The name behind the header, and where it ends.
fn name(message: &[u8]) -> Option<(AskedName, usize)> {
    let mut name = AskedName { bytes: [0; 254], len: 0 };
    let (mut at, mut len) = (HEAD_LEN, 0);
    loop {
        let label = usize::from(*message.get(at)?);
        at += 1;
        if label == 0 {
            name.len = u8::try_from(len).ok()?;
            return Some((name, at));
        }
        // A pointer would lead into the header.
        let bytes = message.get(at..at + label).filter(|_| label < 64)?;
        let start = if len == 0 { 0 } else { len + 1 };
        let place = name.bytes.get_mut(start..start + label).filter(|_| start + label <= 253)?;
        for (to, byte) in place.iter_mut().zip(bytes) {
            *to = if *byte == b'.' { 0 } else { byte.to_ascii_lowercase() };
        }
        if start > 0 {
            name.bytes[len] = b'.';
        }
        (at, len) = (at + label, start + label);
    }
}

fn pair(message: &[u8], at: usize) -> Option<[u16; 2]> {
    let bytes = message.get(at..)?.first_chunk::<4>()?;
    Some([u16::from_be_bytes([bytes[0], bytes[1]]), u16::from_be_bytes([bytes[2], bytes[3]])])
}

/// Writes the answer to a question behind what is in `out`.
pub(crate) fn write(
    out: &mut Vec<u8>,
    message: &[u8],
    asked: &DnsQuestion,
    answer: &ShortQuestion<'_>,
    ttl: u32,
) {
    let code = if let ShortQuestion::None(code) = answer { *code } else { NO_ERROR };
    let start = out.len();
    begin(out, message, code, Some(asked.end));
    let record = |out: &mut Vec<u8>, kind: u16, len: usize| {
        // The name is that of the question, at byte 12.
        out.extend_from_slice(&[0xc0, 0x0c]);
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&IN.to_be_bytes());
        out.extend_from_slice(&ttl.to_be_bytes());
        out.extend_from_slice(&u16::try_from(len).unwrap_or(0).to_be_bytes());
    };
    match answer {
        ShortQuestion::None(_) => {}
        ShortQuestion::V4(ip) => {
            record(out, A, 4);
            out.extend_from_slice(&ip.octets());
        }
        ShortQuestion::V6(ip) => {
            record(out, AAAA, 16);
            out.extend_from_slice(&ip.octets());
        }
        ShortQuestion::Name(name) => {
            record(out, PTR, name.len() + 2);
            for label in name.split('.') {
                out.push(u8::try_from(label.len()).unwrap_or(0));
                out.extend_from_slice(label.as_bytes());
            }
            out.push(0);
        }
    }
    if !matches!(answer, ShortQuestion::None(_)) {
        out[start + 7] = 1;
    }
    if asked.edns.is_some() {
        write_opt(out, start, 0);
    }
}

/// Writes an answer with a code alone; the question ends at `end`, if it is to be repeated.
pub(crate) fn write_refusal(out: &mut Vec<u8>, message: &[u8], code: u16, end: Option<usize>) {
    let start = out.len();
    begin(out, message, code, end);
    if code > 15 {
        write_opt(out, start, code >> 4);
    }
}

/// The header and the question of an answer.
fn begin(out: &mut Vec<u8>, message: &[u8], code: u16, end: Option<usize>) {
    let mut head = [0; HEAD_LEN];
    head[..4].copy_from_slice(&message[..4]);
    // QR, the opcode and RD as they came; RA, and CD as it came.
    head[2] = 0x80 | head[2] & 0x79;
    head[3] = 0x80 | head[3] & 0x10 | code.to_be_bytes()[1] & 15;
    head[5] = u8::from(end.is_some());
    out.extend_from_slice(&head);
    out.extend_from_slice(&message[HEAD_LEN..end.unwrap_or(HEAD_LEN)]);
}

/// The OPT record of an answer that begins at `start`, with the high bits of its code.
fn write_opt(out: &mut Vec<u8>, start: usize, code: u16) {
    let [high, low] = UDP_PAYLOAD.to_be_bytes();
    out.extend_from_slice(&[0, 0, 41, high, low, code.to_be_bytes()[1], 0, 0, 0, 0, 0]);
    out[start + 11] = 1;
}

/// The address that a name of the reverse zones stands for (RFC 1035 section 3.5, RFC 3596 section 2.5).
pub(super) fn reverse_address(name: &str) -> Option<IpAddr> {
    if let Some(rest) = name.strip_suffix(".in-addr.arpa") {
        let mut octets = [0; 4];
        let mut labels = rest.split('.');
        for octet in octets.iter_mut().rev() {
            let label = labels.next().filter(|label| label.len() == 1 || !label.starts_with(['0', '+']))?;
            *octet = label.parse().ok()?;
        }
        return labels.next().is_none().then(|| Ipv4Addr::from(octets).into());
    }
    let rest = name.strip_suffix(".ip6.arpa")?;
    let mut bits: u128 = 0;
    let mut count = 0;
    for label in rest.rsplit('.') {
        let digit = match label.as_bytes() {
            [digit] => char::from(*digit).to_digit(16)?,
            _ => return None,
        };
        count += 1;
        bits = bits << 4 | u128::from(digit);
    }
    (count == 32).then(|| Ipv6Addr::from(bits).into())
}

/// The fuzzer's entry: any bytes are read without a panic, and the answer to a question is one to it.
#[doc(hidden)]
pub fn fuzz_dns_asked(data: &[u8]) {
    use hickory_proto::op::{Message, MessageType};

    let mut out = Vec::new();
    match read(data) {
        Read::Nothing | Read::Other => {}
        Read::Refused(code, end) => {
            write_refusal(&mut out, data, code, end);
            assert!(out[..2] == data[..2] && out[2] & 0x80 != 0);
        }
        Read::Asked(asked) => {
            if let Some(text) = asked.name.text() {
                let _ = reverse_address(text);
            }
            let shorts = [
                ShortQuestion::None(SERV_FAIL),
                ShortQuestion::V4(Ipv4Addr::LOCALHOST),
                ShortQuestion::V6(Ipv6Addr::LOCALHOST),
                ShortQuestion::Name("a.b"),
            ];
            for short in shorts {
                out.clear();
                write(&mut out, data, &asked, &short, 1);
                assert!(out.len() <= MAX_SHORT);
                let answer = Message::from_vec(&out).expect("it can be read");
                assert_eq!(answer.metadata.message_type, MessageType::Response);
                assert_eq!(answer.answers.len(), usize::from(!matches!(short, ShortQuestion::None(_))));
                assert_eq!(answer.edns.is_some(), asked.edns.is_some());
                assert_eq!(
                    out[12..asked.end],
                    data[12..asked.end],
                    "the question is repeated as it was written"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
    use hickory_proto::rr::{Name, RecordType};
    use proptest::prelude::*;

    use super::*;

    fn question_of(name: &str, kind: RecordType, edns: Option<u16>) -> Vec<u8> {
        let mut message = Message::new(0x1234, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        if let Some(size) = edns {
            let mut edns = Edns::new();
            edns.set_max_payload(size).set_version(0);
            message.set_edns(edns);
        }
        message.to_vec().unwrap()
    }

    fn asked(message: &[u8]) -> DnsQuestion {
        let Read::Asked(asked) = read(message) else { panic!("a question") };
        asked
    }

    #[test]
    fn a_question_is_read_and_answered() {
        let message = question_of("WWW.Example.com.", RecordType::A, None);
        let question = asked(&message);
        assert_eq!((question.name.text(), question.kind), (Some("www.example.com"), A));
        assert_eq!(question.max_udp(), 512);
        let mut out = vec![9; 3];
        write(&mut out, &message, &question, &ShortQuestion::V4(Ipv4Addr::new(198, 18, 128, 16)), 60);
        // Observed from OpenSnell alpha but for its AA, which is not true of a resolver: spec 2.5.
        let mut wanted = message.clone();
        wanted[2..4].copy_from_slice(&[0x81, 0x80]);
        wanted[7] = 1;
        wanted.extend([0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 198, 18, 128, 16]);
        assert_eq!(out[3..], wanted);
        let of = |size| question_of("a.b.", RecordType::AAAA, Some(size));
        for (size, max) in [(100, 512), (1232, 1232), (65_535, 4096)] {
            let message = of(size);
            let question = asked(&message);
            assert_eq!(question.max_udp(), max);
            out.clear();
            write(&mut out, &message, &question, &ShortQuestion::V6(Ipv6Addr::LOCALHOST), 1);
            let answer = Message::from_vec(&out).unwrap();
            assert_eq!(answer.edns.unwrap().max_payload(), UDP_PAYLOAD);
            assert_eq!(answer.answers[0].data.ip_addr(), Some(Ipv6Addr::LOCALHOST.into()));
        }
    }

    #[test]
    fn other_messages_have_their_codes() {
        let good = question_of("a.b.", RecordType::A, Some(1232));
        let code = |bytes: &[u8]| match read(bytes) {
            Read::Refused(code, end) => {
                let mut out = Vec::new();
                write_refusal(&mut out, bytes, code, end);
                let answer = Message::from_vec(&out).unwrap();
                assert_eq!(answer.metadata.id, 0x1234);
                Some((answer.metadata.response_code, answer.queries.len()))
            }
            Read::Asked(_) => Some((ResponseCode::NoError, 1)),
            Read::Nothing | Read::Other => None,
        };
        let with = |changes: &[(usize, u8)]| {
            let mut bytes = good.clone();
            changes.iter().for_each(|(at, byte)| bytes[*at] = *byte);
            bytes
        };
        assert_eq!(code(&good), Some((ResponseCode::NoError, 1)));
        assert_eq!(code(&with(&[(2, 0x81)])), None, "an answer");
        assert_eq!(code(&with(&[(2, 0x28)])), Some((ResponseCode::NotImp, 0)), "an update");
        assert_eq!(code(&with(&[(5, 2)])), Some((ResponseCode::FormErr, 0)));
        assert_eq!(code(&with(&[(5, 0)])), Some((ResponseCode::FormErr, 0)));
        // 12: 1 a 1 b 0, type, class.
        assert_eq!(code(&with(&[(20, 3)])), Some((ResponseCode::NotImp, 1)), "class CHAOS");
        assert_eq!(code(&with(&[(12, 0xc0)])), Some((ResponseCode::FormErr, 0)), "a pointer");
        assert_eq!(code(&with(&[(27, 1)])), Some((ResponseCode::BADSIG, 1)), "EDNS 1: BADVERS is 16 too");
        assert_eq!(code(&with(&[(7, 1)])), None, "left to the library");
        for len in 0..good.len() {
            let found = code(&good[..len]);
            let wanted = (len >= 12).then_some(ResponseCode::FormErr);
            assert_eq!(found.map(|(code, _)| code), wanted, "{len} bytes");
        }
    }

    #[test]
    fn names_of_every_length() {
        let label = "a".repeat(63);
        let long = [&*label, &label, &label, &label[..61]].join(".");
        assert_eq!(long.len(), 253);
        let message = question_of(&format!("{long}."), RecordType::A, None);
        assert_eq!(asked(&message).name.text(), Some(&*long));
        let mut longer = message;
        // One byte more in the last label.
        longer[12 + 3 * 64] = 62;
        longer.insert(12 + 3 * 64 + 1, b'a');
        assert!(matches!(read(&longer), Read::Refused(FORM_ERR, None)));
        assert_eq!(asked(&question_of(".", RecordType::A, None)).name.text(), Some(""));
        let mut dotted = question_of("aXb.c.", RecordType::A, None);
        dotted[14] = b'.';
        assert_eq!(asked(&dotted).name.text(), None, "a dot within a label");
        dotted[14] = 0xe4;
        assert_eq!(asked(&dotted).name.text(), None);
    }

    #[test]
    fn addresses_of_the_reverse_zones() {
        for (name, ip) in [
            ("16.128.18.198.in-addr.arpa", Some("198.18.128.16")),
            ("016.128.18.198.in-addr.arpa", None),
            ("1.16.128.18.198.in-addr.arpa", None),
            ("18.198.in-addr.arpa", None),
            ("256.0.0.1.in-addr.arpa", None),
            ("in-addr.arpa", None),
            (
                "0.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.f.d.a.0.0.0.d.f.ip6.arpa",
                Some("fd00:adf::10"),
            ),
            ("0.1.ip6.arpa", None),
            ("example.com", None),
        ] {
            assert_eq!(reverse_address(name), ip.map(|ip| ip.parse().unwrap()), "{name}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes(data in proptest::collection::vec(any::<u8>(), 0..100)) {
            fuzz_dns_asked(&data);
        }

        #[test]
        fn nearly_questions(at in 0..40usize, byte: u8) {
            let mut message = question_of("www.example.com.", RecordType::A, Some(1232));
            let at = at % message.len();
            message[at] = byte;
            fuzz_dns_asked(&message);
        }
    }
}
