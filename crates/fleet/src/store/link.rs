//! A connection to the store. Each call has 250 ms; then the connection is dropped.

use std::future::poll_fn;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use adit_model::{Dial, Secret, Store};
use adit_net::dial::Dialer;
use adit_net::rt::{self, Stream, UnixStream};
use adit_net::tls::{Roots, TlsConnector, TlsOrPlain};
use adit_proto::wire::Target;

use super::resp::{Value, emit, parse};
use super::script;

/// Words of a request.
pub(super) type Words = Vec<Vec<u8>>;

/// Time for a call, or for a connection.
pub(super) const LIMIT: Duration = Duration::from_millis(250);
/// Time for a connection with TLS, and for a look-up of its name.
const CONNECT: Duration = Duration::from_secs(3);
/// Longest answer in bytes.
const MAX_ANSWER: usize = 32 << 20;

/// The place of a store.
#[derive(Debug, Clone)]
pub(super) struct Place {
    at: At,
    user: Option<String>,
    password: Option<Secret>,
    database: u32,
    sentinel: Option<Box<str>>,
}

/// Address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
enum At {
    Tcp(Target, bool),
    Unix(PathBuf),
}

/// A call that failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreError {
    /// The address is none.
    #[error("the store's address is wrong: {0}")]
    Address(&'static str),
    /// It cannot be reached, or the connection broke.
    #[error("the store is not reached: {0}")]
    Io(String),
    /// No answer in time.
    #[error("the store does not answer within {LIMIT:?}")]
    Late,
    /// It refuses.
    #[error("the store refuses: {0}")]
    Refused(String),
    /// It answers something else.
    #[error("the store answers something else")]
    Other,
    /// A Cluster sends the request to another server and back.
    #[error("the servers of the store send a request to each other")]
    Moved,
    /// Its users cannot be taken.
    #[error("{0}")]
    Users(&'static str),
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        Self::Io(error.to_string())
    }
}

impl Place {
    /// The place that a configuration names.
    ///
    /// # Errors
    /// When its address is none.
    pub(super) fn new(store: &Store) -> Result<Self, StoreError> {
        let text = store.url.expose();
        let sentinel = store.sentinel.clone();
        if let Some(path) = text.strip_prefix("unix://") {
            let at = At::Unix(path.into());
            return Ok(Self { at, user: None, password: None, database: 0, sentinel });
        }
        let (rest, tls) = match text.strip_prefix("rediss://") {
            Some(rest) => (rest, true),
            None => (text.strip_prefix("redis://").ok_or(StoreError::Address("unknown scheme"))?, false),
        };
        let (account, rest) =
            rest.rsplit_once('@').map_or((None, rest), |(account, rest)| (Some(account), rest));
        let (host, database) = rest.split_once('/').unwrap_or((rest, ""));
        let database = if database.is_empty() { Some(0) } else { database.parse().ok() };
        let has_port = host.rfind(':') > host.rfind(']');
        let host = if has_port { host.to_owned() } else { format!("{host}:6379") };
        let target = host.parse().map_err(|_| StoreError::Address("bad host or port"))?;
        let (user, password) = match account.map(|account| account.split_once(':').unwrap_or((account, ""))) {
            Some((user, password)) => (Some(user.to_owned()), Some(Secret::new(password))),
            None => (None, None),
        };
        Ok(Self {
            at: At::Tcp(target, tls),
            user: user.filter(|user| !user.is_empty()),
            password: password.filter(|password| !password.expose().is_empty()),
            database: database.ok_or(StoreError::Address("bad database"))?,
            sentinel,
        })
    }
}

enum Wire {
    Net(TlsOrPlain),
    Unix(UnixStream),
}

/// A connection.
pub(super) struct StoreConnection {
    wire: Wire,
    unread: Vec<u8>,
    /// Names of the scripts on this server, in order of [`script::ALL`].
    scripts: Vec<Vec<u8>>,
}

impl StoreConnection {
    /// Connects, signs in and chooses the database; by way of a Sentinel where there is one.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(super) async fn open(place: &Place) -> Result<Self, StoreError> {
        let mut link = Self::dial(&place.at).await?;
        if let Some(master) = &place.sentinel {
            let found = link.call(&[&[b"SENTINEL", b"get-master-addr-by-name", master.as_bytes()]]).await?;
            let Some([Value::List(words)]) = found.get(..1) else { return Err(StoreError::Other) };
            let [host, port] = &**words else { return Err(StoreError::Other) };
            let (host, port) = host.text().zip(port.text()).ok_or(StoreError::Other)?;
            let tls = matches!(place.at, At::Tcp(_, true));
            let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
            let target = format!("{host}:{port}").parse().map_err(|_| StoreError::Other)?;
            link = Self::dial(&At::Tcp(target, tls)).await?;
        }
        link.sign_in(place).await?;
        if place.database > 0 {
            link.call(&[&[b"SELECT", place.database.to_string().as_bytes()]]).await?;
        }
        link.load_scripts().await?;
        Ok(link)
    }

    /// Connects to another server of the Cluster that `place` is one of, at `host:port`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(super) async fn open_other(place: &Place, address: &str) -> Result<Self, StoreError> {
        let target = address.parse().map_err(|_| StoreError::Other)?;
        let mut link = Self::dial(&At::Tcp(target, matches!(place.at, At::Tcp(_, true)))).await?;
        link.sign_in(place).await?;
        link.load_scripts().await?;
        Ok(link)
    }

    async fn sign_in(&mut self, place: &Place) -> Result<(), StoreError> {
        let Some(password) = &place.password else { return Ok(()) };
        let (user, password) = (place.user.as_deref(), password.expose().as_bytes());
        match user {
            Some(user) => self.call(&[&[b"AUTH", user.as_bytes(), password]]).await?,
            None => self.call(&[&[b"AUTH", password]]).await?,
        };
        Ok(())
    }

    async fn load_scripts(&mut self) -> Result<(), StoreError> {
        for text in script::ALL {
            let loaded = self.call(&[&[b"SCRIPT", b"LOAD", text().as_bytes()]]).await?;
            let Some([Value::Text(name)]) = loaded.get(..1) else { return Err(StoreError::Other) };
            self.scripts.push(name.clone());
        }
        Ok(())
    }

    /// The name of a script on this server.
    pub(super) fn script(&self, index: usize) -> &[u8] {
        self.scripts.get(index).map_or(&[], Vec::as_slice)
    }

    async fn dial(at: &At) -> Result<Self, StoreError> {
        let dial = async {
            Ok(match at {
                At::Unix(path) => Wire::Unix(UnixStream::dial(path).await?),
                At::Tcp(target, tls) => {
                    let dialer = Dialer::by_system(&Dial::default());
                    let stream =
                        dialer.dial(target).await.map_err(|error| StoreError::Io(error.to_string()))?;
                    let stream = Stream::from(stream);
                    Wire::Net(if *tls {
                        let tls_error = |error: adit_net::tls::TlsError| StoreError::Io(error.to_string());
                        let connector = TlsConnector::new(&Roots::System, &[]).map_err(tls_error)?;
                        let stream =
                            Box::pin(connector.connect(&target.host, stream)).await.map_err(tls_error)?;
                        TlsOrPlain::Tls(Box::new(stream))
                    } else {
                        TlsOrPlain::Plain(stream)
                    })
                }
            })
        };
        let wire = rt::timeout(CONNECT, Box::pin(dial)).await.unwrap_or(Err(StoreError::Late))?;
        Ok(Self { wire, unread: Vec::new(), scripts: Vec::new() })
    }

    /// Sends requests together, and reads as many answers.
    ///
    /// # Errors
    /// [`StoreError`]; the first refusal counts for all. The connection is of no use after another error.
    pub(super) async fn call(&mut self, requests: &[&[&[u8]]]) -> Result<Vec<Value>, StoreError> {
        let answers = self.try_call(requests).await?;
        match answers
            .iter()
            .find_map(|answer| if let Value::Error(text) = answer { Some(text) } else { None })
        {
            Some(text) => Err(StoreError::Refused(text.clone())),
            None => Ok(answers),
        }
    }

    async fn try_call(&mut self, requests: &[&[&[u8]]]) -> Result<Vec<Value>, StoreError> {
        let mut bytes = Vec::new();
        requests.iter().for_each(|words| emit(&mut bytes, words));
        self.exchange(&bytes, requests.len()).await
    }

    /// Sends requests together, and reads as many answers, refusals among them.
    ///
    /// # Errors
    /// [`StoreError`]; the connection is of no use after one.
    pub(super) async fn call_each(&mut self, requests: &[Words]) -> Result<Vec<Value>, StoreError> {
        let mut bytes = Vec::new();
        for words in requests {
            emit(&mut bytes, &words.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
        self.exchange(&bytes, requests.len()).await
    }

    async fn exchange(&mut self, bytes: &[u8], count: usize) -> Result<Vec<Value>, StoreError> {
        let call = async {
            self.send(bytes).await?;
            let mut answers = Vec::with_capacity(count);
            while answers.len() < count {
                answers.push(self.answer().await?);
            }
            Ok(answers)
        };
        rt::timeout(LIMIT, call).await.unwrap_or(Err(StoreError::Late))
    }

    async fn answer(&mut self) -> Result<Value, StoreError> {
        let mut block = vec![0; 16 << 10];
        loop {
            if let Some((value, len)) = parse(&self.unread).map_err(|_| StoreError::Other)? {
                self.unread.drain(..len);
                return Ok(value);
            }
            let len = match &mut self.wire {
                Wire::Net(duplex) => poll_fn(|cx| duplex.poll_recv(cx, &mut block)).await?,
                Wire::Unix(stream) => stream.recv(&mut block).await?,
            };
            if len == 0 {
                return Err(StoreError::Io("the connection was closed".into()));
            }
            if self.unread.len() + len > MAX_ANSWER {
                return Err(StoreError::Other);
            }
            self.unread.extend_from_slice(&block[..len]);
        }
    }

    async fn send(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        match &mut self.wire {
            Wire::Unix(stream) => stream.send_all(bytes).await?,
            Wire::Net(duplex) => {
                while !bytes.is_empty() {
                    let len = poll_fn(|cx| duplex.poll_send(cx, bytes)).await?;
                    bytes = &bytes[len..];
                }
                poll_fn(|cx| duplex.poll_flush(cx)).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use adit_model::StoreAway;

    use super::*;

    /// A store that stands still, and one that sends a byte now and then.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a store that does not answer")]
    fn a_call_ends_in_time() {
        use std::io::Write as _;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let [_silent, mut slow] = [(); 2].map(|()| listener.accept().unwrap().0);
            slow.write_all(b"$").unwrap();
            while slow.write_all(b"0").is_ok() {
                std::thread::sleep(LIMIT / 5);
            }
        });
        rt::Cores::block_on(async {
            for _ in 0..2 {
                let mut link =
                    StoreConnection::dial(&At::Tcp(at.to_string().parse().unwrap(), false)).await.unwrap();
                let since = rt::now();
                assert!(matches!(link.call(&[&[b"PING"]]).await, Err(StoreError::Late)));
                let took = rt::now() - since;
                assert!(took >= LIMIT && took < 40 * LIMIT, "{took:?}");
            }
        })
        .unwrap();
    }

    #[test]
    fn addresses_of_stores() {
        let of = |url: &str| {
            Place::new(&Store {
                url: Secret::new(url),
                fleet: "f".into(),
                away: StoreAway::Allowance,
                every: Store::EVERY,
                sentinel: None,
                users_key: None,
                replay: None,
            })
        };
        let place = of("redis://ann:p@ss@[::1]:7000/3").unwrap();
        assert_eq!(place.at, At::Tcp("[::1]:7000".parse().unwrap(), false));
        assert_eq!((place.user.as_deref(), place.database), (Some("ann"), 3));
        assert_eq!(place.password.as_ref().map(Secret::expose), Some("p@ss"));
        assert_eq!(of("rediss://h").unwrap().at, At::Tcp("h:6379".parse().unwrap(), true));
        assert_eq!(of("redis://:pw@h").unwrap().user, None);
        assert_eq!(of("unix:///run/r.sock").unwrap().at, At::Unix("/run/r.sock".into()));
        for wrong in ["redis://h:0x/1", "redis://h/x", "http://h", "redis://"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
