//! `adit key`: a key of the right length and form.

use adit_formats::shadowsocks::ShadowsocksMethod;
use adit_formats::shadowsocks_rust;
use adit_formats::share::{KEY_LEN, KEY_LENGTHS, generate_key};
use anyhow::ensure;
use clap::Args;

use crate::commands::cli::Offering;
use crate::print;
use crate::random::SystemRng;

/// Bytes of random data behind a key of letters and digits are at least 16.
#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    /// The method or protocol that the key is for: a Shadowsocks method, snell, ssr or kcptun
    ///
    /// Methods of 2022 take base64 of exactly as many bytes as their key has; all others take any text.
    #[arg(value_name = "METHOD", hide_possible_values = true)]
    #[arg(value_parser = Offering { parse: purpose, values: purposes })]
    method: Option<Purpose>,
    /// Letters and digits
    #[arg(long, default_value_t = KEY_LEN, value_parser = key_len)]
    length: usize,
}

/// The user of a key.
#[derive(Debug, Clone, Copy)]
enum Purpose {
    Text,
    Shadowsocks(ShadowsocksMethod),
}

/// The words that completions offer: those for other protocols, then the methods.
fn purposes() -> Box<dyn Iterator<Item = &'static str>> {
    let methods = ShadowsocksMethod::all()
        .filter(|method| *method != ShadowsocksMethod::None)
        .map(ShadowsocksMethod::name);
    Box::new(["snell", "ssr", "kcptun"].into_iter().chain(methods))
}

fn purpose(text: &str) -> Result<Purpose, String> {
    if ["snell", "ssr", "kcptun", "kcp"].contains(&text) {
        return Ok(Purpose::Text);
    }
    text.parse().map(Purpose::Shadowsocks).map_err(|_| {
        let all: Vec<&str> = ShadowsocksMethod::all()
            .map(ShadowsocksMethod::name)
            .filter(|name| name.starts_with("2022") || name.contains("gcm"))
            .collect();
        format!("write snell, ssr, kcptun or a Shadowsocks method such as {}", all.join(", "))
    })
}

fn key_len(text: &str) -> Result<usize, String> {
    let len = text.parse().ok().filter(|len| KEY_LENGTHS.contains(len));
    len.ok_or_else(|| format!("a number from {} to {}", KEY_LENGTHS.start(), KEY_LENGTHS.end()))
}

pub(crate) fn run(args: &KeyArgs) -> anyhow::Result<()> {
    let key = match args.method {
        Some(Purpose::Shadowsocks(method)) if method.name().starts_with("2022-") => {
            ensure!(
                args.length == KEY_LEN,
                "the length of a key for {method} is fixed\n  hint: leave out --length"
            );
            shadowsocks_rust::generate_key(method, &mut SystemRng)
        }
        Some(Purpose::Shadowsocks(ShadowsocksMethod::None)) => {
            anyhow::bail!("method none takes no key\n  hint: 2022-blake3-aes-128-gcm encrypts")
        }
        Some(Purpose::Text | Purpose::Shadowsocks(_)) | None => generate_key(&mut SystemRng, args.length),
    };
    print::data(format_args!("{}\n", key.expose()))
}
