//! Entries of `users`.

use std::collections::HashSet;

use adit_model::{Secret, User, UserLimits, Users, UsersError};
use adit_proto::wire::Target;

use super::fields::{TomlFields, TomlReport};
use super::rows::port_keys as rows;
use super::write::TableEntries;
use crate::read::value::Problem;

pub(crate) use crate::read::value::MAX_CREDENTIAL;

/// An entry of `users`.
pub(super) struct RawUser {
    pub(crate) name: Box<str>,
    pub(super) password: Secret,
    /// The server that it is passed on to.
    pub(crate) server: Option<Target>,
    /// The number by which a client of SSR names itself.
    pub(super) id: Option<u32>,
    pub(super) limits: UserLimits,
}

impl RawUser {
    pub(super) fn into_user(self) -> User {
        User { name: self.name.into(), key: self.password, limits: self.limits }
    }
}

/// All entries of an inbound of `protocol`. Only those of shadowsocks have servers.
pub(super) fn read_users(
    fields: &mut TomlFields<'_>,
    report: &mut TomlReport<'_>,
    protocol: &str,
    user_name: impl Fn(&str) -> Result<Box<str>, Problem>,
) -> Vec<RawUser> {
    fields.warn_if_empty(report, &rows::USERS, "clients are not told apart");
    let tables = fields.tables(report, &rows::USERS).unwrap_or_default();
    let mut users: Vec<RawUser> = Vec::new();
    let mut seen = HashSet::new();
    let is_alone = tables.len() == 1;
    for mut table in tables {
        if !table.has(&rows::USER_NAME) {
            report.error(&table.at, table.path(&rows::USER_NAME), Problem::new("missing"));
        }
        let name = table.checked(report, &rows::USER_NAME, |text| user_name(&text));
        let password = table.require(report, &rows::USER_PASSWORD);
        if let Some(name) = &name
            && !seen.insert(name.value.clone())
        {
            report.error(&name.at, table.path(&rows::USER_NAME), Problem::new("this user is listed twice"));
        }
        let limits = limits(&mut table, report);
        let server = match protocol {
            "shadowsocks" => table.read(report, &rows::SERVER).map(|server| server.value),
            _ => None,
        };
        let id = match protocol {
            "ssr" => id(&mut table, report, is_alone),
            _ => None,
        };
        if let (Some(name), Some(password)) = (name, password) {
            users.push(RawUser { name: name.value, password, server, id, limits });
        }
        table.finish(report, Some(protocol));
    }
    users
}

/// The id of a user, which must be there unless the user is alone.
fn id(table: &mut TomlFields<'_>, report: &mut TomlReport<'_>, is_alone: bool) -> Option<u32> {
    if !table.has(&rows::USER_ID) && !is_alone {
        let problem =
            Problem::new("missing").hint("the number before the colon of the client's protocol_param");
        report.error(&table.at, table.path(&rows::USER_ID), problem);
    }
    table.read(report, &rows::USER_ID)
}

fn limits(table: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> UserLimits {
    let limits = UserLimits {
        quota: table.read(report, &rows::QUOTA),
        reset_day: table.read(report, &rows::RESET_DAY),
        expires: table.read(report, &rows::EXPIRES),
        rate: table.read(report, &rows::RATE),
        connections: table.read(report, &rows::CONNECTIONS),
        addresses: table.read(report, &rows::ADDRESSES),
    };
    if limits.reset_day.is_some() && !table.has(&rows::QUOTA) {
        table.wrong(report, &rows::RESET_DAY, Problem::new("no quota is set, so this key has no effect"));
    }
    limits
}

/// Writes users: the keys of each that `more` adds, and its limits.
pub(super) fn write<'u>(out: &mut TableEntries, users: impl Iterator<Item = (&'u User, More<'u>)>) {
    let entries = users.map(|(User { name, key, limits }, more)| {
        let mut entry = TableEntries::default();
        entry.put(&rows::USER_NAME, name);
        entry.put_some(&rows::USER_ID, more.id.as_ref());
        entry.put(&rows::USER_PASSWORD, key);
        entry.put_some(&rows::SERVER, more.server);
        let UserLimits { quota, reset_day, expires, rate, connections, addresses } = limits;
        entry.put_some(&rows::QUOTA, quota.as_ref());
        entry.put_some(&rows::EXPIRES, expires.as_ref());
        entry.put_some(&rows::RATE, rate.as_ref());
        entry.put_some(&rows::RESET_DAY, reset_day.as_ref());
        entry.put_some(&rows::CONNECTIONS, connections.as_ref());
        entry.put_some(&rows::ADDRESSES, addresses.as_ref());
        entry
    });
    let entries: Vec<TableEntries> = entries.collect();
    if !entries.is_empty() {
        out.tables(&rows::USERS, entries);
    }
}

/// Keys of a user that only some protocols have.
#[derive(Default)]
pub(super) struct More<'u> {
    pub(super) id: Option<u32>,
    pub(crate) server: Option<&'u Target>,
}

/// Users whose keys must differ; `None` when two do not, which is reported.
pub(super) fn told_apart(
    fields: &TomlFields<'_>,
    report: &mut TomlReport<'_>,
    users: Vec<RawUser>,
) -> Option<Users> {
    match Users::new(users.into_iter().map(RawUser::into_user).collect()) {
        Ok(users) => Some(users),
        // Names have been looked at, and an entry that could not be read leaves a hole.
        Err(UsersError::None | UsersError::Name(_)) => None,
        Err(error @ UsersError::Key(_)) => {
            fields.wrong(report, &rows::USERS, Problem::new(error.to_string()));
            None
        }
    }
}

/// Pre-shared keys of users that other programs of the version refuse.
pub(super) fn check_lens(
    fields: &TomlFields<'_>,
    report: &mut TomlReport<'_>,
    users: &[RawUser],
    lens: &std::ops::RangeInclusive<usize>,
) {
    if let Some(user) = users.iter().find(|user| !lens.contains(&user.password.expose().len())) {
        let problem = format!(
            "version 6 wants passwords of {} to {} bytes, as pre-shared keys",
            lens.start(),
            lens.end()
        );
        let hint = format!("that of {} has another length", user.name);
        fields.wrong(report, &rows::USERS, Problem::new(problem).hint(hint));
    }
}
