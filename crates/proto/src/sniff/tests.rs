use super::quic::Keys;
use super::*;
use crate::crypto::{Aead, AeadAlgorithm, AesBlock};

/// The ClientHello of RFC 9001 appendix A.2, which names example.com.
const HELLO: &str = "010000ed0303ebf8fa56f12939b9584a3896472ec40bb863cfd3e86804fe3a47f06a2b69484c000004130113020100\
    00c000000010000e00000b6578616d706c652e636f6dff01000100000a00080006001d0017001800100007000504616c706e00050005010000\
    0000003300260024001d00209370b2c9caa47fbabaf4559fedba753de171fa71f50f1ce15d43e994ec74d748002b0003020304000d0010000e\
    0403050306030203080408050806002d00020101001c00024001003900320408ffffffffffffffff05048000ffff07048000ffff0801100104\
    800075300901100f088394c8f03e51570806048000ffff";

const ID: [u8; 8] = [0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08];

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

fn found(protocol: SniffedProtocol, name: &str) -> Sniffed {
    Sniffed::Found(protocol, (!name.is_empty()).then(|| name.into()))
}

/// The hello in records of `len` bytes.
fn records(hello: &[u8], len: usize) -> Vec<u8> {
    let record =
        |piece: &[u8]| [&[22, 3, 1][..], &u16::try_from(piece.len()).unwrap().to_be_bytes(), piece].concat();
    hello.chunks(len).flat_map(record).collect()
}

/// Each start of `bytes` asks for more, up to one from which on the answer is `want`.
fn at_every_split(bytes: &[u8], want: &Sniffed) {
    let mut is_known = false;
    for len in 0..=bytes.len() {
        match stream(&bytes[..len]) {
            Sniffed::More => assert!(!is_known, "an answer stands: {len}"),
            answer @ (Sniffed::Found(..) | Sniffed::Unknown) => {
                assert_eq!(answer, *want, "{len} of {}", bytes.len());
                is_known = true;
            }
        }
    }
    assert!(is_known, "{:?}", String::from_utf8_lossy(bytes));
}

#[test]
fn a_hello_in_any_records() {
    let hello = hex(HELLO);
    for len in [1, 2, 3, 5, 60, 100, hello.len()] {
        at_every_split(&records(&hello, len), &found(SniffedProtocol::Tls, "example.com"));
    }
    for cut in 1..hello.len() {
        let bytes = [records(&hello[..cut], 9999), records(&hello[cut..], 9999)].concat();
        assert_eq!(stream(&bytes), found(SniffedProtocol::Tls, "example.com"), "{cut}");
    }
}

/// A hello with these extensions.
fn hello(extensions: Option<&[u8]>) -> Vec<u8> {
    let mut body = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0]].concat();
    if let Some(extensions) = extensions {
        body.extend_from_slice(&u16::try_from(extensions.len()).unwrap().to_be_bytes());
        body.extend_from_slice(extensions);
    }
    let len = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[1], &len[1..], &body].concat()
}

fn sni(name: &[u8]) -> Vec<u8> {
    let short = |len: usize| u16::try_from(len).unwrap().to_be_bytes();
    [&[0, 0][..], &short(name.len() + 5), &short(name.len() + 3), &[0], &short(name.len()), name].concat()
}

#[test]
fn hellos_without_a_name_that_counts() {
    for (extensions, name) in [
        (None, ""),
        (Some(vec![]), ""),
        (Some(vec![0, 23, 0, 0]), ""),
        (Some([&[0, 23, 0, 0][..], &sni(b"A.Example")].concat()), "a.example"),
        (Some(sni(b"a.example.")), "a.example"),
        (Some(sni(b"192.0.2.1")), ""),
        (Some(sni(b"a b")), ""),
        (Some(sni(b"\xff\xfe")), ""),
        (Some(sni(&[b'a'; 254])), ""),
        (Some(sni(b"")), ""),
        (Some(vec![0, 0, 0, 0]), ""),
    ] {
        at_every_split(&records(&hello(extensions.as_deref()), 9999), &found(SniffedProtocol::Tls, name));
    }
}

#[test]
fn one_changed_byte_makes_no_other_name() {
    let whole = records(&hex(HELLO), 9999);
    for at in 0..whole.len() {
        for bit in [1, 0x80] {
            let mut bytes = whole.clone();
            bytes[at] ^= bit;
            if let Sniffed::Found(protocol, Some(name)) = stream(&bytes) {
                let differing = name.bytes().zip(*b"example.com").filter(|(a, b)| a != b).count();
                assert!(
                    protocol == SniffedProtocol::Tls && name.len() <= 12 && differing <= 11,
                    "{at}: {name}"
                );
            }
        }
    }
    // Type and version of the record, length, type of the message, its length, its version.
    for (at, value) in [(0, 23), (1, 2), (3, 0x50), (5, 2), (6, 1), (9, 2)] {
        let mut bytes = whole.clone();
        bytes[at] = value;
        assert_eq!(stream(&bytes), Sniffed::Unknown, "{at}");
    }
}

#[test]
fn requests() {
    for (bytes, name) in [
        (&b"GET / HTTP/1.1\r\nHost: Example.com\r\n\r\n"[..], "example.com"),
        (b"POST /x HTTP/1.0\nAccept: *\nhOsT:example.com:8080 \n\n", "example.com"),
        (b"CONNECT a:443 HTTP/1.1\r\n\r\n", ""),
        (b"OPTIONS * HTTP/1.1\r\nHost: 192.0.2.1:80\r\n\r\n", ""),
        (b"GET / HTTP/1.1\r\nHost: [2001:db8::1]\r\n\r\n", ""),
        (b"HEAD / HTTP/1.1\r\nno field\r\nHost:\r\n\r\n", ""),
    ] {
        at_every_split(bytes, &found(SniffedProtocol::Http, name));
    }
    for bytes in
        [&b"GET / HTTP/2.0\r\n"[..], b"GETX", b"get / HTTP/1.1\r\n", b"GET \x00", b"PRI * HTTP/2.0\r\n"]
    {
        assert_eq!(stream(bytes), Sniffed::Unknown, "{bytes:?}");
    }
    // The answer to a part of the line holds for the whole of it.
    let whole = b"GET /\x00 HTTP/1.1\r\nHost: example.com\r\n\r\n";
    for len in 6..=whole.len() {
        assert_eq!(stream(&whole[..len]), Sniffed::Unknown, "{len} bytes");
    }
}

#[test]
fn other_streams() {
    at_every_split(b"\x13BitTorrent protocol\x00\x00", &found(SniffedProtocol::BitTorrent, ""));
    at_every_split(b"SSH-2.0-x\r\n", &found(SniffedProtocol::Ssh, ""));
    let query =
        b"\x00\x1b\x12\x34\x01\x20\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x07example\x00\x00\x01\x00\x01";
    at_every_split(query, &found(SniffedProtocol::Dns, ""));
    for bytes in [&b"\x00"[..], b"", b"G", b"SSH"] {
        assert_eq!(stream(bytes), Sniffed::More);
    }
    for bytes in [&b"hello"[..], b"\x05\x01\x00", b"\x00\x1b\x12\x34\x81\x80", &[0xff; 100]] {
        assert_eq!(stream(bytes), Sniffed::Unknown, "{bytes:?}");
    }
}

#[test]
fn streams_without_an_end_are_given_up() {
    let endless = [b"GET /".to_vec(), vec![b'a'; 2 * MAX_STREAM]].concat();
    assert_eq!(stream(&endless[..MAX_STREAM - 1]), Sniffed::More);
    assert_eq!(stream(&endless[..MAX_STREAM]), found(SniffedProtocol::Http, ""));
    assert_eq!(stream(&endless), found(SniffedProtocol::Http, ""));
    // A hello that is as long as all that is looked at.
    let len = u16::try_from(MAX_STREAM - 50).unwrap().to_be_bytes();
    let long = [&[0xff, 1][..], &len, &vec![0; MAX_STREAM - 50]].concat();
    let long = records(&hello(Some(&long)), 16_000);
    assert_eq!(stream(&long[..MAX_STREAM - 1]), Sniffed::More);
    assert!(matches!(stream(&long), Sniffed::Found(SniffedProtocol::Tls, None)), "{:?}", stream(&long));
}

/// RFC 9001 appendix A.1 and RFC 9369 appendix A.1.
#[test]
fn keys_of_initial_packets() {
    for (version, key, iv, hp) in [
        (
            1,
            "1f369613dd76d5467730efcbe3b1a22d",
            "fa044b2f42a3fd3b46fb255c",
            "9f50449e04a0e810283a1e9933adedd2",
        ),
        (
            0x6b33_43cf,
            "8b1a0bc121284290a29e0971b5cd045d",
            "91f73e2351d8fa91660e909f",
            "45b95e15235d6f45a6b19cbcb0294ba9",
        ),
    ] {
        let keys = Keys::new(version, &ID);
        assert_eq!(keys.key[..], hex(key));
        assert_eq!(keys.iv[..], hex(iv));
        assert_eq!(keys.hp[..], hex(hp));
    }
}

/// An Initial packet with these frames, padded to `len` bytes before it is sealed.
fn initial(version: u32, number: u32, frames: &[u8], len: usize) -> Vec<u8> {
    let kind = if version == 1 { 0xc3 } else { 0xd3 };
    let mut payload = frames.to_vec();
    payload.resize(len.max(frames.len()), 0);
    let sealed_len = u16::try_from(4 + payload.len() + 16).unwrap() | 0x4000;
    let mut packet =
        [&[kind][..], &version.to_be_bytes(), &[8], &ID, &[0, 0], &sealed_len.to_be_bytes()].concat();
    let number_at = packet.len();
    packet.extend_from_slice(&number.to_be_bytes());
    let keys = Keys::new(version, &ID);
    let (mut nonce, mut tag) = (keys.iv, [0; 16]);
    nonce.iter_mut().rev().zip(number.to_be_bytes().iter().rev()).for_each(|(byte, of)| *byte ^= of);
    let sealed = Aead::new(AeadAlgorithm::Aes128Gcm, &keys.key).seal(nonce, &packet, &mut payload, &mut tag);
    sealed.unwrap();
    packet.extend_from_slice(&payload);
    packet.extend_from_slice(&tag);
    let mut mask: [u8; 16] = packet[number_at + 4..number_at + 20].try_into().unwrap();
    AesBlock::new(&keys.hp).encrypt(&mut mask);
    packet[0] ^= mask[0] & 0x0f;
    (0..4).for_each(|i| packet[number_at + i] ^= mask[1 + i]);
    packet
}

fn crypto(offset: usize, piece: &[u8]) -> Vec<u8> {
    let short = |value: usize| (u16::try_from(value).unwrap() | 0x4000).to_be_bytes();
    [&[6][..], &short(offset), &short(piece.len()), piece].concat()
}

/// RFC 9001 appendix A.2: the protected header and the first sealed bytes of the client's packet.
#[test]
fn the_packet_of_the_specification() {
    let packet = initial(1, 2, &[&[6, 0, 0x40, 0xf1][..], &hex(HELLO)].concat(), 1162);
    let want = "c000000001088394c8f03e5157080000449e7b9aec34d1b1c98dd7689fb8ec11";
    assert_eq!(packet[..32], hex(want), "{:02x?}", &packet[..32]);
    assert_eq!(packet.len(), 1200);
    assert_eq!(Datagrams::default().push(&packet), found(SniffedProtocol::Quic, "example.com"));
}

#[test]
fn a_hello_in_several_packets_and_datagrams() {
    let hello = hex(HELLO);
    for version in [1, 0x6b33_43cf] {
        for cut in [1, 50, 100, hello.len() - 1] {
            let (one, two) = hello.split_at(cut);
            let packets = [
                initial(version, 0, &crypto(cut, two), 600),
                initial(version, 1, &[&[1, 0, 0][..], &crypto(0, one)].concat(), 500),
            ];
            // In one datagram, and in two in either order.
            assert_eq!(
                Datagrams::default().push(&packets.concat()),
                found(SniffedProtocol::Quic, "example.com")
            );
            for order in [[0, 1], [1, 0]] {
                let mut datagrams = Datagrams::default();
                let first = datagrams.push(&packets[order[0]]);
                // The name may stand in the first piece already.
                if first == Sniffed::More {
                    assert_eq!(
                        datagrams.push(&packets[order[1]]),
                        found(SniffedProtocol::Quic, "example.com")
                    );
                } else {
                    assert_eq!(first, found(SniffedProtocol::Quic, "example.com"), "{cut}");
                }
            }
        }
    }
}

#[test]
fn pieces_in_any_order() {
    let hello = hex(HELLO);
    let pieces: Vec<Vec<u8>> =
        hello.chunks(20).enumerate().map(|(i, piece)| crypto(i * 20, piece)).rev().collect();
    let acks = [2, 0, 0, 0, 0, 3, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    let packet = initial(1, 0, &[&acks[..], &pieces.concat()].concat(), 1162);
    assert_eq!(Datagrams::default().push(&packet), found(SniffedProtocol::Quic, "example.com"));
    let twice = [crypto(0, &hello), crypto(0, &[0xff; 20])].concat();
    assert_eq!(
        Datagrams::default().push(&initial(1, 0, &twice, 1162)),
        found(SniffedProtocol::Quic, "example.com")
    );
}

#[test]
fn a_flow_that_never_ends_its_hello_is_given_up() {
    let mut datagrams = Datagrams::default();
    let packet = initial(1, 0, &crypto(0, &hex(HELLO)[..40]), 600);
    for _ in 1..MAX_DATAGRAMS {
        assert_eq!(datagrams.push(&packet), Sniffed::More);
    }
    assert_eq!(datagrams.push(&packet), found(SniffedProtocol::Quic, ""));
    // Pieces far behind, and more of them than a message has gaps.
    let far: Vec<u8> = (0..200).flat_map(|i| crypto(1 + 2 * i, b"x")).collect();
    assert_eq!(Datagrams::default().push(&initial(1, 0, &far, 1162)), Sniffed::More);
    assert_eq!(Datagrams::default().push(&initial(1, 0, &crypto(16_000, &[1; 1000]), 1162)), Sniffed::More);
}

#[test]
fn a_changed_packet_is_not_quic() {
    let packet = initial(1, 2, &crypto(0, &hex(HELLO)), 400);
    for at in 0..packet.len() {
        for bit in [1, 0x40] {
            let mut bytes = packet.clone();
            bytes[at] ^= bit;
            let answer = Datagrams::default().push(&bytes);
            assert_eq!(answer, Sniffed::Unknown, "{at} {bit}");
        }
    }
    for len in 0..packet.len() {
        assert_eq!(Datagrams::default().push(&packet[..len]), Sniffed::Unknown, "{len}");
    }
}

#[test]
fn other_datagrams() {
    let query = b"\x12\x34\x01\x20\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x07example\x00\x00\x41\x00\x01";
    assert_eq!(Datagrams::default().push(query), found(SniffedProtocol::Dns, ""));
    let mut syn = [0; 20];
    (syn[0], syn[17]) = (0x41, 1);
    assert_eq!(Datagrams::default().push(&syn), found(SniffedProtocol::BitTorrent, ""));
    for len in 0..query.len() {
        assert_eq!(Datagrams::default().push(&query[..len]), Sniffed::Unknown, "{len}");
    }
}

#[test]
fn what_a_fuzzer_asserts() {
    for data in
        [&b""[..], b"\x05\x01\x00\x00\x05", &records(&hex(HELLO), 10), &initial(1, 2, &hex(HELLO), 99)]
    {
        fuzz_sniff(data);
    }
}
