//! The words of adit's own command line.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use crate::commands::{DoctorArgs, Format, KeyArgs, MigrateArgs, ServiceCommand, TestArgs, UpArgs};
use adit_config::dialect::share::Form;
use adit_config::model::{Level, LogFormat};
use adit_core::route::Target;
use clap::{ArgAction, Args, Parser, Subcommand, ValueHint};

const EXAMPLES: &str = "\
Examples:
  adit up                            a server with fresh keys, as a service; prints lines for clients
  adit demo                          see it work on this machine, nothing to configure
  adit key                           a key for a new server
  adit check -c adit.toml            all errors of a file
  adit run -c adit.toml              run it until a signal
  adit share -c adit.toml --host proxy.example.com --qr
                                     lines and a QR code for the clients of that server
  adit explain -c adit.toml --to example.com:443
                                     which way a connection would take, and by which rule
  adit status                        open connections, traffic, refusals by cause
  adit top                           users, connections and rates, anew every second
  adit reload                        have a running adit read its files again; nothing that stays is cut
  adit user add ann                  a new user of a running server: line, link and QR code

In place of other programs:
  adit snell-server -c FILE          OpenSnell's flags and files; the official server's file as well
  adit snell-client -c FILE
  adit ss-local | ss-server | ss-tunnel | ss-manager ...
                                     shadowsocks-libev's flags and files
  adit sslocal | ssserver | ssmanager | ssservice | ssurl ...
                                     shadowsocks-rust's
  adit ssr-local | ssr-tunnel | ssr-server ...
                                     ShadowsocksR's: the C client, and server.py with mudb.json
  adit kcptun-client | kcptun-server ...
                                     kcptun's
  adit gq-client | gq-server | obfs-local | obfs-server ...
                                     GoQuiet's and simple-obfs', as SIP003 plugins too
  ln -s $(command -v adit) /usr/local/bin/snell-server
                                     the same under the old name: units and scripts stay as they are";

/// A safe, fast proxy that takes the place of Snell and Shadowsocks programs, their files and flags included.
#[derive(Debug, Parser)]
#[command(name = "adit", version, after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Log settings: the command line outranks the file.
#[derive(Debug, Clone, Args)]
pub(crate) struct LogArgs {
    /// Log more: once for debug, twice for trace
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Least severe level that is logged: error, warn, info, debug or trace
    #[arg(long, global = true, value_name = "LEVEL", value_parser = level, conflicts_with = "verbose")]
    pub(crate) log_level: Option<Level>,
    /// Shape of a log line: text or json
    #[arg(long, global = true, value_name = "FORMAT", value_parser = format)]
    pub(crate) log_format: Option<LogFormat>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a server: configuration with fresh keys, service, lines for clients
    ///
    /// Asks nothing. One Snell 5 and one Shadowsocks 2022 inbound on free ports; a second run keeps keys and ports, and
    /// prints the same lines. Keys are shown on a terminal alone.
    Up(UpArgs),
    /// Move from other programs to adit: find their services, translate their files, switch over
    ///
    /// Without --apply nothing is changed.
    Migrate(MigrateArgs),
    /// Install, remove or print the service: systemd, OpenRC or procd
    #[command(subcommand)]
    Service(ServiceCommand),
    /// Judge this machine: clock, limits, buffers, firewall, DNS and more, with the command that helps
    Doctor(DoctorArgs),
    /// Try a server: resolve, connect, handshake, first byte and UDP, each with its time
    Test(TestArgs),
    /// Run a configuration until SIGINT or SIGTERM
    ///
    /// The first signal stops accepting and lets open connections finish, for the time that `limits.drain` gives; the
    /// second one ends at once.
    Run(RunArgs),
    /// Report all errors of a configuration
    Check(CheckArgs),
    /// Say which rule and outbound a request would take, and why earlier rules do not match
    ///
    /// No port is opened and nothing is dialled. A name is looked up only if a rule asks for its addresses.
    Explain(ExplainArgs),
    /// Print a new random key
    Key(KeyArgs),
    /// Print a server for its clients: lines, files, a link, a QR code
    Share(ShareArgs),
    /// Turn servers as other clients write them (Surge, mihomo, sing-box, snell://, ss:// and ssr:// links, subscriptions) into adit.toml
    ///
    /// Prints to standard output. A setting that adit does not have is an error that names the field.
    Import(ImportArgs),
    /// Show the state of a running adit; of several, a line for each
    Status(StatusArgs),
    /// Watch a running adit: users, connections, rates and errors, anew every second
    Top(TopArgs),
    /// List the open connections of a running adit
    Conns(ConnsArgs),
    /// End the open connections of a user, or one by its number
    ///
    /// It ends what is open now. To keep a user out, see `adit user rm` and `adit user limit`.
    Kick(KickArgs),
    /// Have a running adit read its files again, and run as they say
    ///
    /// The files are checked first. On any error everything stays as it is, and the status is 1. Inbounds, connections and
    /// users that are the same in both are not touched.
    Reload(ReloadArgs),
    /// Say how a configuration differs from what runs: what would change, which connections would end
    Diff(DiffArgs),
    /// Users of an inbound: of the file, and of the adit that runs with it
    #[command(subcommand)]
    User(UserCommand),
    /// See it work: server, client and site on this machine, real bytes, figures, lines to paste
    Demo(DemoArgs),
    /// Print an example of, or the reference for, adit.toml
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Turn another program's file (OpenSnell, shadowsocks-libev, shadowsocks-rust, ShadowsocksR) into adit.toml, on standard output
    Convert(ConvertArgs),
    /// Measure adit and other programs on this machine
    Bench(Box<adit_lab::Args>),
    /// Look at packets: sizes, empty acknowledgements, retransmissions, round trips
    Wire(adit_lab::wire::Args),
    /// Judge the first packets of connections by the published rule against fully encrypted traffic
    Audit(Box<adit_lab::wire::audit::Args>),
    /// Print completions for a shell
    ///
    /// For instance: adit completions bash > /etc/bash_completion.d/adit
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write all of them into a folder
    Man {
        /// Folder for the pages
        #[arg(value_hint = ValueHint::DirPath)]
        dir: Option<PathBuf>,
    },
}

/// Choice of the configuration.
#[derive(Debug, Clone, Args)]
pub(crate) struct FileArgs {
    /// Configuration files, `-` for standard input [default: adit.toml, else /etc/adit/adit.toml]
    ///
    /// Inbounds and outbounds of several files add up.
    #[arg(short, long = "config", value_name = "FILE", num_args = 1.., value_hint = ValueHint::FilePath)]
    pub(crate) config: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) files: FileArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) files: FileArgs,
    /// Write for a program
    #[arg(long)]
    pub(crate) json: bool,
    /// Count warnings as errors
    #[arg(long)]
    pub(crate) strict: bool,
    /// Read the files as another program's: snell-server, ss-local, ssserver, ssr-local and so on, or as a list of SIP008: sip008
    #[arg(long = "as", value_name = "PROGRAM", value_parser = Format::parse)]
    pub(crate) format: Option<Format>,
    /// Files, the same as with -c
    #[arg(value_name = "FILE", conflicts_with = "config", value_hint = ValueHint::FilePath)]
    pub(crate) paths: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) files: FileArgs,
    /// Target of the request
    #[arg(long, value_name = "HOST:PORT", required_unless_present_any = ["measure", "batch"])]
    pub(crate) to: Option<Target>,
    /// The client's address, with or without a port
    #[arg(long, value_name = "ADDRESS", value_parser = client)]
    pub(crate) from: Option<SocketAddr>,
    /// The inbound [default: the only one]
    #[arg(long, value_name = "NAME")]
    pub(crate) inbound: Option<String>,
    /// The user as whom the client authenticated
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// An address of the target's name, in the place of a lookup; may be repeated
    #[arg(long, value_name = "IP")]
    pub(crate) address: Vec<IpAddr>,
    /// A datagram instead of a connection
    #[arg(long)]
    pub(crate) udp: bool,
    /// The protocol that the client speaks to the target, as rules name it: tls, http and so on
    #[arg(long, value_name = "PROTOCOL")]
    pub(crate) protocol: Option<String>,
    /// Read the file as another program's: ss-local, ssserver, snell-client, ssr-local and so on
    #[arg(long = "as", value_name = "PROGRAM", value_parser = Format::parse)]
    pub(crate) format: Option<Format>,
    /// Decide about each request of a file and print how long that takes; a line is
    /// `tcp|udp CLIENT:PORT HOST:PORT [ADDRESS]...`
    #[arg(long, value_name = "FILE", conflicts_with = "to", value_hint = ValueHint::FilePath)]
    pub(crate) measure: Option<PathBuf>,
    /// Decide about each request of a file, `-` for standard input: one JSON object a line in and out
    #[arg(long, value_name = "FILE", conflicts_with_all = ["to", "measure"], value_hint = ValueHint::FilePath)]
    pub(crate) batch: Option<PathBuf>,
    /// Write for a program
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ShareArgs {
    #[command(flatten)]
    pub(crate) files: FileArgs,
    /// Address or name by which clients reach this server
    #[arg(long)]
    pub(crate) host: Option<String>,
    /// One form alone: surge, mihomo, sing-box, opensnell, shadowrocket or adit
    #[arg(long)]
    pub(crate) form: Option<Form>,
    /// The inbound of this name alone
    #[arg(long, value_name = "NAME")]
    pub(crate) inbound: Option<String>,
    /// The user of this name alone
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Draw the link as a QR code; without colours for text on a dark or light background
    #[arg(long, value_name = "BACKGROUND", num_args = 0..=1, require_equals = true, default_missing_value = "auto")]
    pub(crate) qr: Option<crate::print::Background>,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// A file, `-` for standard input, or a link
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) source: String,
    /// Read it as this form: surge, mihomo, sing-box or shadowrocket [default: by its shape]
    #[arg(long)]
    pub(crate) form: Option<Form>,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) place: ProcessArgs,
    /// Write for a program: an object for each process, one a line
    #[arg(long)]
    pub(crate) json: bool,
    /// Show it again every second, with the rates of that second
    #[arg(long)]
    pub(crate) watch: bool,
    /// Show all users, those without traffic too
    #[arg(long)]
    pub(crate) users: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) place: ProcessArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ConnsArgs {
    #[command(flatten)]
    pub(crate) place: ProcessArgs,
    /// Write for a program: a list of objects
    #[arg(long)]
    pub(crate) json: bool,
    /// Connections of this user alone
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct KickArgs {
    /// A user, or the number of a connection as `adit conns` shows it
    #[arg(value_name = "USER|ID")]
    pub(crate) who: String,
    /// It is a user, even if it looks like a number
    #[arg(long)]
    pub(crate) user: bool,
    #[command(flatten)]
    pub(crate) place: ProcessArgs,
}

/// Choice of a running process, under any name.
#[derive(Debug, Clone, Args)]
pub(crate) struct ProcessArgs {
    /// The control socket [default: that of the configuration, else that of the only process]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) socket: Option<PathBuf>,
    /// The process, by its number
    #[arg(long, value_name = "PID", conflicts_with = "socket")]
    pub(crate) pid: Option<u32>,
    #[command(flatten)]
    pub(crate) files: FileArgs,
}

/// Choice of a running adit.
#[derive(Debug, Clone, Args)]
pub(crate) struct SocketArgs {
    /// The control socket [default: that of the configuration, else that of the only process]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) socket: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) files: FileArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ReloadArgs {
    #[command(flatten)]
    pub(crate) place: SocketArgs,
    /// Write for a program
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// The control socket [default: that of the configuration, else that of the only process]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) socket: Option<PathBuf>,
    /// The configuration files to compare with [default: those that the process reads itself]
    #[arg(short, long = "config", value_name = "FILE", num_args = 1.., value_hint = ValueHint::FilePath)]
    pub(crate) config: Vec<PathBuf>,
    /// Write for a program
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum UserCommand {
    /// Add a user with a new random key, and print lines, a link and a QR code for its clients
    Add(UserAddArgs),
    /// List users, with traffic and limits
    List(UserListArgs),
    /// Change the limits of a user; those that are not named stay
    Limit(UserLimitArgs),
    /// Remove a user and end its connections
    Rm(UserArgs),
    /// Give a user a new key, and end the connections made with the one before
    Rotate(UserRotateArgs),
}

/// Choice of a user.
#[derive(Debug, Args)]
pub(crate) struct UserArgs {
    /// The user's name
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The inbound [default: the only one that may be meant]
    #[arg(long, value_name = "NAME")]
    pub(crate) inbound: Option<String>,
    #[command(flatten)]
    pub(crate) place: SocketArgs,
}

/// Limits as they are written in a file; `none` takes one away.
#[derive(Debug, Args)]
pub(crate) struct UserLimitsArgs {
    /// Payload bytes, both ways together, as 500GB
    #[arg(long, value_name = "SIZE")]
    pub(crate) quota: Option<String>,
    /// Day of the month on which the quota begins anew, 1 to 28
    #[arg(long, value_name = "DAY")]
    pub(crate) reset_day: Option<String>,
    /// Last day of the service, as 2030-12-31
    #[arg(long, value_name = "DATE")]
    pub(crate) expires: Option<String>,
    /// Most bytes per second each way, as 10MB
    #[arg(long, value_name = "SIZE")]
    pub(crate) rate: Option<String>,
    /// Most connections at a time
    #[arg(long, value_name = "NUMBER")]
    pub(crate) connections: Option<String>,
    /// Most source addresses at a time
    #[arg(long, value_name = "NUMBER")]
    pub(crate) addresses: Option<String>,
}

/// The way clients are told of a user.
#[derive(Debug, Args)]
pub(crate) struct UserShareArgs {
    /// Address or name by which clients reach this server
    #[arg(long)]
    pub(crate) host: Option<String>,
    /// No QR code
    #[arg(long)]
    pub(crate) no_qr: bool,
    /// Read the key from this file, `-` for standard input [default: a new random one]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) key_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct UserAddArgs {
    #[command(flatten)]
    pub(crate) user: UserArgs,
    #[command(flatten)]
    pub(crate) limits: UserLimitsArgs,
    #[command(flatten)]
    pub(crate) share: UserShareArgs,
    /// Number of the user, for ShadowsocksR
    #[arg(long, value_name = "NUMBER")]
    pub(crate) id: Option<u32>,
    /// Make it the first user of an inbound that has one key for all: clients without a user are refused from then on
    #[arg(long)]
    pub(crate) first: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UserListArgs {
    /// The inbound of this name alone
    #[arg(long, value_name = "NAME")]
    pub(crate) inbound: Option<String>,
    #[command(flatten)]
    pub(crate) place: SocketArgs,
    /// Write for a program
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UserLimitArgs {
    #[command(flatten)]
    pub(crate) user: UserArgs,
    #[command(flatten)]
    pub(crate) limits: UserLimitsArgs,
}

#[derive(Debug, Args)]
pub(crate) struct UserRotateArgs {
    #[command(flatten)]
    pub(crate) user: UserArgs,
    #[command(flatten)]
    pub(crate) share: UserShareArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Leave the proxy and the site up, for a browser or curl
    #[arg(long)]
    pub(crate) keep: bool,
    /// Bytes to move in each direction, for instance 64M or 1G
    #[arg(long, default_value = "256M", value_parser = size)]
    pub(crate) size: u64,
    /// Longest time for each direction, in seconds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=600))]
    pub(crate) seconds: u16,
    /// Write for a program
    #[arg(long)]
    pub(crate) json: bool,
    /// Address that the local proxy listens on; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub(crate) listen: SocketAddr,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// A file with every key, commented
    Example,
    /// Every key with its values and default, as Markdown
    Docs,
}

#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// The file
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Read it as this program's, or as a list of SIP008: sip008; not needed for Snell's files with one section
    #[arg(long = "as", value_name = "PROGRAM", value_parser = Format::parse)]
    pub(crate) format: Option<Format>,
}

/// An address, with or without a port.
fn client(text: &str) -> Result<SocketAddr, &'static str> {
    let alone = text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 0));
    alone
        .or_else(|_| text.parse())
        .map_err(|_| "an address such as 192.0.2.1, 192.0.2.1:50000 or 2001:db8::1")
}

fn level(text: &str) -> Result<Level, &'static str> {
    match text {
        "error" => Ok(Level::Error),
        "warn" => Ok(Level::Warn),
        "info" => Ok(Level::Info),
        "debug" => Ok(Level::Debug),
        "trace" => Ok(Level::Trace),
        _ => Err("the levels are error, warn, info, debug and trace"),
    }
}

fn format(text: &str) -> Result<LogFormat, &'static str> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("the formats are text and json"),
    }
}

/// A number of bytes, with K, M or G for powers of 1024.
fn size(text: &str) -> Result<u64, &'static str> {
    const MAX: u64 = 1 << 40;
    let (number, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    number.filter(|size| (1..=MAX).contains(size)).ok_or("a size such as 500K, 64M or 1G, at most 1024G")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_grammar_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes() {
        for (text, want) in [("1", Some(1)), ("64M", Some(64 << 20)), ("1g", Some(1 << 30)), ("0", None)] {
            assert_eq!(size(text).ok(), want, "{text}");
        }
        for text in ["", "M", "1.5G", "1T", "99999999999999G", "é"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
