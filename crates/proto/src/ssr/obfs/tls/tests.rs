use super::*;
use crate::ssr::ssr_fuzz::testing::Zeros;

const UNIX_S: u64 = 1_800_000_000;

/// A client that has sent its hello, and the key of the tags.
fn client() -> (SsrTlsClient, Tags) {
    let key = SsrKey::from_password("none".parse().unwrap(), b"password");
    let session = Arc::new(SessionId([7; ID_LEN]));
    let config =
        SsrObfsClientConfig::new(Obfs::TlsTicketAuth, &key, "cloud.example", "host", 443, session).unwrap();
    (SsrTlsClient::new(&config, UNIX_S, &mut Zeros), Tags::new(&key, &[7; ID_LEN]))
}

/// An answer with `ticket` behind a length of `ticket_len`, and a finish of `finish_len` bytes.
fn answer(tags: &Tags, ticket_len: u8, ticket: &[u8], finish_len: u8) -> Vec<u8> {
    let mut answer = SERVER_HELLO_HEAD.to_vec();
    answer.extend(tags.auth(UNIX_S, &mut Zeros));
    answer.push(0x20);
    answer.extend([7; ID_LEN]);
    answer.extend(SERVER_HELLO_TAIL);
    answer.extend([0x16, 3, 3, 0, ticket_len + 4, 4, 0, 0, ticket_len]);
    answer.extend(ticket);
    answer.extend(CCS);
    answer.extend([0x16, 3, 3, 0, finish_len]);
    answer.extend(vec![0x14; usize::from(finish_len) - TAG_LEN]);
    let tag = tags.tag(&answer);
    answer.extend(tag);
    answer
}

#[test]
fn a_ticket_that_is_announced_may_be_missing() {
    for finish_len in [32, 40] {
        for ticket in [&[][..], &[9; 64]] {
            let (_, tags) = client();
            let answer = answer(&tags, 64, ticket, finish_len);
            for cut in 0..=answer.len() {
                let (mut client, _) = client();
                let (mut wire, mut out) = (RecvBuf::with_len(answer.len() + 1), Vec::new());
                for part in [&answer[..cut], &answer[cut..], b"\x17"] {
                    wire.extend(part);
                    match client.handshake(&mut wire, &mut out).unwrap() {
                        SsrHandshake::Done => break,
                        SsrHandshake::NeedMore(missing) => assert!(missing > 0),
                    }
                }
                assert!(client.is_answered, "finish {finish_len}, ticket {}, cut {cut}", ticket.len());
                let rest = wire.unread();
                assert!(rest.is_empty() || rest == b"\x17", "{} bytes left", rest.len());
            }
        }
    }
}

/// shadowsocksr-libev's server writes a tag there that nobody can check.
#[test]
fn the_tag_at_the_end_of_an_answer_is_not_looked_at() {
    let (mut client, tags) = client();
    let mut answer = answer(&tags, 64, &[], 32);
    let tag_at = answer.len() - TAG_LEN;
    answer[tag_at..].fill(0xa5);
    let mut wire = RecvBuf::from_bytes(&answer);
    client.handshake(&mut wire, &mut Vec::new()).unwrap();
    assert!(client.is_answered && wire.unread().is_empty());
}

fn fastauth() -> SsrObfsClientConfig {
    let key = SsrKey::from_password("none".parse().unwrap(), b"password");
    let session = Arc::new(SessionId([7; ID_LEN]));
    SsrObfsClientConfig::new(Obfs::TlsTicketFastauth, &key, "cloud.example", "host", 443, session).unwrap()
}

/// A connection of `config` as far as its server's answer, if there is one; whether it sent more than its hello at
/// first.
fn connect(config: &SsrObfsClientConfig, answer: Option<&[u8]>) -> bool {
    let mut client = SsrTlsClient::new(config, UNIX_S, &mut Zeros);
    let (mut wire, mut out) = (RecvBuf::with_len(1024), Vec::new());
    let is_eager = client.handshake(&mut wire, &mut out).unwrap() == SsrHandshake::Done;
    assert_eq!(out.is_empty(), is_eager, "a hello goes alone");
    if is_eager {
        let head = client.plan().first.head;
        let mut block = vec![0; head + 3];
        let sealed = client.seal(&mut block, head..head + 3);
        let flight = &block[sealed];
        let finish_at = flight.len() - 3 - RECORD_HEAD - FINISH_LEN;
        assert!(flight.starts_with(&[0x16, 3, 1]) && flight[finish_at..].starts_with(&CCS));
    }
    if let Some(answer) = answer {
        wire.extend(answer);
        client.open_answer(&mut wire).unwrap();
        assert!(client.is_answered && wire.unread().is_empty());
    }
    is_eager
}

/// Answers that neither shadowsocksr-native nor shadowsocksr-libev can give show that one flight is enough.
#[test]
fn a_client_learns_whether_its_server_takes_one_flight() {
    let tags = Tags::new(&SsrKey::from_password("none".parse().unwrap(), b"password"), &[7; ID_LEN]);
    let full = [9; 64];
    let config = fastauth();
    for finish_len in 32..40 {
        assert!(!connect(&config, Some(&answer(&tags, 64, &full, finish_len))), "finish {finish_len}");
    }
    let mut unsigned = answer(&tags, 64, &full, 40);
    *unsigned.last_mut().unwrap() ^= 1;
    assert!(!connect(&config, Some(&unsigned)));
    assert!(!connect(&config, Some(&answer(&tags, 64, &full, 40))));
    for finish_len in 32..=40 {
        assert!(connect(&config, Some(&answer(&tags, 64, &full, finish_len))), "known by now");
    }
    assert!(connect(&config, None), "this one stays without an answer");
    assert!(!connect(&config, None));
    assert!(!connect(&fastauth(), None), "another server");
}

#[test]
fn an_answer_whose_hello_is_changed_is_refused() {
    let (_, tags) = client();
    let answer = answer(&tags, 64, &[], 32);
    for at in 0..ID_AT + 1 + ID_LEN {
        let (mut client, _) = client();
        let mut changed = answer.clone();
        changed[at] ^= 1;
        let mut wire = RecvBuf::from_bytes(&changed);
        let result = client.handshake(&mut wire, &mut Vec::new());
        assert!(!matches!(result, Ok(SsrHandshake::Done)), "byte {at}");
    }
}
