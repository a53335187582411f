//! The keys of protocol shadowsocks, inbound and outbound.

use adit_model::{
    ClientCover, KeyForm, ObfsServer, Plugin, Secret, ServerCover, ShadowsocksClient, ShadowsocksKey,
    ShadowsocksServer, ShadowsocksServerKey, User, nobody,
};
use adit_proto::shadowsocks::{Generation, ShadowsocksMethod};
use adit_proto::wire::Target;

use super::fields::{Spanned, TomlFields, TomlReport};
use super::keys::Head;
use super::outbound::obfs_client;
use super::outbound::write_obfs;
use super::rows::port_keys as rows;
use super::users::{self, MAX_CREDENTIAL, RawUser, read_users};
use super::write::TableEntries;
use crate::read::value::{self, Problem, excerpt, secret, text_of};
use crate::shadowsocks::wrong_key;

/// Longest password in bytes: a chain of identity keys fits.
const MAX_PASSWORD: usize = 4096;

pub(crate) fn server(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Option<ShadowsocksServer> {
    let key = if is_each(fields) { each_key(fields, report) } else { key(fields, report) };
    let users = if fields.has(&rows::PANEL_OF) {
        key.as_ref()
            .map(|key| key.value.method())
            .and_then(|method| of_nobody(method, fields, report))
            .into_iter()
            .collect()
    } else {
        read_users(fields, report, "shadowsocks", |text| text_of(text, MAX_CREDENTIAL))
    };
    let transports = fields.read(report, &rows::SERVED).unwrap_or_default();
    let cover = match plugin(fields, report) {
        Some(plugin) => ServerCover::Plugin(plugin),
        None => ServerCover::Obfs(fields.read(report, &rows::OBFS_MODE).unwrap_or(ObfsServer::Off)),
    };
    let replay = fields.read(report, &rows::REPLAYED).unwrap_or_default();
    let Spanned { value: key, at } = key?;
    let passed_on = users.iter().filter(|user| user.server.is_some()).count();
    if passed_on > 0 && (passed_on < users.len() || cover != ServerCover::default()) {
        let problem = "if one user has a server of its own, all must have one, and obfs must be off";
        report.error(&at, fields.path(&rows::USERS), Problem::new(problem));
        return None;
    }
    let limits = users.iter().map(|user| user.limits).collect();
    let server_key = if passed_on > 0 {
        let hops = users.into_iter().filter_map(|user| Some((user.name, user.password, user.server?)));
        ShadowsocksServerKey::with_hops(key, hops.collect())
    } else {
        let users: Vec<User> = users.into_iter().map(RawUser::into_user).collect();
        match key.method().generation() {
            Generation::Aead if !users.is_empty() && !fields.has(&rows::PASSWORD) => {
                ShadowsocksServerKey::each(key.method(), users)
            }
            Generation::None | Generation::Stream | Generation::Aead | Generation::Aead2022 => {
                ShadowsocksServerKey::with_users(key, users)
            }
        }
    };
    match server_key {
        Ok(key) => Some(ShadowsocksServer { key: key.with_limits(limits), transports, cover, replay }),
        Err(error) => {
            let field: &Head = if fields.has(&rows::USERS) { &rows::USERS } else { &rows::PASSWORD };
            report.error(&at, fields.path(field), Problem::new(error.to_string()));
            None
        }
    }
}

/// Whether each user has a password of its own and the port none, or the panel gives it.
fn is_each(fields: &TomlFields<'_>) -> bool {
    let method = fields.text(&rows::METHOD).and_then(|text| text.parse::<ShadowsocksMethod>().ok());
    let has_users = fields.has(&rows::USERS) && !fields.is_empty_list(&rows::USERS);
    let is_classic = method.is_some_and(|method| method.generation() == Generation::Aead);
    !fields.has(&rows::PASSWORD)
        && !fields.has(&rows::KEY)
        && (fields.has(&rows::PANEL_OF) || has_users && is_classic)
}

/// The method, with a key that nobody has.
fn each_key(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Option<Spanned<ShadowsocksKey>> {
    let at = fields.at.clone();
    let method = fields.checked(report, &rows::METHOD, |text| method(&text))?.value;
    Some(Spanned { value: nobodys_key(method)?, at })
}

/// The key of a server whose password the panel gives, until it does.
fn nobodys_key(method: ShadowsocksMethod) -> Option<ShadowsocksKey> {
    ShadowsocksKey::new(method, nobody(method.key_len()).key, KeyForm::Password).ok()
}

/// Whether the panel gives the password.
pub(super) fn is_of_panel(key: &ShadowsocksServerKey) -> bool {
    key.is_each() || nobodys_key(key.method()).is_some_and(|nobodys| nobodys == *key.key())
}

/// The one user of a port before its panel has listed others.
fn of_nobody(
    method: ShadowsocksMethod,
    fields: &TomlFields<'_>,
    report: &mut TomlReport<'_>,
) -> Option<RawUser> {
    let has_users = match method.generation() {
        Generation::Aead2022 => true,
        Generation::Aead => !fields.has(&rows::PASSWORD) && !fields.has(&rows::KEY),
        Generation::Stream | Generation::None => false,
    };
    if !has_users {
        let problem = "users are told apart with a 2022 method, or with an AEAD method and no password";
        fields.wrong(report, &rows::PANEL_OF, Problem::new(problem));
        return None;
    }
    let User { name, key, limits } = nobody(method.key_len());
    Some(RawUser { name: (&*name).into(), password: key, server: None, id: None, limits })
}

pub(super) fn client(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Option<ShadowsocksClient> {
    let server = fields.require(report, &rows::SERVER);
    let key = key(fields, report);
    let transports = fields.read(report, &rows::SERVED).unwrap_or_default();
    let host: Option<&Target> = server.as_ref().map(|server| &server.value);
    let cover = match plugin(fields, report) {
        Some(plugin) => ClientCover::Plugin(plugin),
        None => ClientCover::Obfs(obfs_client(fields, report, host)),
    };
    Some(ShadowsocksClient { server: server?.value, key: key?.value, transports, cover })
}

fn method(text: &str) -> Result<ShadowsocksMethod, Problem> {
    text.parse().map_err(|_| {
        let problem = Problem::new(format!("unknown method: {}", excerpt(text)));
        match value::closest(text, ShadowsocksMethod::all().map(ShadowsocksMethod::name)) {
            Some(name) => problem.hint(format!("did you mean `{name}`?")),
            None => problem.hint("write for instance 2022-blake3-aes-128-gcm or aes-128-gcm"),
        }
    })
}

/// `method` with `password`, or with `key`, the key itself.
fn key(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Option<Spanned<ShadowsocksKey>> {
    if !fields.has(&rows::METHOD) {
        report.error(&fields.at, fields.path(&rows::METHOD), Problem::new("missing"));
    }
    let method = fields.checked(report, &rows::METHOD, |text| method(&text)).map(|method| method.value);
    if fields.has(&rows::PASSWORD) && fields.has(&rows::KEY) {
        let problem = Problem::new("stands for password, which is given too").hint("keep one of them");
        fields.wrong(report, &rows::KEY, problem);
    }
    let needs_none = method == Some(ShadowsocksMethod::None);
    let (row, form) = if fields.has(&rows::KEY) {
        (&rows::KEY, KeyForm::Base64)
    } else {
        (&rows::PASSWORD, KeyForm::Password)
    };
    let text = if needs_none && !fields.has(row) {
        Spanned { value: Secret::new(""), at: fields.at.clone() }
    } else {
        if !fields.has(row) {
            report.error(&fields.at, fields.path(row), Problem::new("missing"));
        }
        fields.checked(report, row, |given| match given.expose() {
            "" if needs_none => Ok(given),
            text => secret(text, MAX_PASSWORD),
        })?
    };
    let method = method?;
    match ShadowsocksKey::new(method, text.value, form) {
        Ok(value) => Some(Spanned { value, at: text.at }),
        Err(error) => {
            report.error(&text.at, fields.path(row), wrong_key(method, &error));
            None
        }
    }
}

pub(super) fn plugin(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Option<Plugin> {
    let program = fields.read(report, &rows::PLUGIN);
    let options = fields.read(report, &rows::PLUGIN_OPTIONS);
    let args = fields.read(report, &rows::PLUGIN_ARGUMENTS);
    let transports = fields.read(report, &rows::PLUGIN_NETWORK);
    let Some(program) = program else {
        let keys: [&Head; 3] = [&rows::PLUGIN_OPTIONS, &rows::PLUGIN_ARGUMENTS, &rows::PLUGIN_NETWORK];
        for key in keys {
            if fields.has(key) && !fields.has(&rows::PLUGIN) {
                fields.wrong(report, key, Problem::new("no plugin is set, so this key has no effect"));
            }
        }
        return None;
    };
    let keys: [&'static Head; 2] = [&rows::OBFS_MODE, &rows::OBFS_HOST];
    for key in keys {
        if fields.take(key).is_some() {
            let problem = Problem::new("the plugin carries the stream already").hint("keep one of them");
            fields.wrong(report, key, problem);
        }
    }
    Some(Plugin {
        program,
        options: options.unwrap_or_default(),
        args: args.unwrap_or_default().into_iter().map(|arg| arg.value).collect(),
        transports: transports.unwrap_or_default(),
    })
}

fn write_key(out: &mut TableEntries, key: &ShadowsocksKey) {
    out.put(&rows::METHOD, key.method().name());
    match key.form() {
        KeyForm::Password => out.put(&rows::PASSWORD, key.text()),
        KeyForm::Base64 => out.put(&rows::KEY, key.text()),
    }
}

pub(super) fn write_server(out: &mut TableEntries, server: &ShadowsocksServer) {
    if server.key.is_each() {
        out.put(&rows::METHOD, server.key.method().name());
    } else {
        write_key(out, server.key.key());
    }
    let key = &server.key;
    let users = key.users().iter().enumerate();
    users::write(out, users.map(|(n, user)| (user, users::More { id: None, server: key.hops().get(n) })));
    out.put(&rows::SERVED, &server.transports);
    match &server.cover {
        ServerCover::Obfs(obfs) => out.put_unless(&rows::OBFS_MODE, obfs, &ObfsServer::Off),
        ServerCover::Plugin(plugin) => write_plugin(out, plugin),
    }
    out.put(&rows::REPLAYED, &server.replay);
}

pub(super) fn write_client(out: &mut TableEntries, client: &ShadowsocksClient) {
    out.put(&rows::SERVER, &client.server);
    write_key(out, &client.key);
    out.put(&rows::SERVED, &client.transports);
    match &client.cover {
        ClientCover::Obfs(obfs) => write_obfs(out, obfs),
        ClientCover::Plugin(plugin) => write_plugin(out, plugin),
    }
}

pub(super) fn write_plugin(out: &mut TableEntries, plugin: &Plugin) {
    out.put(&rows::PLUGIN, &plugin.program);
    out.put_unless(&rows::PLUGIN_OPTIONS, &*plugin.options, "");
    if !plugin.args.is_empty() {
        out.put(&rows::PLUGIN_ARGUMENTS, &plugin.args);
    }
    out.put(&rows::PLUGIN_NETWORK, &plugin.transports);
}
