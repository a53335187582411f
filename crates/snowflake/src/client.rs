//! The SOCKS port of a client.

use std::rc::Rc;
use std::time::Duration;

use adit_model::{Dial, Egress, SnowflakeClient};
use adit_net::accept::Acceptor;
use adit_net::dial::Dialer;
use adit_net::rt::{self, Stream};
use adit_proto::buf::RecvBuf;
use adit_proto::socks::{Auth, MAX_UNIT_LEN, SocksEvent, SocksServer};
use adit_proto::wire::ConnectFailure;

use super::Voice;
use super::collection::Collection;
use super::rendezvous::Rendezvous;
use super::session::SnowflakeSession;

/// Time for a SOCKS handshake.
const HANDSHAKE: Duration = Duration::from_secs(30);
/// Connections at one time.
const MAX_CONNECTIONS: usize = 1024;

/// Reads the arguments of one connection over the general settings.
pub type SnowflakeArguments = fn(&SnowflakeClient, &str) -> Result<SnowflakeClient, String>;

/// Takes SOCKS connections, for ever; each gets a session of its own.
///
/// # Errors
/// When the listener is lost.
pub async fn run_snowflake_client(
    mut acceptor: Acceptor,
    settings: SnowflakeClient,
    arguments: SnowflakeArguments,
    voice: Rc<dyn Voice>,
) -> std::io::Result<()> {
    let settings = Rc::new(settings);
    let open = Rc::new(std::cell::Cell::new(0_usize));
    loop {
        let (accepted, _) = acceptor.accept().await?;
        if open.get() >= MAX_CONNECTIONS {
            voice.log(format_args!("{MAX_CONNECTIONS} SOCKS connections are open: one more is turned away"));
            continue;
        }
        open.set(open.get() + 1);
        let (settings, voice, open) = (settings.clone(), voice.clone(), open.clone());
        rt::spawn_local(async move {
            Box::pin(serve(accepted.into(), &settings, arguments, voice)).await;
            open.set(open.get() - 1);
        });
    }
}

async fn serve(
    stream: Stream,
    settings: &SnowflakeClient,
    arguments: SnowflakeArguments,
    voice: Rc<dyn Voice>,
) {
    let greeted = rt::timeout(HANDSHAKE, greet(&stream, settings, arguments, &*voice)).await;
    let settings = match greeted {
        Ok(Ok(settings)) => Rc::new(settings),
        Ok(Err(why)) => return voice.log(format_args!("SOCKS accept error: {why}")),
        Err(elapsed) => return voice.log(format_args!("SOCKS accept error: {elapsed}")),
    };
    voice.log(format_args!("\n\n\n --- Starting Snowflake Client ---"));
    warn(&settings, &*voice);
    let rendezvous =
        match Rendezvous::new(settings.clone(), voice.clone(), Dialer::by_system(&Dial::default())) {
            Ok(rendezvous) => rendezvous,
            Err(error) => return voice.log(format_args!("no TLS: {error}")),
        };
    if let Some(broker) = &settings.broker {
        let scheme = if broker.tls { "https" } else { "http" };
        voice.log(format_args!("Rendezvous using Broker at: {scheme}://{}{}", broker.authority, broker.path));
    }
    let collection = Collection::begin(settings.clone(), voice.clone(), rendezvous, Egress::default());
    let session = SnowflakeSession::new(stream, &settings, collection, voice.clone());
    Box::pin(session.run()).await;
    voice.log(format_args!("Handler ended"));
}

/// Says which settings change nothing.
pub(super) fn warn(settings: &SnowflakeClient, voice: &dyn Voice) {
    let say = |message: &str| {
        voice.log(format_args!("{message}"));
        voice.tell("warning", message);
    };
    if let Some(name) = &settings.imitates {
        say(&format!("utls-imitate={name} is not obeyed: the TLS hello is adit's own"));
    }
    if settings.mimics_dtls {
        say("covertdtls-config is not obeyed: the DTLS hello is adit's own");
    }
    if settings.wants_queue {
        say("sqsqueue is not obeyed: rendezvous by SQS is not part of adit");
    }
}

/// The handshake. The target counts for nothing; user and password hold arguments.
async fn greet(
    stream: &Stream,
    settings: &SnowflakeClient,
    arguments: SnowflakeArguments,
    voice: &dyn Voice,
) -> Result<SnowflakeClient, String> {
    let mut wire = RecvBuf::with_len(MAX_UNIT_LEN);
    while !is_greeting(wire.unread()) {
        more(stream, &mut wire).await?;
    }
    // Credentials are arguments: a client that can send them is asked for them.
    let methods = wire.unread().get(2..).unwrap_or_default();
    let auth =
        if wire.unread().first() == Some(&5) && methods.contains(&2) { Auth::Required } else { Auth::Open };
    let mut server = SocksServer::new(auth);
    let mut text = String::new();
    let mut out = Vec::new();
    let request = loop {
        let event = server.advance(&mut wire, &mut out);
        if !matches!(event, Ok(SocksEvent::Request(_))) || event.is_err() {
            stream.send_all(&std::mem::take(&mut out)).await.map_err(|error| error.to_string())?;
        }
        match event.map_err(|error| error.to_string())? {
            SocksEvent::NeedMore => more(stream, &mut wire).await?,
            SocksEvent::Credentials(credentials) => {
                // A password of one zero byte stands for an empty one.
                let password = credentials.password();
                let password = if password == [0] { &[] } else { password };
                text = String::from_utf8_lossy(&[credentials.user(), password].concat()).into_owned();
                server.authenticate(true, &mut out).map_err(|error| error.to_string())?;
            }
            SocksEvent::Request(request) => break request,
        }
    };
    voice.log(format_args!("SOCKS accepted: {{{} {text}}}", request.target));
    let merged = arguments(settings, &text);
    let outcome = match &merged {
        Ok(_) => Ok(std::net::SocketAddr::from(([0, 0, 0, 0], 0))),
        Err(_) => Err(ConnectFailure::General),
    };
    request.emit_reply(outcome, &mut out);
    stream.send_all(&out).await.map_err(|error| error.to_string())?;
    merged
}

/// Whether the first message of a client is complete; one that is not of version 5 always is.
fn is_greeting(bytes: &[u8]) -> bool {
    match bytes {
        [] | [5] => false,
        [5, count, methods @ ..] => methods.len() >= usize::from(*count),
        _ => true,
    }
}

async fn more(stream: &Stream, wire: &mut RecvBuf) -> Result<(), String> {
    wire.compact();
    let free = wire.free_mut();
    if free.is_empty() {
        return Err("the handshake is too long".to_owned());
    }
    let len = stream.recv(free).await.map_err(|error| error.to_string())?;
    if len == 0 {
        return Err("the connection was closed in the handshake".to_owned());
    }
    wire.filled(len);
    Ok(())
}
