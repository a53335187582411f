//! The keys of protocol shadowsocks, inbound and outbound.

use adit_proto::shadowsocks::{KeyError, Method};
use adit_proto::wire::Target;

use super::fields::{Fields, Report, Spanned};
use super::outbound::obfs_client;
use super::users::{MAX_CREDENTIAL, RawUser, read_users};
use super::{obfs_server, write};
use crate::dialect::value::{self, Problem, excerpt, secret, text_of};
use crate::model::{
    ClientCover, KeyForm, ObfsServer, Plugin, Secret, ServerCover, ShadowsocksClient, ShadowsocksKey,
    ShadowsocksServer, ShadowsocksServerKey, User,
};

/// Longest password in bytes: a chain of identity keys fits.
const MAX_PASSWORD: usize = 4096;
/// Longest path of a plugin, and longest of its options and arguments, in bytes.
const MAX_PLUGIN: usize = 4096;
/// Most arguments of a plugin.
const MAX_ARGUMENTS: usize = 64;

pub(super) fn server(fields: &mut Fields<'_>, report: &mut Report<'_>) -> Option<ShadowsocksServer> {
    let key = key(fields, report);
    let users = read_users(fields, report, "shadowsocks", |text| text_of(text, MAX_CREDENTIAL));
    let transports = fields.one_of(report, "network", write::TRANSPORTS).unwrap_or_default();
    let cover = match plugin(fields, report) {
        Some(plugin) => ServerCover::Plugin(plugin),
        None => ServerCover::Obfs(
            fields.parsed(report, "obfs", obfs_server).map_or(ObfsServer::Off, |obfs| obfs.value),
        ),
    };
    let replay = fields.one_of(report, "replay", write::REPLAY).unwrap_or_default();
    let Spanned { value: key, at } = key?;
    let passed_on = users.iter().filter(|user| user.server.is_some()).count();
    if passed_on > 0 && (passed_on < users.len() || cover != ServerCover::default()) {
        let problem = "with a server of its own for one user, all must have one, and there is no disguise";
        report.error(&at, fields.path("users"), Problem::new(problem));
        return None;
    }
    let limits = users.iter().map(|user| user.limits).collect();
    let server_key = if passed_on > 0 {
        let hops = users.into_iter().filter_map(|user| Some((user.name, user.password, user.server?)));
        ShadowsocksServerKey::with_hops(key, hops.collect())
    } else {
        let users: Vec<User> = users.into_iter().map(RawUser::into_user).collect();
        ShadowsocksServerKey::with_users(key, users)
    };
    match server_key {
        Ok(key) => Some(ShadowsocksServer { key: key.with_limits(limits), transports, cover, replay }),
        Err(error) => {
            let field = if fields.has("users") { "users" } else { "password" };
            report.error(&at, fields.path(field), Problem::new(error.to_string()));
            None
        }
    }
}

pub(super) fn client(fields: &mut Fields<'_>, report: &mut Report<'_>) -> Option<ShadowsocksClient> {
    let server = fields.require(report, "server").and_then(|field| field.parsed(report, value::target));
    let key = key(fields, report);
    let transports = fields.one_of(report, "network", write::TRANSPORTS).unwrap_or_default();
    let host: Option<&Target> = server.as_ref().map(|server| &server.value);
    let cover = match plugin(fields, report) {
        Some(plugin) => ClientCover::Plugin(plugin),
        None => ClientCover::Obfs(obfs_client(fields, report, host)),
    };
    Some(ShadowsocksClient { server: server?.value, key: key?.value, transports, cover })
}

fn method(text: &str) -> Result<Method, Problem> {
    text.parse().map_err(|_| {
        let problem = Problem::new(format!("unknown method: {}", excerpt(text)));
        match value::closest(text, Method::all().map(Method::name)) {
            Some(name) => problem.hint(format!("did you mean `{name}`?")),
            None => problem.hint("write for instance 2022-blake3-aes-128-gcm or aes-128-gcm"),
        }
    })
}

/// `method` with `password`, or with `key`, the key itself.
fn key(fields: &mut Fields<'_>, report: &mut Report<'_>) -> Option<Spanned<ShadowsocksKey>> {
    let method = fields.require(report, "method").and_then(|field| field.parsed(report, method));
    if fields.has("password") && fields.has("key") {
        let problem = Problem::new("stands for password, which is given too").hint("keep one of them");
        report.error(&fields.place("key"), fields.path("key"), problem);
    }
    let needs_none = method.as_ref().is_some_and(|method| method.value == Method::None);
    let (name, form) =
        if fields.has("key") { ("key", KeyForm::Base64) } else { ("password", KeyForm::Password) };
    let text = if needs_none && !fields.has(name) {
        Spanned { value: Secret::new(""), at: fields.at.clone() }
    } else {
        fields.require(report, name)?.parsed(report, |text| match text {
            "" if needs_none => Ok(Secret::new("")),
            text => secret(text, MAX_PASSWORD),
        })?
    };
    match ShadowsocksKey::new(method?.value, text.value, form) {
        Ok(value) => Some(Spanned { value, at: text.at }),
        Err(error) => {
            let mut problem = Problem::new(error.to_string());
            if let KeyError::Length { expected, .. } = error {
                problem = problem.hint(format!("`openssl rand -base64 {expected}` makes a good one"));
            }
            report.error(&text.at, fields.path(name), problem);
            None
        }
    }
}

pub(super) fn plugin(fields: &mut Fields<'_>, report: &mut Report<'_>) -> Option<Plugin> {
    let program = fields.parsed(report, "plugin", |text| text_of(text, MAX_PLUGIN));
    let options = fields.parsed(report, "plugin-options", |text| text_of(text, MAX_PLUGIN));
    let args = fields.list(report, "plugin-arguments", MAX_ARGUMENTS, |text| text_of(text, MAX_PLUGIN));
    let transports = fields.one_of(report, "plugin-network", write::TRANSPORTS);
    let Some(program) = program else {
        for key in ["plugin-options", "plugin-arguments", "plugin-network"] {
            if fields.has(key) && !fields.has("plugin") {
                let problem = Problem::new("there is no plugin that it could be for");
                report.error(&fields.place(key), fields.path(key), problem);
            }
        }
        return None;
    };
    for key in ["obfs", "obfs-host"] {
        if fields.take(key).is_some() {
            let problem = Problem::new("the plugin carries the stream already").hint("keep one of them");
            report.error(&fields.place(key), fields.path(key), problem);
        }
    }
    Some(Plugin {
        program: program.value,
        options: options.map(|options| options.value).unwrap_or_default(),
        args: args.unwrap_or_default().into_iter().map(|arg| arg.value).collect(),
        transports: transports.unwrap_or_default(),
    })
}
