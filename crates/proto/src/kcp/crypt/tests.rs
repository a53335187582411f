use adit_testkit::{hex, load, text};
use proptest::{prop_assert_eq, proptest};

use super::*;

/// Counts up; the testkit's source belongs to another copy of this crate.
struct Counting(u8);

impl Rng for Counting {
    fn fill(&mut self, out: &mut [u8]) {
        for byte in out {
            *byte = self.0;
            self.0 = self.0.wrapping_add(1);
        }
    }
}

fn secret() -> KcpSecret {
    KcpSecret::derive(b"test-key-1")
}

fn sealed(crypt: &Crypt, payload: &[u8]) -> Vec<u8> {
    let method = crypt.method();
    let mut packet = vec![0; method.head_len()];
    packet.extend(payload);
    packet.resize(packet.len() + method.tail_len(), 0);
    crypt.seal(&mut packet, &mut Counting(0));
    packet
}

#[test]
fn recorded_keys() {
    let file = load("kcp/kdf.json");
    for row in file["vectors"].as_array().unwrap() {
        let secret = KcpSecret::derive(&hex(text(row, "key_utf8_hex")));
        assert_eq!(secret.0[..], hex(text(row, "derived_32")), "{}", row["key"]);
        let Cipher::Xor(table) = Crypt::new(KcpMethod::Xor, &secret).cipher else {
            unreachable!("asked for")
        };
        assert_eq!(table[..64], hex(text(row, "xor_table_1500_first_64")), "{}", row["key"]);
    }
}

#[test]
fn recorded_pads() {
    let file = load("kcp/qpp.json");
    for row in file["vectors"].as_array().unwrap() {
        let pads = Pads::derive(text(row, "key").as_bytes(), 61);
        for pad in row["sample_pads"].as_array().unwrap() {
            let number = usize::try_from(pad["pad"].as_u64().unwrap()).unwrap();
            assert_eq!(pads.forward(number), hex(text(pad, "forward_hex")), "pad {number}");
        }
        let words = row["xoshiro_state_le_words"].as_array().unwrap();
        let words = words.iter().map(|word| u64::from_str_radix(word.as_str().unwrap(), 16).unwrap());
        assert!(words.eq(pads.start()));
        let mut data: Vec<u8> = (0..32).collect();
        pads.stream().open(&mut data);
        assert_eq!(data, hex(text(row, "decrypt_of_00_to_1f")));
    }
}

#[test]
fn names() {
    for method in KcpMethod::ALL {
        assert_eq!(KcpMethod::from_name(method.name()), Some(method));
    }
    assert_eq!(KcpMethod::from_name("aes-256"), None);
}

/// Every length up to some blocks, so that each mode meets each remainder.
#[test]
fn round_trip() {
    for method in KcpMethod::ALL {
        let crypt = Crypt::new(method, &secret());
        for len in 0..100 {
            let payload: Vec<u8> = (0..len).collect();
            let mut packet = sealed(&crypt, &payload);
            let range = crypt.open(&mut packet).unwrap();
            assert_eq!(packet[range], payload, "{} of {len} bytes", method.name());
        }
    }
}

#[test]
fn truncated_and_flipped() {
    for method in KcpMethod::ALL.into_iter().filter(|method| *method != KcpMethod::Null) {
        let crypt = Crypt::new(method, &secret());
        let packet = sealed(&crypt, b"forty bytes of payload, give or take one");
        for len in 0..packet.len() {
            assert!(crypt.open(&mut packet[..len].to_vec()).is_err(), "{} cut to {len}", method.name());
        }
        // The nonce is not covered by the checksum; in CFB it reaches no further than the next block.
        let from = if method == KcpMethod::Aes128Gcm { 0 } else { HEADER_LEN };
        for at in from..packet.len() {
            let mut packet = packet.clone();
            packet[at] ^= 1;
            assert!(crypt.open(&mut packet).is_err(), "{} flipped at {at}", method.name());
        }
    }
}

#[test]
fn wrong_key() {
    for method in KcpMethod::ALL {
        let mut packet = sealed(&Crypt::new(method, &secret()), b"payload of some length");
        let opened = Crypt::new(method, &KcpSecret::derive(b"another")).open(&mut packet);
        assert_eq!(opened.is_ok(), matches!(method, KcpMethod::None | KcpMethod::Null), "{}", method.name());
    }
}

proptest! {
    #[test]
    fn pads_at_any_split(data: Vec<u8>, piece in 1_usize..20) {
        let pads = Pads::derive(b"it's a secrect", 3);
        let mut whole = data.clone();
        pads.stream().seal(&mut whole);
        let mut stream = pads.stream();
        let mut pieces = data.clone();
        pieces.chunks_mut(piece).for_each(|piece| stream.seal(piece));
        prop_assert_eq!(&pieces, &whole);
        pads.stream().open(&mut whole);
        prop_assert_eq!(whole, data);
    }

    #[test]
    fn any_datagram(data: Vec<u8>) {
        fuzz_crypt(&data);
    }
}
