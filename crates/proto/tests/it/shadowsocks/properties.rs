//! Round trips over arbitrary payloads, frame sizes and splits, and arbitrary bytes into everything that opens.

use adit_proto::crypto::stream::{BlockCipher, BlockMode, Direction, StreamAlgorithm, StreamCipherKey};
use adit_proto::shadowsocks::{
    NoFilter, ServerKey, ShadowsocksAcceptor, ShadowsocksClientStream, ShadowsocksMethod, client_packets,
    fuzz_accept, fuzz_packets, fuzz_response,
};
use adit_proto::wire::{Target, fuzz_address};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::shadowsocks::streams::key;
use crate::shadowsocks::support::{NOW_S, Script, accept_cut, clock, now, open_cut, pieces, seal_all};

fn method() -> impl Strategy<Value = ShadowsocksMethod> {
    proptest::sample::select(ShadowsocksMethod::all().collect::<Vec<_>>())
}

fn target() -> impl Strategy<Value = Target> {
    let name = "[a-z]{1,63}(\\.[a-z]{1,20}){0,3}";
    prop_oneof![
        any::<([u8; 4], u16)>().prop_map(|(ip, port)| std::net::SocketAddr::from((ip, port)).into()),
        any::<([u8; 16], u16)>().prop_map(|(ip, port)| std::net::SocketAddr::from((ip, port)).into()),
        (name, any::<u16>()).prop_map(|(name, port)| Target::new(name.as_bytes(), port).expect("a name")),
    ]
}

/// Sorted offsets into `len` bytes.
fn offsets(raw: &[u16], from: usize, len: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> = raw.iter().map(|&cut| from + usize::from(cut) % (len - from + 1)).collect();
    cuts.sort_unstable();
    cuts
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn streams(
        method in method(),
        target in target(),
        plain in vec(any::<u8>(), 1..2_000),
        frames in vec(any::<u16>(), 0..4),
        cuts in vec(any::<u16>(), 0..6),
        seed: u64,
    ) {
        let key = key(method);
        let frames = pieces(&plain, &offsets(&frames, 0, plain.len()));
        let mut client = ShadowsocksClientStream::new(&key, &target, clock(NOW_S), &mut Script::seeded(seed));
        let request = seal_all(&mut client, &frames);
        let acceptor = ShadowsocksAcceptor::new(&ServerKey::new(key)).with_split_header();
        let at = offsets(&cuts, 0, request.len());
        let (accepted, opened, mut server) =
            accept_cut(acceptor, &request, &at, NOW_S, &mut NoFilter, &mut Script::seeded(!seed)).unwrap();
        prop_assert_eq!(accepted.target, target);
        prop_assert_eq!(&opened, &plain);
        let response = seal_all(&mut server, &frames);
        let at = offsets(&cuts, 0, response.len());
        prop_assert_eq!(open_cut(&mut client, &response, &at), Ok(plain));
    }

    #[test]
    fn garbage(method in method(), bytes in vec(any::<u8>(), 0..400), split in 1_usize..50) {
        let key = key(method);
        fuzz_accept(&ServerKey::new(key.clone()), clock(NOW_S), now(), &bytes, split);
        let target = "a:1".parse().unwrap();
        let client = ShadowsocksClientStream::new(&key, &target, clock(NOW_S), &mut Script::seeded(1));
        fuzz_response(client, now(), &bytes, split);
        fuzz_packets(&ServerKey::new(key), NOW_S, &bytes, &mut Script::seeded(1));
        fuzz_address(&bytes);
    }

    #[test]
    fn damaged_datagrams(method in method(), target in target(), at: u16, with: u8) {
        let key = key(method);
        let mut codec = client_packets(&key, &mut Script::seeded(1));
        let (mut block, range) = crate::shadowsocks::support::block_for(codec.room(&target), b"payload");
        let range = codec.seal(&mut block, range, &target, NOW_S, &mut Script::seeded(2)).unwrap();
        let datagram = &mut block[range];
        datagram[usize::from(at) % datagram.len()] = with;
        fuzz_packets(&ServerKey::new(key), NOW_S, datagram, &mut Script::seeded(1));
    }

    /// However the input is cut, the keystream is the same, and decryption undoes encryption.
    #[test]
    fn keystreams(
        algorithm in algorithm(),
        plain in vec(any::<u8>(), 1..1_500),
        cuts in vec(any::<u16>(), 0..8),
        iv: [u8; 32],
    ) {
        let key_bytes = [0x5a; 32];
        let key = StreamCipherKey::new(algorithm, &key_bytes[..algorithm.key_len()]);
        let iv = &iv[..algorithm.iv_len()];
        let mut whole = plain.clone();
        key.cipher(iv, Direction::Encrypt).apply(&mut whole).unwrap();
        for direction in [Direction::Encrypt, Direction::Decrypt] {
            let mut cipher = key.cipher(iv, direction);
            let input = if direction == Direction::Encrypt { &plain } else { &whole };
            let mut output = Vec::new();
            for piece in pieces(input, &offsets(&cuts, 0, input.len())) {
                let mut piece = piece.to_vec();
                cipher.apply(&mut piece).unwrap();
                output.extend(piece);
            }
            prop_assert_eq!(&output, if direction == Direction::Encrypt { &whole } else { &plain });
        }
    }
}

fn algorithm() -> impl Strategy<Value = StreamAlgorithm> {
    let ciphers = [BlockCipher::Aes128, BlockCipher::Aes192, BlockCipher::Aes256, BlockCipher::Camellia256];
    let modes = [BlockMode::Ctr, BlockMode::Cfb, BlockMode::Cfb1, BlockMode::Cfb8, BlockMode::Ofb];
    let blocks = (proptest::sample::select(ciphers.to_vec()), proptest::sample::select(modes.to_vec()));
    prop_oneof![
        blocks.prop_map(|(cipher, mode)| StreamAlgorithm::Block(cipher, mode)),
        proptest::sample::select(vec![
            StreamAlgorithm::Rc4Md5,
            StreamAlgorithm::BlowfishCfb,
            StreamAlgorithm::Salsa20,
            StreamAlgorithm::Chacha20,
            StreamAlgorithm::Chacha20Ietf,
            StreamAlgorithm::Xchacha20,
        ]),
    ]
}
