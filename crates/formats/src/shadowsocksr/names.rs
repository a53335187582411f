//! One server or client: its names and parameters.

use std::sync::Arc;

use adit_model::diagnostic::{Diagnostic, Diagnostics};
use adit_model::{Redirect, Secret, SsrClient, SsrServer, SsrUsers, Transports, User, UserLimits};
use adit_proto::ssr::protocol::DEFAULT_INTERVAL_S;
use adit_proto::ssr::{NameError, Obfs, SsrMethod, SsrProtocol};
use adit_proto::wire::Target;

use super::file::{SsrSetting, SsrSettings};
use crate::read::value::{self, MAX_CREDENTIAL, Problem, excerpt, secret, text_of};
use crate::shadowsocks::MAX_TEXT;
use crate::shadowsocks::option_value::OptionValue;

/// Settings of several origins; the first that says something counts.
#[derive(Clone)]
pub(crate) struct OptionSources<'a>(pub(crate) Vec<&'a [(SsrSetting, OptionValue)]>);

impl OptionSources<'_> {
    /// The last value of a key in the first section that has one.
    pub(crate) fn get(&self, key: SsrSetting) -> Option<OptionValue> {
        let of = |section: &&[(SsrSetting, OptionValue)]| {
            section.iter().rfind(|(name, _)| *name == key).map(|(_, given)| given.clone())
        };
        self.0.iter().find_map(of)
    }

    /// Every value of a key in the first section that has one.
    pub(super) fn all(&self, key: SsrSetting) -> Vec<OptionValue> {
        let of = |section: &[(SsrSetting, OptionValue)]| -> Vec<OptionValue> {
            section.iter().filter(|(name, _)| *name == key).map(|(_, given)| given.clone()).collect()
        };
        self.0.iter().map(|section| of(section)).find(|all| !all.is_empty()).unwrap_or_default()
    }

    pub(super) fn is_on(&self, key: SsrSetting) -> bool {
        self.get(key).is_some_and(|given| given.text() == "true")
    }

    /// A text; nothing if it is empty.
    pub(crate) fn text(&self, key: SsrSetting, found: &mut Diagnostics) -> Option<Box<str>> {
        let given = self.get(key).filter(|given| !given.text().is_empty())?;
        given.parsed(found, |text| text_of(text, MAX_TEXT))
    }

    /// A whole number; nothing if it is 0, or empty, which is reported.
    pub(crate) fn number(&self, key: SsrSetting, found: &mut Diagnostics) -> Option<u64> {
        let given = self.get(key)?;
        if given.text().is_empty() {
            given.warning(found, Problem::new("empty, so it counts as 0"));
            return None;
        }
        let number = given.parsed(found, |text| {
            text.trim()
                .parse::<u64>()
                .map_err(|_| Problem::new(format!("no whole number: {}", excerpt(text))))
        })?;
        (number > 0).then_some(number)
    }
}

/// Something that must be there: the key is named, and the flag.
pub(super) fn missing(file: Option<Arc<str>>, flag: &str, key: &str) -> Diagnostic {
    let hint = format!("give {flag}, or {key} in the file");
    let error = Diagnostic::error(&"command line".into(), key, "missing").hint(hint);
    match file {
        Some(file) => Diagnostic { file, ..error }.at((1, 1)),
        None => error,
    }
}

/// The problem of a name, with the one that was perhaps meant.
fn unknown<'n>(error: &NameError, known: impl Iterator<Item = &'n str>) -> Problem {
    let problem = Problem::new(error.to_string());
    match error {
        NameError::Unknown { name, .. } => match value::closest(name, known) {
            Some(known) => problem.hint(format!("did you mean `{known}`?")),
            None => problem,
        },
        NameError::NotSpoken { .. } => problem,
    }
}

pub(crate) fn method(text: &str) -> Result<SsrMethod, Problem> {
    short(text)?.parse().map_err(|error| unknown(&error, SsrMethod::all().map(SsrMethod::name)))
}

pub(crate) fn protocol(text: &str) -> Result<(SsrProtocol, bool), Problem> {
    let parsed = SsrProtocol::parse_server(short(text)?);
    parsed.map_err(|error| unknown(&error, SsrProtocol::all().map(SsrProtocol::name)))
}

pub(crate) fn obfs(text: &str) -> Result<(Obfs, bool), Problem> {
    Obfs::parse_server(short(text)?).map_err(|error| unknown(&error, Obfs::all().map(Obfs::name)))
}

/// Names are short, and what is too long is not put into messages.
fn short(text: &str) -> Result<&str, Problem> {
    if text.len() > 64 { Err(Problem::new("longer than 64 bytes")) } else { Ok(text) }
}

/// The warning that every program gives about an old cipher.
pub(super) fn warn_of_method(method: SsrMethod, protocol: SsrProtocol) -> Option<Problem> {
    let better = "aes-256-ctr or chacha20-ietf on both ends";
    if method.repeats_keystream() {
        let problem =
            format!("{method} repeats its keystream in every connection, so others on the way can read it");
        return Some(Problem::new(problem).hint(better));
    }
    let is_bare = method == SsrMethod::None && !matches!(protocol, SsrProtocol::AuthChain(_));
    is_bare.then(|| Problem::new("none encrypts nothing").hint(better))
}

/// Method, password, protocol and obfs, which server and client have in common.
pub(crate) struct Common {
    pub(super) method: SsrMethod,
    pub(crate) password: Secret,
    pub(crate) protocol: (SsrProtocol, bool),
    pub(super) obfs: (Obfs, bool),
    pub(super) obfs_param: Box<str>,
}

/// Reads what server and client have in common; `file` is where something may be missing.
pub(crate) fn common(
    layers: &OptionSources<'_>,
    default: &str,
    file: Option<&Arc<str>>,
    found: &mut Diagnostics,
) -> Option<Common> {
    let given = layers.get(SsrSetting::Method);
    let chosen = match &given {
        Some(given) => given.parsed(found, method),
        None => default.parse().ok(),
    };
    let password = match layers.get(SsrSetting::Password) {
        Some(given) => given.parsed(found, |text| secret(text, MAX_TEXT)),
        None => {
            found.push(missing(file.cloned(), "-k", "password"));
            None
        }
    };
    let or_plain = |key, usual: &str, found: &mut Diagnostics| {
        let given = layers.get(key)?;
        if given.text().is_empty() {
            given.warning(found, Problem::new(format!("empty, so it is {usual}")));
        }
        Some(given).filter(|given| !given.text().is_empty())
    };
    let protocol = match or_plain(SsrSetting::Protocol, "origin", found) {
        Some(given) => given.parsed(found, protocol),
        None => Some((SsrProtocol::Origin, false)),
    };
    let obfs = match or_plain(SsrSetting::Obfs, "plain", found) {
        Some(given) => given.parsed(found, obfs),
        None => Some((Obfs::Plain, false)),
    };
    let obfs_param = layers.text(SsrSetting::ObfsParam, found).unwrap_or_default();
    let (method, protocol) = (chosen?, protocol?);
    if let (Some(given), Some(problem)) = (given, warn_of_method(method, protocol.0)) {
        given.warning(found, problem);
    }
    Some(Common { method, password: password?, protocol, obfs: obfs?, obfs_param })
}

/// Reports at the most telling place why a server or client cannot be.
fn report(layers: &OptionSources<'_>, keys: &[SsrSetting], found: &mut Diagnostics, problem: String) {
    match keys.iter().find_map(|key| layers.get(*key)) {
        Some(given) => given.error(found, Problem::new(problem)),
        None => found.push(Diagnostic::error(&"command line".into(), "", problem)),
    }
}

/// A client of `server`.
pub(super) fn client(
    layers: &OptionSources<'_>,
    server: Target,
    transports: Transports,
    file: Option<&Arc<str>>,
    found: &mut Diagnostics,
) -> Option<SsrClient> {
    let common = common(layers, "rc4-md5", file, found)?;
    let mut protocol = common.protocol.0;
    if protocol == SsrProtocol::VerifySha1 {
        if let Some(given) = layers.get(SsrSetting::Protocol) {
            let problem = Problem::new("verify_sha1 is spoken as origin, as the C client does");
            given.warning(found, problem.hint("write origin"));
        }
        protocol = SsrProtocol::Origin;
    }
    let user = layers.get(SsrSetting::ProtocolParam).filter(|given| !given.text().is_empty());
    let user = user.and_then(|given| client_user(&given, protocol, found));
    let obfs_param = if common.obfs_param.is_empty() {
        layers.text(SsrSetting::Host, found).unwrap_or_default()
    } else {
        common.obfs_param
    };
    let client = SsrClient::new(server, common.method, common.password, protocol);
    let client = SsrClient { user, obfs: common.obfs.0, obfs_param, transports, ..client };
    match client.check() {
        Ok(()) => Some(client),
        Err(error) => {
            report(
                layers,
                &[SsrSetting::ObfsParam, SsrSetting::Host, SsrSetting::Password],
                found,
                error.to_string(),
            );
            None
        }
    }
}

/// `id:key`; a key may hold further colons, as for the C client.
fn client_user(given: &OptionValue, protocol: SsrProtocol, found: &mut Diagnostics) -> Option<(u32, Secret)> {
    if !protocol.has_users() {
        return None;
    }
    let Some((id, key)) = given.text().split_once(':') else {
        given.warning(found, Problem::new("no colon behind a number, so there is no user"));
        return None;
    };
    let Ok(id) = id.trim().parse() else {
        given.warning(found, Problem::new("no number before the colon, so there is no user"));
        return None;
    };
    let key = given.parsed(found, |_| secret(key, MAX_CREDENTIAL))?;
    Some((id, key))
}

/// A server's parameter of the protocol: `N`, `N#id:key,id:key`, `N#` or, of auth_chain_f, `N#seconds`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ServerParam {
    pub(super) max_clients: Option<usize>,
    pub(crate) users: Vec<(u32, Secret)>,
    pub(super) interval_s: Option<u64>,
    /// There is a `#`, and no user behind it: users come from the database.
    pub(crate) is_shared: bool,
}

/// Most users in a parameter.
const MAX_USERS: usize = 100_000;

pub(super) fn server_param(text: &str, protocol: SsrProtocol) -> Result<ServerParam, Problem> {
    use adit_proto::ssr::Chain;

    let (clients, rest) = text.split_once('#').map_or((text, None), |(clients, rest)| (clients, Some(rest)));
    let max_clients = match clients.trim() {
        "" => None,
        number => {
            let number =
                number.parse::<usize>().map_err(|_| Problem::new("no number of clients before the #"))?;
            Some(number.clamp(1, 1 << 20))
        }
    };
    let mut param = ServerParam { max_clients, ..ServerParam::default() };
    let Some(rest) = rest.map(str::trim) else { return Ok(param) };
    if protocol == SsrProtocol::AuthChain(Chain::F) && !rest.contains(':') && !rest.is_empty() {
        let seconds = rest.parse::<u64>().map_err(|_| Problem::new("no number of seconds behind the #"))?;
        param.interval_s = Some(seconds.max(1));
        return Ok(param);
    }
    for user in rest.split(',').filter(|user| !user.trim().is_empty()) {
        let (id, key) =
            user.split_once(':').ok_or_else(|| Problem::new("a user without a colon behind the #"))?;
        let id = id.trim().parse().map_err(|_| Problem::new("a user whose id is no number behind the #"))?;
        param.users.push((id, secret(key, MAX_CREDENTIAL)?));
        if param.users.len() > MAX_USERS {
            return Err(Problem::new(format!("more than {MAX_USERS} users")));
        }
    }
    param.is_shared = param.users.is_empty() && protocol.has_users();
    Ok(param)
}

/// A server as it is configured, and whether its users come from a database.
pub(crate) struct Served {
    pub(crate) server: SsrServer,
    pub(crate) is_shared: bool,
}

/// A server. Its `owner` is who it belongs to where it has no users of its own.
pub(crate) fn server(
    layers: &OptionSources<'_>,
    owner: Option<&str>,
    limits: UserLimits,
    file: Option<&Arc<str>>,
    found: &mut Diagnostics,
) -> Option<Served> {
    let common = common(layers, "aes-256-cfb", file, found)?;
    let (protocol, protocol_compatible) = common.protocol;
    let given = layers.get(SsrSetting::ProtocolParam).filter(|given| !given.text().is_empty());
    let param = match &given {
        Some(given) => given.parsed(found, |text| server_param(text, protocol))?,
        None => ServerParam::default(),
    };
    let user = |name: String, key: Secret| User { name: name.into(), key, limits };
    let users: Vec<_> = param.users.into_iter().map(|(id, key)| (id, user(id.to_string(), key))).collect();
    let users = match (users.is_empty(), owner) {
        (true, Some(name)) => Ok(SsrUsers::common(user(name.to_owned(), common.password.clone()))),
        _ => SsrUsers::new(protocol, users),
    };
    let users = match users {
        Ok(users) => users,
        Err(error) => {
            report(layers, &[SsrSetting::ProtocolParam], found, error.to_string());
            return None;
        }
    };
    let plain = SsrServer::new(common.method, common.password, protocol);
    let server = SsrServer {
        protocol_compatible,
        obfs: common.obfs.0,
        obfs_compatible: common.obfs.1,
        obfs_param: common.obfs_param,
        users,
        max_clients: param.max_clients.unwrap_or(plain.max_clients),
        key_interval_s: param.interval_s.unwrap_or(DEFAULT_INTERVAL_S),
        redirect: redirects(layers, found),
        ..plain
    };
    Some(Served { server, is_shared: param.is_shared })
}

/// Fallback servers; `*#0.0.0.0:0` is how the old files say that there is none.
fn redirects(layers: &OptionSources<'_>, found: &mut Diagnostics) -> Vec<Redirect> {
    let all = layers.all(SsrSetting::Redirect).into_iter();
    let all = all.filter(|given| !given.text().is_empty() && given.text() != "*#0.0.0.0:0");
    all.filter_map(|given| {
        given.parsed(found, |text| {
            text.parse().map_err(|error: adit_model::RedirectError| Problem::new(error.to_string()))
        })
    })
    .collect()
}

/// The sections of a port, in front of those of the file.
pub(crate) fn over<'a>(section: &'a SsrSettings, base: &OptionSources<'a>) -> OptionSources<'a> {
    OptionSources(std::iter::once(section.as_slice()).chain(base.0.iter().copied()).collect())
}
