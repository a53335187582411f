//! As much of a server of HTTP/2 (RFC 9113) as a question needs. Of header blocks it looks at indexed fields alone.

use std::collections::HashMap;
use std::io::{self, Read, Write};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// RFC 7541 appendix A, as an indexed field: `:method: POST`, `:scheme: https` and `:status: 200`.
const POST: u8 = 0x83;
const SCHEME_HTTPS: u8 = 0x87;
const STATUS_200: u8 = 0x88;
/// `content-type`, index 31, as a literal without indexing.
const CONTENT_TYPE: [u8; 2] = [0x0f, 31 - 15];

/// Answers the questions that are posted until the client is gone.
pub(super) fn serve(mut stream: impl Read + Write, answer: impl Fn(&[u8]) -> Vec<u8>) -> io::Result<()> {
    let mut preface = [0; PREFACE.len()];
    stream.read_exact(&mut preface)?;
    assert_eq!(preface, PREFACE);
    write(&mut stream, SETTINGS, 0, 0, &[])?;
    let mut questions: HashMap<u32, Vec<u8>> = HashMap::new();
    let mut last = 0;
    loop {
        let (kind, flags, id, payload) = read(&mut stream)?;
        match kind {
            SETTINGS if flags & ACK == 0 => write(&mut stream, SETTINGS, ACK, 0, &[])?,
            PING if flags & ACK == 0 => write(&mut stream, PING, ACK, 0, &payload)?,
            HEADERS => {
                assert!(id > last && id % 2 == 1, "ids of streams grow: {last} {id}");
                assert!(
                    flags & END_HEADERS != 0 && flags & END_STREAM == 0,
                    "a request with a body: {flags}"
                );
                assert!(payload.contains(&POST) && payload.contains(&SCHEME_HTTPS), "{payload:x?}");
                last = id;
                questions.insert(id, Vec::new());
            }
            DATA => {
                let question = questions.get_mut(&id).expect("headers come first");
                question.extend_from_slice(&payload);
                if flags & END_STREAM != 0 {
                    let message = answer(&questions.remove(&id).unwrap());
                    respond(&mut stream, id, &message)?;
                }
            }
            _ => {}
        }
    }
}

fn respond(stream: &mut impl Write, id: u32, message: &[u8]) -> io::Result<()> {
    let kind = b"application/dns-message";
    let len = u8::try_from(kind.len()).unwrap();
    let head = [&[STATUS_200][..], &CONTENT_TYPE, &[len], kind].concat();
    write(stream, HEADERS, END_HEADERS, id, &head)?;
    // Two frames: a body may come in pieces.
    let (first, rest) = message.split_at(message.len() / 2);
    write(stream, DATA, 0, id, first)?;
    write(stream, DATA, END_STREAM, id, rest)
}

fn read(stream: &mut impl Read) -> io::Result<(u8, u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let [a, b, c, kind, flags, id @ ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    stream.read_exact(&mut payload)?;
    Ok((kind, flags, u32::from_be_bytes(id) & 0x7fff_ffff, payload))
}

fn write(stream: &mut impl Write, kind: u8, flags: u8, id: u32, payload: &[u8]) -> io::Result<()> {
    let [_, a, b, c] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let [d, e, f, g] = id.to_be_bytes();
    stream.write_all(&[a, b, c, kind, flags, d, e, f, g])?;
    stream.write_all(payload)?;
    stream.flush()
}
