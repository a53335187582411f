//! Entries of `users`.

use std::collections::HashSet;

use adit_proto::wire::Target;

use super::MAX_USERS;
use super::fields::{Fields, Report};
use super::keys::Table;
use crate::dialect::value::{self, Problem, secret};
use crate::model::{Expiry, Secret, User, UserLimits, Users, UsersError};

pub(super) use crate::dialect::value::MAX_CREDENTIAL;

/// Most connections and addresses that a limit may allow.
const MOST: usize = 1 << 20;

/// An entry of `users`.
pub(super) struct RawUser {
    pub(super) name: Box<str>,
    pub(super) password: Secret,
    /// Where it is passed on to.
    pub(super) server: Option<Target>,
    /// The number by which a client of SSR names itself.
    pub(super) id: Option<u32>,
    pub(super) limits: UserLimits,
}

impl RawUser {
    pub(super) fn into_user(self) -> User {
        User { name: self.name, key: self.password, limits: self.limits }
    }
}

/// All entries of an inbound of `protocol`. Only those of shadowsocks have servers.
pub(super) fn read_users(
    fields: &mut Fields<'_>,
    report: &mut Report<'_>,
    protocol: &str,
    user_name: impl Fn(&str) -> Result<Box<str>, Problem>,
) -> Vec<RawUser> {
    let Some(field) = fields.take("users") else { return Vec::new() };
    let tables = field.tables(report, Table::User, MAX_USERS);
    let mut users: Vec<RawUser> = Vec::new();
    let mut seen = HashSet::new();
    let is_alone = tables.len() == 1;
    for mut table in tables {
        let name = table.require(report, "name").and_then(|f| f.parsed(report, &user_name));
        let password = table
            .require(report, "password")
            .and_then(|f| f.parsed(report, |text| secret(text, MAX_CREDENTIAL)));
        if let Some(name) = &name
            && !seen.insert(name.value.clone())
        {
            report.error(&name.at, table.path("name"), Problem::new("this user is listed twice"));
        }
        let limits = limits(&mut table, report);
        let passed_on = match protocol {
            "shadowsocks" => table.parsed(report, "server", value::target),
            _ => None,
        };
        let id = match protocol {
            "ssr" => id(&mut table, report, is_alone),
            _ => None,
        };
        if let (Some(name), Some(password)) = (name, password) {
            let server = passed_on.map(|server| server.value);
            users.push(RawUser { name: name.value, password: password.value, server, id, limits });
        }
        table.finish(report, Some(protocol));
    }
    users
}

/// The id of a user, which must be there unless the user is alone.
fn id(table: &mut Fields<'_>, report: &mut Report<'_>, is_alone: bool) -> Option<u32> {
    if !table.has("id") && !is_alone {
        let problem =
            Problem::new("missing").hint("the number before the colon of the client's protocol_param");
        report.error(&table.at, table.path("id"), problem);
    }
    let most = usize::try_from(u32::MAX).unwrap_or(usize::MAX);
    table.integer(report, "id", 0..=most).and_then(|id| id.try_into().ok())
}

fn limits(table: &mut Fields<'_>, report: &mut Report<'_>) -> UserLimits {
    let mut bytes = |key| table.parsed(report, key, value::size).map(|size| size.value);
    let (quota, rate) = (bytes("quota"), bytes("rate"));
    let reset_day = table.integer(report, "reset-day", 1..=28).and_then(|day| u8::try_from(day).ok());
    if reset_day.is_some() && !table.has("quota") {
        let problem = Problem::new("there is no quota that it could be for");
        report.error(&table.place("reset-day"), table.path("reset-day"), problem);
    }
    let expiry = |text: &str| text.parse::<Expiry>().map_err(|error| Problem::new(error.to_string()));
    let expires = table.time(report, "expires", expiry).map(|expiry| expiry.value);
    let mut most = |key| table.integer(report, key, 1..=MOST).and_then(|most| u32::try_from(most).ok());
    UserLimits {
        quota,
        reset_day,
        expires,
        rate,
        connections: most("connections"),
        addresses: most("addresses"),
    }
}

/// Users whose keys must differ; `None` when two do not, which is reported.
pub(super) fn told_apart(fields: &Fields<'_>, report: &mut Report<'_>, users: Vec<RawUser>) -> Option<Users> {
    match Users::new(users.into_iter().map(RawUser::into_user).collect()) {
        Ok(users) => Some(users),
        // Names have been looked at, and an entry that could not be read leaves a hole.
        Err(UsersError::None | UsersError::Name(_)) => None,
        Err(error @ UsersError::Key(_)) => {
            report.error(&fields.place("users"), fields.path("users"), Problem::new(error.to_string()));
            None
        }
    }
}

/// Pre-shared keys of users that other programs of the version refuse.
pub(super) fn check_lens(
    fields: &Fields<'_>,
    report: &mut Report<'_>,
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
        report.error(&fields.place("users"), fields.path("users"), Problem::new(problem).hint(hint));
    }
}
