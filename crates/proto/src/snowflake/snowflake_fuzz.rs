//! Fuzz targets.

use super::description::SessionDescription;
use super::encapsulation::{Reader, SERVER_PACKET_LEN, push_packet};
use super::extor::Cookie;
use super::messages::{AnswerReply, ClientPoll, ClientReply, Nat, PollReply, ProxyAnswer, ProxyPoll};
use super::pattern::RelayPattern;
use super::{Prologue, Scheme, amp};

/// Chunks: the first byte splits the rest in two. The packets do not depend on the split, and written anew they are found
/// again.
#[doc(hidden)]
pub fn fuzz_snowflake_chunks(data: &[u8]) {
    let Some((&split, stream)) = data.split_first() else { return };
    let split = stream.len() * usize::from(split) / 255;
    let whole = packets(&[stream]);
    let parts = packets(&[&stream[..split], &stream[split..]]);
    assert_eq!(whole, parts);
    let mut again = Vec::new();
    whole.0.iter().for_each(|packet| push_packet(&mut again, packet));
    assert_eq!(packets(&[&again]), (whole.0, true));
}

/// The packets, and whether the stream was right to its end.
fn packets(pieces: &[&[u8]]) -> (Vec<Vec<u8>>, bool) {
    let (mut reader, mut out) = (Reader::new(SERVER_PACKET_LEN), Vec::new());
    for mut piece in pieces.iter().copied() {
        loop {
            match reader.next(&mut piece) {
                Ok(Some(packet)) => out.push(packet.to_vec()),
                Ok(None) => break,
                Err(_) => return (out, false),
            }
        }
    }
    (out, true)
}

/// Messages: each that is understood is understood the same when it is written anew.
#[doc(hidden)]
pub fn fuzz_snowflake_messages(data: &[u8]) {
    for scheme in [Scheme::Current, Scheme::Old] {
        if let Ok(poll) = ClientPoll::parse(data, scheme) {
            assert_eq!(ClientPoll::parse(poll.emit().as_bytes(), scheme), Ok(poll));
        }
        if let Ok(poll) = ProxyPoll::parse(data, scheme) {
            assert_eq!(ProxyPoll::parse(poll.emit().as_bytes(), scheme), Ok(poll));
        }
        if let Ok(answer) = ProxyAnswer::parse(data, scheme) {
            assert_eq!(ProxyAnswer::parse(answer.emit().as_bytes(), scheme), Ok(answer));
        }
    }
    if let Ok(reply) = ClientReply::parse(data) {
        assert_eq!(ClientReply::parse(reply.emit().as_bytes()), Ok(reply));
    }
    if let Ok(reply) = PollReply::parse(data) {
        assert_eq!(PollReply::parse(reply.emit(Scheme::Current).as_bytes()), Ok(reply));
    }
    if let Ok(reply) = AnswerReply::parse(data) {
        assert_eq!(AnswerReply::parse(reply.emit().as_bytes()), Ok(reply));
    }
    let text = String::from_utf8_lossy(data);
    assert!(Nat::parse(&text, Scheme::Old).is_none() || Nat::parse(&text, Scheme::Current).is_some());
    if let Ok(description) = SessionDescription::parse(&text) {
        assert!(description.candidates(8).len() <= 8);
        assert_eq!(SessionDescription::parse(&description.emit()), Ok(description));
    }
}

/// AMP: paths, addresses and documents.
#[doc(hidden)]
pub fn fuzz_snowflake_amp(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(found) = amp::parse_document(&text) {
        assert_eq!(amp::parse_document(&amp::emit_document(&found)), Ok(found));
    }
    if let Ok(found) = amp::parse_path(&text) {
        assert_eq!(amp::parse_path(&amp::emit_path(&[0; 9], &found)), Ok(found));
    }
    if let Ok(url) = amp::cache_url(&text, "https://cache.example/") {
        let host = url.strip_prefix("https://").and_then(|rest| rest.split('/').next()).unwrap_or_default();
        let label = host.strip_suffix(".cache.example").expect("a label in front of the cache");
        assert!(label.len() <= 63, "{label}");
    }
}

/// A client's first bytes, Tor's secret, and patterns of hosts: the text is a pattern, a line end, and a pattern or a host.
#[doc(hidden)]
pub fn fuzz_snowflake_edges(data: &[u8]) {
    if let Prologue::Complete(id) = Prologue::parse(data) {
        assert!(data.starts_with(&Prologue::emit(id)));
    }
    assert!(Cookie::parse(data).is_none() || data.len() == 64);
    let text = String::from_utf8_lossy(data);
    let (rule, other) = text.split_once('\n').unwrap_or((&text, ""));
    let (one, two) = (RelayPattern::parse(rule), RelayPattern::parse(other));
    // A pattern that covers another accepts what that accepts.
    assert!(!(one.covers(&two) && two.matches(other)) || one.matches(other));
}
