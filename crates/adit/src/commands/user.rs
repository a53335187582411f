//! `adit user`: the users of an inbound, in the file and in the process that runs with it.
//!
//! The file is changed first, in one step, and the process is asked to read it again. If it refuses, the file is put back
//! as it was.

use std::path::{Path, PathBuf};

use adit_engine::{ControlAnswer, ControlRequest, Files, UserStatus, ask, ask_status};
use adit_formats::adit_toml;
use adit_formats::adit_toml::edit::{Edit, Limit, edit_user};
use adit_formats::read::source;
use adit_formats::shadowsocks_rust;
use adit_formats::share::{KEY_LEN, generate_key};
use adit_model::{Config, Inbound, Secret};
use anyhow::{Context as _, bail, ensure};
use zeroize::Zeroizing;

use crate::commands::cli::{
    SocketArgs, UserAddArgs, UserArgs, UserCommand, UserLimitArgs, UserLimitsArgs, UserListArgs,
    UserRotateArgs, UserShareArgs,
};
use crate::commands::running_process::{self, NotRunning};
use crate::commands::{control, share};
use crate::load::files;
use crate::load::files::FileArgs;
use crate::load::files::load_all;
use crate::print;
use crate::random::SystemRng;
use crate::replace::{Seen, replace};
use crate::table::{Grid, number, text};

/// Longest file with a key, in bytes.
const MAX_KEY_FILE: usize = 4096;
/// Tries while others write the file.
const TRIES: usize = 5;

pub(crate) fn run(command: &UserCommand) -> anyhow::Result<()> {
    match command {
        UserCommand::Add(args) => add(args),
        UserCommand::List(args) => list(args),
        UserCommand::Limit(args) => limit(args),
        UserCommand::Rm(args) => remove(args),
        UserCommand::Rotate(args) => rotate(args),
    }
}

fn add(args: &UserAddArgs) -> anyhow::Result<()> {
    let place = Place::find(&args.user.place)?;
    let config = place.load()?;
    let inbound = for_new_user(&config, args.user.inbound.as_deref())?;
    let has_users = !inbound.protocol.users().is_empty();
    ensure!(
        has_users || args.first || inbound.protocol.as_local().is_some(),
        "inbound {} has one key for all clients, which a first user would end\n  hint: --first, and give every client \
         a user",
        inbound.name
    );
    let key = key(&args.share, inbound)?;
    let name = inbound.name.to_string();
    let edit = Edit::Add { key, id: args.id, limits: limits(&args.limits) };
    place.change(&name, &args.user.name, &edit)?;
    tell(&place.load()?, &name, &args.user.name, &args.share)
}

fn rotate(args: &UserRotateArgs) -> anyhow::Result<()> {
    let place = Place::find(&args.user.place)?;
    let config = place.load()?;
    let inbound = of_user(&config, &args.user)?;
    let key = key(&args.share, inbound)?;
    let name = inbound.name.to_string();
    place.change(&name, &args.user.name, &Edit::Rotate(key))?;
    tell(&place.load()?, &name, &args.user.name, &args.share)
}

fn limit(args: &UserLimitArgs) -> anyhow::Result<()> {
    let limits = limits(&args.limits);
    ensure!(
        !limits.is_empty(),
        "no limit is named\n  hint: --quota 500GB, for instance; `none` takes one away"
    );
    let place = Place::find(&args.user.place)?;
    let config = place.load()?;
    let inbound = of_user(&config, &args.user)?.name.to_string();
    place.change(&inbound, &args.user.name, &Edit::Limit(limits))?;
    print::text(format_args!("user {inbound}/{} has other limits\n", args.user.name))
}

fn remove(args: &UserArgs) -> anyhow::Result<()> {
    let place = Place::find(&args.place)?;
    let config = place.load()?;
    let inbound = of_user(&config, args)?;
    ensure!(
        inbound.protocol.users().len() > 1,
        "{} is the last user of inbound {}: without users it would be open to others\n  hint: add another one first, or \
         remove the inbound from the file",
        args.name,
        inbound.name
    );
    let name = inbound.name.to_string();
    place.change(&name, &args.name, &Edit::Remove)?;
    print::text(format_args!("user {name}/{} is removed\n", args.name))
}

/// The files, and the process that runs with them if there is one.
struct Place {
    files: Vec<PathBuf>,
    socket: Option<PathBuf>,
}

impl Place {
    fn find(args: &SocketArgs) -> anyhow::Result<Self> {
        let socket = match &args.socket {
            Some(socket) => Some(socket.clone()),
            None => running_process::of_configuration(&args.files)
                .or_else(|error| if error.is::<NotRunning>() { Ok(None) } else { Err(error) })?,
        };
        let Some(socket) = socket else {
            return Ok(Self { files: files::paths(&args.files)?, socket: None });
        };
        let answer = ask(&socket, &ControlRequest::Files);
        let running = match answer {
            Ok(ControlAnswer::Files(files)) => Some(files),
            Ok(ControlAnswer::Error(text)) => bail!("{}: {text}", socket.display()),
            Ok(
                ControlAnswer::Status(_)
                | ControlAnswer::Kicked(_)
                | ControlAnswer::Differences(_)
                | ControlAnswer::Refused(_)
                | ControlAnswer::Doubts(_)
                | ControlAnswer::Upgraded { .. },
            ) => {
                bail!("{} answers something else", socket.display())
            }
            Err(error) if args.socket.is_some() => {
                return Err(error).with_context(|| format!("no answer on {}", socket.display()));
            }
            Err(_) => None,
        };
        let is_named = !args.files.config.is_empty();
        let Some(Files { paths, is_native }) = running else {
            return Ok(Self { files: files::paths(&args.files)?, socket: None });
        };
        if args.socket.is_some() && !is_named {
            ensure!(
                is_native && !paths.is_empty(),
                "the process at {} does not run with an adit.toml, and users are written nowhere else\n  hint: `adit \
                 convert` makes one from its file",
                socket.display()
            );
            return Ok(Self { files: paths, socket: Some(socket) });
        }
        let files = files::paths(&args.files)?;
        let is_same = files.iter().all(|file| paths.iter().any(|path| is_one(file, path)));
        if !is_same {
            print::remark(format_args!(
                "the process at {} runs with other files: this change waits for a start with this one",
                socket.display()
            ));
        }
        // All of its files belong together.
        Ok(if is_same { Self { files: paths, socket: Some(socket) } } else { Self { files, socket: None } })
    }

    fn load(&self) -> anyhow::Result<Config> {
        Ok(files::load(&FileArgs::of(self.files.clone()))?.config)
    }

    /// Changes the file that has the inbound, and has the process follow.
    fn change(&self, inbound: &str, user: &str, edit: &Edit) -> anyhow::Result<()> {
        let mut tries = 0..TRIES;
        loop {
            match self.try_change(inbound, user, edit) {
                Err(error) if is_busy(&error) && tries.next().is_some() => {}
                other => return other,
            }
        }
    }

    fn try_change(&self, inbound: &str, user: &str, edit: &Edit) -> anyhow::Result<()> {
        let path = self.file_of(inbound)?;
        ensure!(path != Path::new("-"), "users cannot be written to standard input");
        let seen = Seen::of(path)?;
        let (_, old) = files::read(path)?;
        let new = edit_user(&old, inbound, user, edit)?;
        self.check(path, &new)?;
        replace(path, &new, &seen).with_context(|| format!("cannot write {}", path.display()))?;
        let Some(socket) = &self.socket else {
            print::remark("no adit runs with this file: the change counts from the next start on");
            return Ok(());
        };
        let reloaded = control::differences(
            socket,
            &ControlRequest::Reload,
            "the configuration that runs stays as it is",
        );
        let differences = match reloaded {
            Ok(differences) => differences,
            Err(error) => {
                let back = Seen::of(path).and_then(|seen| replace(path, &old, &seen));
                back.with_context(|| format!("{error:#}, and {} cannot be put back", path.display()))?;
                return Err(error.context(format!("{} is as it was", path.display())));
            }
        };
        if !differences.needs_restart.is_empty() {
            let keys = differences.needs_restart.join(", ");
            print::remark(format_args!("warning: other changes of the file wait for a restart: {keys}"));
        }
        Ok(())
    }

    /// The file that has an inbound.
    fn file_of(&self, inbound: &str) -> anyhow::Result<&PathBuf> {
        for path in &self.files {
            let (name, text) = files::read(path)?;
            if adit_toml::place_of(&name, &text, inbound).is_some() {
                return Ok(path);
            }
        }
        bail!("no inbound of that name: {inbound}")
    }

    /// Reads all files, one of them as it is to become.
    fn check(&self, changed: &Path, text: &str) -> anyhow::Result<()> {
        let parse = |path: &PathBuf| {
            let (name, old) = files::read(path)?;
            let text = if path == changed { text } else { old.as_str() };
            Ok((name.clone(), adit_toml::parse(&name, text)?))
        };
        load_all(self.files.iter().map(parse))?;
        Ok(())
    }
}

fn is_one(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}

fn is_busy(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    kind == Some(std::io::ErrorKind::WouldBlock)
}

/// The inbound that a new user is for.
fn for_new_user<'c>(config: &'c Config, name: Option<&str>) -> anyhow::Result<&'c Inbound> {
    let may = |inbound: &&Inbound| {
        let protocol = &inbound.protocol;
        let is_local = protocol.as_local().is_some();
        protocol.is_shared() || is_local && (name.is_some() || !protocol.users().is_empty())
    };
    let is_named = |inbound: &&Inbound| name.is_none_or(|name| *inbound.name == *name);
    let all: Vec<&Inbound> = config.inbounds.iter().filter(is_named).filter(may).collect();
    only(&all, || match name {
        Some(name) => format!("no inbound of that name takes users: {name}"),
        None => "no inbound takes users".to_owned(),
    })
}

/// The inbound that has a user.
fn of_user<'c>(config: &'c Config, args: &UserArgs) -> anyhow::Result<&'c Inbound> {
    let has = |inbound: &&Inbound| inbound.protocol.users().iter().any(|user| *user.name == *args.name);
    let is_named = |inbound: &&Inbound| args.inbound.as_deref().is_none_or(|name| *inbound.name == *name);
    let all: Vec<&Inbound> = config.inbounds.iter().filter(is_named).filter(has).collect();
    only(&all, || format!("no user of that name: {}", args.name))
}

fn only<'c>(all: &[&'c Inbound], none: impl FnOnce() -> String) -> anyhow::Result<&'c Inbound> {
    match all {
        [one] => Ok(one),
        [] => bail!("{}", none()),
        many => {
            let names: Vec<&str> = many.iter().map(|inbound| &*inbound.name).collect();
            bail!(
                "several inbounds may be meant: {}\n  hint: --inbound and one of these names",
                names.join(", ")
            )
        }
    }
}

/// A key from a file, or a random one of the length that the inbound wants.
fn key(args: &UserShareArgs, inbound: &Inbound) -> anyhow::Result<Secret> {
    if let Some(path) = &args.key_file {
        let path = if path == Path::new("-") { Path::new("/dev/stdin") } else { path };
        let text: Zeroizing<String> =
            source::read_up_to(path, MAX_KEY_FILE).map_err(adit_model::diagnostic::Diagnostics::from)?;
        return Ok(Secret::new(text.trim_end_matches(['\n', '\r'])));
    }
    Ok(match inbound.protocol.shadowsocks_method() {
        Some(method) => shadowsocks_rust::generate_key(method, &mut SystemRng),
        None => generate_key(&mut SystemRng, KEY_LEN),
    })
}

/// The limits that flags name.
pub(super) fn limits(args: &UserLimitsArgs) -> Vec<Limit> {
    let UserLimitsArgs { quota, reset_day, expires, rate, connections, addresses } = args;
    let all = [
        ("quota", quota),
        ("reset-day", reset_day),
        ("expires", expires),
        ("rate", rate),
        ("connections", connections),
        ("addresses", addresses),
    ];
    let given = all.into_iter().filter_map(|(key, value)| Some((key, value.clone()?)));
    given.map(|(key, value)| (key, Some(value).filter(|value| value != "none"))).collect()
}

/// Prints a user for its clients.
fn tell(config: &Config, inbound: &str, user: &str, args: &UserShareArgs) -> anyhow::Result<()> {
    let inbound = config.inbounds.iter().find(|it| *it.name == *inbound).context("the inbound is gone")?;
    if let Some(local) = inbound.protocol.as_local() {
        let key = local.users.iter().find(|it| *it.name == *user).map(|user| user.key.expose());
        return print::data(format_args!("user: {user}\npassword: {}\n", key.unwrap_or_default()));
    }
    match share::of_user(inbound, args.host.as_deref(), user, !args.no_qr) {
        Ok(text) => print::data(text),
        Err(error) => {
            // The user is there all the same.
            let hint = format!("adit share --inbound {} --user {user} --host HOST --qr", inbound.name);
            print::remark(format_args!(
                "warning: lines for clients cannot be printed: {error:#}\n  later: {hint}"
            ));
            print::text(format_args!("user {}/{user} is there\n", inbound.name))
        }
    }
}

/// A user with its state, if a process runs.
struct Listed<'c> {
    inbound: &'c str,
    user: &'c adit_model::User,
    status: Option<UserStatus>,
}

fn list(args: &UserListArgs) -> anyhow::Result<()> {
    let place = Place::find(&args.place)?;
    let config = place.load()?;
    let running = place.socket.as_deref().map(ask_status).transpose()?;
    let status = |inbound: &str, user: &str| {
        let inbound = running.as_ref()?.inbounds.iter().find(|it| it.name == inbound)?;
        inbound.users.iter().find(|it| it.name == user).cloned()
    };
    let is_named = |inbound: &&Inbound| args.inbound.as_deref().is_none_or(|name| *inbound.name == *name);
    let all: Vec<Listed<'_>> = config
        .inbounds
        .iter()
        .filter(is_named)
        .flat_map(|inbound| inbound.protocol.users().iter().map(move |user| (inbound, user)))
        .map(|(inbound, user)| Listed {
            inbound: &inbound.name,
            user,
            status: status(&inbound.name, &user.name),
        })
        .collect();
    if args.json {
        let all: Vec<serde_json::Value> = all.iter().map(Listed::json).collect();
        return print::data(format_args!("{}\n", serde_json::to_string(&all)?));
    }
    if all.is_empty() {
        return print::data("no users\n");
    }
    let texts = ["inbound", "user", "expires", "state"].map(text);
    let numbers = ["open", "up", "down", "used", "quota"].map(number);
    let mut table = Grid::new(&[&texts[..], &numbers[..]].concat());
    for listed in &all {
        table.row(listed.row());
    }
    print::text(table.render(print::width()))
}

impl Listed<'_> {
    fn json(&self) -> serde_json::Value {
        let limits = &self.user.limits;
        serde_json::json!({
            "inbound": self.inbound,
            "name": &*self.user.name,
            "quota_bytes": limits.quota,
            "reset_day": limits.reset_day,
            "expires": limits.expires.map(|expires| expires.to_string()),
            "rate_bytes_per_second": limits.rate,
            "connections": limits.connections,
            "addresses": limits.addresses,
            "status": &self.status,
        })
    }

    fn row(&self) -> [String; 9] {
        let limits = &self.user.limits;
        let number =
            |value: &dyn Fn(&UserStatus) -> String| self.status.as_ref().map_or_else(String::new, value);
        let state = match &self.status {
            None => "not running".to_owned(),
            Some(status) => status.limited.clone().unwrap_or_else(|| "ok".to_owned()),
        };
        [
            self.inbound.to_string(),
            self.user.name.to_string(),
            limits.expires.map_or_else(String::new, |expires| expires.to_string()),
            state,
            number(&|status| status.open.to_string()),
            number(&|status| print::bytes(status.up_bytes)),
            number(&|status| print::bytes(status.down_bytes)),
            number(&|status| print::bytes_like(status.used_bytes, limits.quota)),
            limits.quota.map_or_else(String::new, |quota| print::bytes_like(quota, Some(quota))),
        ]
    }
}
