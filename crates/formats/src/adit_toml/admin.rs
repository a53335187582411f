//! `[admin]`.

use std::path::PathBuf;

use adit_model::{AdminHttp, Config, ControlSocket, Controller, Manage};

use super::fields::{TomlFields, TomlReport};
use super::rows::root as rows;
use super::write::TableEntries;
use crate::read::value::Problem;

/// Reads the table into `config`.
pub(crate) fn read(mut table: TomlFields<'_>, config: &mut Config, report: &mut TomlReport<'_>) {
    if let Some(path) = table.read(report, &rows::SOCKET) {
        config.admin = match &*path {
            "off" => ControlSocket::Off,
            path => ControlSocket::At(PathBuf::from(path)),
        };
    }
    config.watch = table.read(report, &rows::WATCH).unwrap_or(false);
    let listen = table.read(report, &rows::HTTP);
    let token = table.read(report, &rows::TOKEN);
    let per_user = table.read(report, &rows::PER_USER);
    let outline = table.read(report, &rows::OUTLINE).unwrap_or(false);
    if outline && per_user != Some(true) && table.has(&rows::HTTP) {
        let problem = Problem::new("Outline's metrics are of each access key");
        table.wrong(report, &rows::OUTLINE, problem.hint("add per-user = true"));
    }
    if let Some(listen) = listen {
        if !listen.ip().to_canonical().is_loopback() && token.is_none() && !table.has(&rows::TOKEN) {
            let problem = Problem::new("others could read the metrics of this address");
            let hint = "add token = \"...\", or listen on 127.0.0.1";
            table.wrong(report, &rows::HTTP, problem.hint(hint));
        }
        config.admin_http = Some(AdminHttp { listen, token, per_user: per_user.unwrap_or(false), outline });
    } else if !table.has(&rows::HTTP) {
        let rest = [rows::TOKEN.head(), rows::PER_USER.head(), rows::OUTLINE.head()];
        for row in rest.into_iter().filter(|row| table.has(row)) {
            let problem = Problem::new("there is no HTTP interface that it would be for");
            table.wrong(report, row, problem.hint("add http = \"127.0.0.1:9090\""));
        }
    }
    manage(&mut table, config, report);
    controller(&mut table, config, report);
    table.finish(report, None);
}

fn manage(table: &mut TomlFields<'_>, config: &mut Config, report: &mut TomlReport<'_>) {
    let listen = table.read(report, &rows::MANAGE);
    let secret = table.read(report, &rows::MANAGE_SECRET);
    let inbound = table.read(report, &rows::MANAGE_INBOUND);
    if !table.has(&rows::MANAGE) {
        let rest = [rows::MANAGE_SECRET.head(), rows::MANAGE_INBOUND.head()];
        for row in rest.into_iter().filter(|row| table.has(row)) {
            let problem = Problem::new("there is no management interface that it would be for");
            table.wrong(report, row, problem.hint("add manage = \"127.0.0.1:8443\""));
        }
        return;
    }
    if !table.has(&rows::MANAGE_SECRET) {
        let problem = Problem::new("anybody could manage the users: a secret is missing");
        let hint = "add manage-secret = \"...\"; `adit key` makes one";
        table.wrong(report, &rows::MANAGE, problem.hint(hint));
    }
    if let (Some(listen), Some(secret)) = (listen, secret) {
        config.manage = Some(Manage { listen, secret, inbound });
    }
}

fn controller(table: &mut TomlFields<'_>, config: &mut Config, report: &mut TomlReport<'_>) {
    let listen = table.read(report, &rows::CLASH);
    let secret = table.read(report, &rows::CLASH_SECRET);
    let ui = table.read(report, &rows::CLASH_UI);
    let Some(listen) = listen else {
        let rest = [rows::CLASH_SECRET.head(), rows::CLASH_UI.head()];
        for row in rest.into_iter().filter(|row| !table.has(&rows::CLASH) && table.has(row)) {
            let problem = Problem::new("there is no control interface that it would be for");
            table.wrong(report, row, problem.hint("add clash = \"127.0.0.1:9090\""));
        }
        return;
    };
    let (narrowed, is_other) = Controller::narrowed(listen, secret.is_some());
    if is_other && !table.has(&rows::CLASH_SECRET) {
        let problem = Problem::new(format!(
            "others could control adit at this address: it listens on {narrowed} in its place"
        ));
        table.warn(report, &rows::CLASH, problem.hint("add clash-secret = \"...\""));
    }
    config.controller = Some(Controller {
        listen: Some(narrowed),
        secret,
        ui: ui.map(|path| PathBuf::from(&*path)),
        private_network: true,
        ..Controller::default()
    });
}

/// The keys of the table, as they stand in a file.
pub(super) fn entries(config: &Config) -> TableEntries {
    let mut entries = TableEntries::default();
    match &config.admin {
        ControlSocket::Usual => {}
        ControlSocket::Off => entries.put(&rows::SOCKET, "off"),
        ControlSocket::At(path) => entries.put(&rows::SOCKET, &path.to_string_lossy()),
    }
    entries.put_unless(&rows::WATCH, &config.watch, &false);
    if let Some(AdminHttp { listen, token, per_user, outline }) = &config.admin_http {
        entries.put(&rows::HTTP, listen);
        entries.put_some(&rows::TOKEN, token.as_ref());
        entries.put_unless(&rows::PER_USER, per_user, &false);
        entries.put_unless(&rows::OUTLINE, outline, &false);
    }
    if let Some(Manage { listen, secret, inbound }) = &config.manage {
        entries.put(&rows::MANAGE, listen);
        entries.put(&rows::MANAGE_SECRET, secret);
        entries.put_some(&rows::MANAGE_INBOUND, inbound.as_deref());
    }
    if let Some(Controller { listen: Some(listen), secret, ui, .. }) = &config.controller {
        entries.put(&rows::CLASH, listen);
        entries.put_some(&rows::CLASH_SECRET, secret.as_ref());
        if let Some(ui) = ui {
            entries.put(&rows::CLASH_UI, &*ui.to_string_lossy());
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use crate::adit_toml::parse;

    const INBOUND: &str = "\n[[inbound]]\nprotocol = \"mixed\"\nlisten = \"127.0.0.1:1\"\n";

    #[test]
    fn metrics_beyond_loopback_want_a_token() {
        for (admin, problem) in [
            ("http = \"127.0.0.1:9090\"", ""),
            ("http = \"[::1]:9090\"\nper-user = true", ""),
            ("http = \":9090\"\ntoken = \"0123456789abcdef\"", ""),
            ("http = \":9090\"", "admin.http: others could read the metrics of this address"),
            ("http = \"192.0.2.1:9090\"", "admin.http: others"),
            ("http = \"127.0.0.1:9090\"\ntoken = \"short\"", "admin.token: shorter than 16 characters"),
            ("http = \":9090\"\ntoken = \"short\"", "admin.token: shorter than 16 characters"),
            ("http = \"127.0.0.1:9\"\ntoken = \"0123456789 abcdef\"", "admin.token: a header takes"),
            ("token = \"0123456789abcdef\"", "admin.token: there is no HTTP interface"),
            ("manage = \":8443\"\nmanage-secret = \"0123456789abcdef\"", ""),
            ("manage = \"127.0.0.1:8443\"", "admin.manage: anybody could manage the users"),
            ("manage = \"127.0.0.1:1\"\nmanage-secret = \"short\"", "admin.manage-secret: shorter than 16"),
            ("manage = \":1\"\nmanage-secret = \"0123456789abcdef/\"", "admin.manage-secret: takes letters"),
            ("manage-secret = \"0123456789abcdef\"", "admin.manage-secret: there is no management"),
            ("manage-inbound = \"in\"", "admin.manage-inbound: there is no management"),
            ("per-user = true", "admin.per-user: there is no HTTP interface"),
            ("outline = true", "admin.outline: there is no HTTP interface"),
            ("http = \"[::1]:9090\"\nper-user = true\noutline = true", ""),
            (
                "http = \"[::1]:9090\"\noutline = true",
                "admin.outline: Outline's metrics are of each access key",
            ),
        ] {
            let found = parse("x", &format!("[admin]\n{admin}{INBOUND}"));
            match found {
                Ok(_) => assert!(problem.is_empty(), "{admin}"),
                Err(found) => {
                    let found = found.to_string();
                    assert!(!problem.is_empty() && found.contains(problem), "{admin}: {found}");
                    assert!(!found.contains("0123456789abcdef"), "{found}");
                }
            }
        }
    }
}
