//! `adit store`: the users that the store of a fleet lists.

use std::path::{Path, PathBuf};

use adit_fleet::panel::Listed;
use adit_fleet::store::{StoreChange, change, list};
use adit_formats::adit_toml;
use adit_formats::adit_toml::edit::{Edit, edit_user};
use adit_formats::read::source;
use adit_formats::shadowsocks_rust;
use adit_formats::share::{KEY_LEN, generate_key};
use adit_model::shown;
use adit_model::{Config, InboundProtocol, Secret, Store, UserLimits};
use anyhow::{Context as _, anyhow, ensure};
use clap::{Args, Subcommand, ValueHint};
use zeroize::Zeroizing;

use super::user;
use crate::commands::cli::UserLimitsArgs;
use crate::load::files;
use crate::load::files::FileArgs;
use crate::print;
use crate::random::SystemRng;

/// Longest file with a key, in bytes.
const MAX_KEY_FILE: usize = 4096;
/// An inbound that takes users with limits, to read limits as a file has them.
const FORM: &str = "[[inbound]]\nname = \"form\"\nprotocol = \"shadowsocks\"\nlisten = \"127.0.0.1:1\"\n\
                    method = \"chacha20-ietf-poly1305\"\n";

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Add a user to all nodes of the fleet, or replace it
    Add(AddArgs),
    /// Take a user away from all nodes of the fleet
    Rm(RmArgs),
    /// List the users of the fleet
    List(ListArgs),
}

#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// The user's name; a number for ShadowsocksR
    name: String,
    /// Read the key from this file, `-` for standard input [default: a new random one]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    key_file: Option<PathBuf>,
    #[command(flatten)]
    limits: UserLimitsArgs,
    #[command(flatten)]
    files: FileArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// The user's name
    name: String,
    #[command(flatten)]
    files: FileArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    files: FileArgs,
}

/// Runs `adit store`.
pub(crate) fn run(command: &StoreCommand) -> anyhow::Result<()> {
    match command {
        StoreCommand::Add(args) => add(args),
        StoreCommand::Rm(args) => {
            let (_, store) = store(&args.files)?;
            let was_there =
                change(&store, &args.name, &StoreChange::Remove).map_err(|error| anyhow!(error))?;
            ensure!(was_there, "no user of that name in the store: {}", args.name);
            print::text(format_args!("user {} is removed\n", args.name))
        }
        StoreCommand::List(args) => {
            let (_, store) = store(&args.files)?;
            let (users, left_out) = list(&store).map_err(|error| anyhow!(error))?;
            if left_out > 0 {
                print::remark(format_args!("warning: {left_out} users do not open with users-key"));
            }
            print::text(users.keys().map(|name| format!("{}\n", shown::line(name))).collect::<String>())
        }
    }
}

fn add(args: &AddArgs) -> anyhow::Result<()> {
    let (config, store) = store(&args.files)?;
    let key = key(args, &config)?;
    let limits = limits(args, &key)?;
    let listed = Listed {
        secret: key.expose().into(),
        quota: limits.quota,
        reset_day: limits.reset_day,
        expires: limits.expires.map(adit_model::Expiry::unix_s),
        rate: limits.rate,
        connections: limits.connections,
        addresses: limits.addresses,
        ..Listed::default()
    };
    let was_there = change(&store, &args.name, &StoreChange::Put(listed)).map_err(|error| anyhow!(error))?;
    let done = if was_there { "replaced" } else { "added" };
    print::remark(format_args!("user {} is {done}; nodes serve it within seconds", args.name));
    print::data(format_args!("user: {}\nkey: {}\n", args.name, key.expose()))
}

fn store(args: &FileArgs) -> anyhow::Result<(Config, Store)> {
    let config = files::load(args)?.config;
    let store = config.store.clone().context("there is no [store] in the configuration")?;
    Ok((config, store))
}

fn key(args: &AddArgs, config: &Config) -> anyhow::Result<Secret> {
    if let Some(path) = &args.key_file {
        let path = if path == Path::new("-") { Path::new("/dev/stdin") } else { path };
        let text: Zeroizing<String> =
            source::read_up_to(path, MAX_KEY_FILE).map_err(adit_model::diagnostic::Diagnostics::from)?;
        return Ok(Secret::new(text.trim_end_matches(['\n', '\r'])));
    }
    let of_store = |name| config.panel_of.get(name).is_some_and(|of| **of == *Store::PANEL);
    let server = config.inbounds.iter().filter(|inbound| of_store(&inbound.name)).find_map(|inbound| {
        if let InboundProtocol::Shadowsocks(server) = &inbound.protocol { Some(server) } else { None }
    });
    Ok(match server {
        Some(server) => shadowsocks_rust::generate_key(server.key.method(), &mut SystemRng),
        None => generate_key(&mut SystemRng, KEY_LEN),
    })
}

/// The limits, as a file would have them.
fn limits(args: &AddArgs, key: &Secret) -> anyhow::Result<UserLimits> {
    let form = format!("{FORM}users = [{{ name = \"other\", password = \"another one\" }}]\n");
    let edit = Edit::Add { key: key.clone(), id: None, limits: user::limits(&args.limits) };
    let text = edit_user(&form, "form", &args.name, &edit)?;
    let config = adit_toml::parse("the limits", &text)?.config;
    let users = config.inbounds.first().map(|inbound| inbound.protocol.users()).unwrap_or_default();
    let found = users.iter().find(|user| *user.name == *args.name);
    Ok(found.context("the limits cannot be read")?.limits)
}
