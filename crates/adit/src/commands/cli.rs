//! The words of adit's own command line.

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use adit_engine::routing::Target;
use adit_formats::share::Form;
use adit_model::codes::{self, Code};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueHint};

use crate::commands::{
    DoctorArgs, KeyArgs, MigrateArgs, NodeCommand, PanelCommand, RulesetCommand, ServiceCommand,
    StoreCommand, TestArgs, UpArgs,
};
use crate::load::detect::Format;
use crate::load::files::FileArgs;
use crate::log::args::LogArgs;

const EXAMPLES: &str = "\
Examples:
  adit up             a server with fresh keys, as a service; lines for clients
  adit demo           see it work on this machine, nothing to configure
  adit key METHOD     a key for a new server
  adit check FILE     all errors of a file
  adit run FILE       run it until a signal: adit.toml, another program's file,
                      or a link
  adit share --host proxy.example.com --qr
                      lines and a QR code for the clients of that server
  adit explain --to example.com:443
                      which way a connection would take, and by which rule
  adit import FILE    another program's file, or a link, as adit.toml
  adit status         open connections, traffic, refusals by cause
  adit top            users, connections and rates, anew every second
  adit reload         have a running adit read its files again
  adit upgrade        have a running adit replaced by its new binary
  adit user add ann   a new user of a running server: line, link and QR code

In place of other programs (`adit help NAME` lists the flags of one):
  adit snell-server | snell-client -c FILE
                      OpenSnell's flags and files, the official server's file
  adit ss-local | ss-server | ss-tunnel | ss-manager ...
                      shadowsocks-libev's flags and files
  adit sslocal | ssserver | ssmanager | ssservice | ssurl ...
                      shadowsocks-rust's
  adit ssr-local | ssr-tunnel | ssr-server ...
                      ShadowsocksR's: the C client, server.py and mudb.json
  adit kcptun-client | kcptun-server ...
                      kcptun's
  adit gq-client | gq-server | obfs-local | obfs-server ...
                      GoQuiet's and simple-obfs', as SIP003 plugins too
  adit snowflake-client | snowflake-proxy ...
                      Snowflake's
  adit snowflake-broker | snowflake-server | snowflake-probetest ...
                      Snowflake's servers
  adit mihomo | clash ...
                      mihomo's
  ln -s $(command -v adit) /usr/local/bin/snell-server
                      the same under the old name: units and scripts stay";

/// Words for adit-bench, `--help` among them.
#[derive(Debug, Args)]
pub(crate) struct LabArgs {
    /// Words for adit-bench
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORDS")]
    pub(crate) words: Vec<OsString>,
}

/// A program with its words.
#[derive(Debug, Args)]
pub(crate) struct GuardArgs {
    #[arg(last = true, required = true)]
    pub(crate) words: Vec<OsString>,
}

/// The version, and the profile that this program was built with.
pub(crate) const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("ADIT_PROFILE"), ")");

/// A safe, fast proxy that takes the place of Snell and Shadowsocks programs, their files and flags included.
#[derive(Debug, Parser)]
#[command(name = "adit", version = VERSION, propagate_version = true, max_term_width = 80)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The number of arguments at the front that are options for the log, with their values.
pub(crate) fn log_options(args: &[OsString]) -> usize {
    let mut count = 0;
    while let Some(arg) = args.get(count).and_then(|arg| arg.to_str()) {
        let is_short =
            arg.strip_prefix('-').is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b == b'v'));
        count += match arg {
            "--verbose" => 1,
            "--log-level" | "--log-format" => 2,
            _ if is_short || arg.starts_with("--log-level=") || arg.starts_with("--log-format=") => 1,
            _ => break,
        };
    }
    count
}

/// `adit run` alone: a process that lives for months need not have touched the definitions of all other commands.
#[derive(Debug, Parser)]
#[command(name = "adit")]
struct RunOnly {
    #[command(flatten)]
    log: LogArgs,
    #[command(subcommand)]
    command: RunCommand,
}

#[derive(Debug, Subcommand)]
enum RunCommand {
    Run(RunArgs),
}

impl Cli {
    /// The command line, program included.
    ///
    /// # Errors
    /// A command line that is wrong, or that asks for help or the version: clap prints what is to be said.
    pub(crate) fn read(args: &[OsString]) -> Result<Self, clap::Error> {
        let may_run = args.iter().skip(1).any(|arg| arg == "run");
        if may_run && let Ok(RunOnly { log, command: RunCommand::Run(args) }) = RunOnly::try_parse_from(args)
        {
            return Ok(Self { log, command: Command::Run(args) });
        }
        // All errors are those of the whole grammar.
        Self::try_parse_from(args)
    }
}

/// Options for the log, alone in front of the name of a program.
#[derive(Debug, Parser)]
#[command(name = "adit")]
pub(crate) struct LogOnly {
    #[command(flatten)]
    pub(crate) log: LogArgs,
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
    /// Say what a message's code means, or which rule and outbound a request would take
    ///
    /// Takes a code (`adit explain ADIT-NET-02`), a request (`--to`) or a file of requests (`--batch`). No port is opened and
    /// nothing is dialled. A name is looked up only if a rule asks for its addresses.
    Explain(ExplainArgs),
    /// Print a new random key
    Key(KeyArgs),
    /// Print a server for its clients: lines, files, a link, a QR code
    Share(ShareArgs),
    /// Turn another program's file, a list of servers or a link into adit.toml
    ///
    /// Reads files of Snell, Shadowsocks, ShadowsocksR, kcptun, mihomo, Surge and sing-box, SIP008, snell://, ss:// and
    /// ssr:// links, and subscriptions; adit.toml goes to standard output. A server or section that adit cannot express
    /// is left out with a warning that names it.
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
    /// Have a running adit start its binary anew, and let that take over
    ///
    /// The new process takes all listening sockets and checks the configuration first. On any error the process that runs goes
    /// on untouched, and the status is 1. New connections go to the new process; those that are open finish in the old one.
    /// SIGUSR2 does the same.
    Upgrade(UpgradeArgs),
    /// Say how a configuration differs from what runs: what would change, which connections would end
    Diff(DiffArgs),
    /// Users of an inbound: of the file, and of the adit that runs with it
    #[command(subcommand)]
    User(UserCommand),
    /// Look after the counters that panels take
    #[command(subcommand)]
    Panel(PanelCommand),
    /// Make this machine a node of a panel
    #[command(subcommand)]
    Node(NodeCommand),
    /// Users that the shared store lists, for all nodes of a fleet
    #[command(subcommand)]
    Store(StoreCommand),
    /// The capture of this machine's traffic: what there is, and what a killed adit has left
    #[command(subcommand)]
    Capture(CaptureCommand),
    /// Rule sets in other forms: .mrs of mihomo, .srs of sing-box, YAML and texts
    #[command(subcommand)]
    Ruleset(RulesetCommand),
    /// See it work: server, client and site on this machine, real bytes, figures, lines to paste
    Demo(DemoArgs),
    /// Print an example of, or the reference for, adit.toml
    #[command(subcommand)]
    Config(ConfigCommand),
    /// The same as import
    #[command(hide = true)]
    Convert(ImportArgs),
    /// Measure adit and other programs on this machine, by adit-bench
    #[command(disable_help_flag = true)]
    Bench(LabArgs),
    /// Look at packets, by adit-bench: sizes, empty acknowledgements, retransmissions, round trips
    #[command(disable_help_flag = true)]
    Wire(LabArgs),
    /// Judge the first packets of connections, by adit-bench and the published rule against fully encrypted traffic
    #[command(disable_help_flag = true)]
    Audit(LabArgs),
    /// Run a program that is killed when the caller ends
    #[command(hide = true)]
    Guard(GuardArgs),
    /// Print completions for a shell
    ///
    /// For instance: adit completions bash > /etc/bash_completion.d/adit
    Completions(CompletionsArgs),
    /// Print a manual page, or write all of them into a folder
    Man(ManArgs),
    /// Print the version
    Version,
}

/// Choice of a configuration of any format, with or without `-c`.
#[derive(Debug, Clone, Args)]
pub(crate) struct AnyFileArgs {
    #[command(flatten)]
    files: FileArgs,
    /// Files, the same as with -c; other programs' files and links are recognised
    #[arg(value_name = "FILE", conflicts_with = "config", value_hint = ValueHint::FilePath)]
    paths: Vec<PathBuf>,
    /// Read the file as this program's [default: by its text]
    #[arg(long = "as", value_name = "PROGRAM", value_parser = formats())]
    format: Option<Format>,
}

impl AnyFileArgs {
    /// The files that were named, in one way or the other.
    pub(crate) fn given(&self) -> FileArgs {
        FileArgs { config: [&*self.files.config, &*self.paths].concat(), format: self.format }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum CaptureCommand {
    /// Show tables, rules of routing and routes that captures have made, and whose they are
    Status,
    /// Remove what a capture that does not run any more has left
    Clean,
    /// Remove the rules when the process that started this one is gone; for adit itself
    #[command(hide = true)]
    Watch,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) files: AnyFileArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) files: AnyFileArgs,
    /// Write for a program
    #[arg(long)]
    pub(crate) json: bool,
    /// Count warnings as errors
    #[arg(long)]
    pub(crate) strict: bool,
}

#[derive(Debug, Args)]
#[command(
    override_usage = "adit explain CODE | --codes\n       adit explain --to HOST:PORT | --batch FILE | --measure FILE [OPTIONS]"
)]
#[command(group = clap::ArgGroup::new("question").required(true).args(["code", "codes", "to", "measure", "batch"]))]
pub(crate) struct ExplainArgs {
    /// Code of a message: ADIT-NET-02, or NET-02
    #[arg(value_name = "CODE", hide_possible_values = true, conflicts_with_all = ["config", "format"])]
    #[arg(value_parser = Offering { parse: code, values: || Box::new(codes::ALL.iter().map(|code| code.id)) })]
    pub(crate) code: Option<Code>,
    /// Print the table of all codes, as Markdown
    #[arg(long)]
    pub(crate) codes: bool,
    #[command(flatten)]
    pub(crate) files: FileArgs,
    /// Read the file as this program's [default: by its text]
    #[arg(long = "as", value_name = "PROGRAM", value_parser = formats())]
    pub(crate) format: Option<Format>,
    /// Target of the request
    #[arg(long, value_name = "HOST:PORT")]
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
    /// Decide about each request of a file and print how long that takes; a line is
    /// `tcp|udp CLIENT:PORT HOST:PORT [ADDRESS]...`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) measure: Option<PathBuf>,
    /// Decide about each request of a file, `-` for standard input: one JSON object a line in and out
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) batch: Option<PathBuf>,
    /// Write for a program
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ShareArgs {
    #[command(flatten)]
    pub(crate) files: AnyFileArgs,
    /// Address or name by which clients reach this server
    #[arg(long)]
    pub(crate) host: Option<String>,
    /// One form alone: surge, mihomo, sing-box, opensnell, shadowrocket or adit
    #[arg(long, value_parser = forms())]
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
    /// A file, `-` for standard input, a link, or an address that is fetched
    ///
    /// Other users see the keys of a command line: standard input hides them.
    #[arg(value_name = "FILE", required_unless_present = "config", value_hint = ValueHint::FilePath)]
    pub(crate) source: Option<String>,
    /// The same
    #[arg(short, long, value_name = "FILE", conflicts_with = "source", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<String>,
    /// Read it as this program's [default: by its text]
    #[arg(long = "as", value_name = "PROGRAM", value_parser = formats())]
    pub(crate) format: Option<Format>,
    /// Read it as servers in this form
    #[arg(long, value_parser = forms(), conflicts_with = "format")]
    pub(crate) form: Option<Form>,
    /// Count warnings as errors: nothing may be left out
    #[arg(long)]
    pub(crate) strict: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) place: ProcessArgs,
    /// Files, the same as with -c
    #[arg(value_name = "FILE", conflicts_with = "config", value_hint = ValueHint::FilePath)]
    pub(crate) paths: Vec<PathBuf>,
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
pub(crate) struct UpgradeArgs {
    #[command(flatten)]
    pub(crate) place: SocketArgs,
    /// The binary to start [default: the one that the process was started from]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) binary: Option<PathBuf>,
    /// Time for open connections to finish in the old process: 500ms, 30s, 10m, 1h
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = time)]
    pub(crate) drain: Duration,
}

/// A time with its unit.
fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) =
        text.split_at(text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len()));
    let number: u64 = number.parse().map_err(|_| "give a number and a unit, as 30s or 10m".to_owned())?;
    let most = 7 * 86_400_000;
    let millis = match unit {
        "ms" => Some(number),
        "s" => number.checked_mul(1000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        _ => return Err("the unit is ms, s, m or h".to_owned()),
    };
    let millis = millis.filter(|millis| *millis <= most).ok_or("more than 7 days")?;
    Ok(Duration::from_millis(millis))
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

/// The programs that a demo shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DemoSubject {
    /// A Snell server and its client
    Snell,
    /// Snowflake's server, broker, proxy and client
    Snowflake,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// The programs to see at work
    #[arg(value_name = "WHAT", default_value = "snell")]
    pub(crate) subject: DemoSubject,
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

/// The programs whose files are read, as values that shells complete.
fn formats() -> impl TypedValueParser<Value = Format> {
    PossibleValuesParser::new(Format::names()).try_map(|name| Format::parse(&name))
}

/// The forms of lines for clients.
fn forms() -> impl TypedValueParser<Value = Form> {
    PossibleValuesParser::new(Form::ALL.map(Form::name)).try_map(|name| name.parse::<Form>())
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
    /// A program that adit replaces [default: adit itself]
    #[arg(value_name = "PROGRAM", value_parser = PossibleValuesParser::new(programs()), hide_possible_values = true)]
    pub(crate) program: Option<String>,
    /// Write those of adit and of all the programs into this folder
    #[arg(long, value_name = "DIR", conflicts_with = "program", value_hint = ValueHint::DirPath)]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Folder for the pages
    #[arg(value_hint = ValueHint::DirPath, conflicts_with = "page")]
    pub(crate) dir: Option<PathBuf>,
    /// The page: adit, adit.toml, or a program that adit replaces
    #[arg(long, value_name = "NAME", default_value = "adit", hide_possible_values = true)]
    #[arg(value_parser = PossibleValuesParser::new(["adit", "adit.toml"].into_iter().chain(programs())))]
    pub(crate) page: String,
}

/// The names of the programs that adit replaces.
fn programs() -> impl Iterator<Item = &'static str> {
    crate::NAMES.iter().map(|known| known.name)
}

/// A parser whose errors are its own words, with the values that completions offer.
#[derive(Clone)]
pub(crate) struct Offering<P> {
    /// Reads a value.
    pub(crate) parse: P,
    /// The values, in the order in which they are offered.
    pub(crate) values: fn() -> Box<dyn Iterator<Item = &'static str>>,
}

impl<P: TypedValueParser> TypedValueParser for Offering<P> {
    type Value = P::Value;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Self::Value, clap::Error> {
        self.parse.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.values)().map(PossibleValue::new)))
    }
}

/// A code of the table.
fn code(text: &str) -> Result<Code, String> {
    codes::find(text).ok_or_else(|| match std::path::Path::new(text).exists() {
        true => format!("a file, not a code; `adit explain -c {text} --to HOST:PORT` asks its rules"),
        false => "no such code; `adit explain --codes` lists all".to_owned(),
    })
}

/// An address, with or without a port.
fn client(text: &str) -> Result<SocketAddr, &'static str> {
    let alone = text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 0));
    alone
        .or_else(|_| text.parse())
        .map_err(|_| "an address such as 192.0.2.1, 192.0.2.1:50000 or 2001:db8::1")
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
    fn run_alone_is_read_as_by_the_whole_grammar() {
        for line in [
            "adit run",
            "adit run -c a.toml",
            "adit -v run -c a.toml -c b.toml",
            "adit run --log-level debug -vv",
            "adit run --config=a.toml --log-format json",
            "adit run surplus words",
            "adit run --no-such-option",
            "adit run --help",
            "adit check run",
            "adit check -c run",
            "adit --version run",
            "adit status",
            "adit",
        ] {
            let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let (read, whole) = (Cli::read(&args), Cli::try_parse_from(&args));
            let shown = |result: Result<Cli, clap::Error>| match result {
                Ok(cli) => format!("{cli:?}"),
                Err(error) => error.render().to_string(),
            };
            assert_eq!(shown(read), shown(whole), "{line}");
        }
    }

    #[test]
    fn help_fits_eighty_columns() {
        fn check(command: &mut clap::Command) {
            let text = command.render_long_help().to_string();
            for line in text.lines() {
                assert!(line.chars().count() <= 80, "{}: {line}", command.get_name());
            }
            command.get_subcommands_mut().for_each(check);
        }
        let mut command = Cli::command();
        command.build();
        check(&mut command);
        for known in crate::NAMES {
            for line in (known.usage)().lines() {
                assert!(line.chars().count() <= 80, "{}: {line}", known.name);
            }
        }
    }

    #[test]
    fn options_in_front_of_a_name() {
        for (args, want) in [
            (&[][..], 0),
            (&["snell-server"], 0),
            (&["-v", "snell-server"], 1),
            (&["-vv", "--log-format=json", "--log-level", "info", "x"], 4),
            (&["-c", "-v"], 0),
            (&["--verbose", "-", "-v"], 1),
        ] {
            let args: Vec<OsString> = args.iter().map(OsString::from).collect();
            assert_eq!(log_options(&args), want, "{args:?}");
        }
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
