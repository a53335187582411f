//! HTTPS by the system's curl: a TLS of our own, with the certificates that it trusts, would be a third of the program.

use std::fmt;
use std::process::Stdio;
use std::time::Duration;

use adit_config::model::HttpsUrl;
use thiserror::Error;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

use super::{ACCEPT, FetchError, MAX_REDIRECTS};
use crate::rt;

/// curl's name, looked for in the path.
const CURL: &str = "curl";

/// The number that curl ended with ("exit codes" of curl(1)); none if a signal ended it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub struct CurlFailure(pub Option<i32>);

impl fmt::Display for CurlFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(code) = self.0 else { return f.write_str("ended by a signal") };
        let cause = match code {
            1 => "this curl has no https",
            5 | 6 => "the name cannot be resolved",
            7 => "no connection",
            18 | 52 | 56 => "the connection broke",
            22 => "the server answers with an error",
            28 => "not there in time",
            35 => "no agreement on TLS",
            47 => "the server leads elsewhere again and again",
            60 => "its certificate is not trusted",
            63 => "longer than it may be",
            _ => "see curl(1)",
        };
        write!(f, "{cause}: exit status {code}")
    }
}

/// Fetches `url`: at most `max` bytes, within `limit` for everything, redirects (to HTTPS alone) included. curl's own
/// configuration, and proxies that the environment names, are left out.
///
/// # Errors
/// [`FetchError`]; nothing in it shows the address.
pub async fn fetch_https(url: &HttpsUrl, max: usize, limit: Duration) -> Result<Vec<u8>, FetchError> {
    let fetched = rt::timeout(limit, run(Command::new(CURL), url, max)).await;
    fetched.unwrap_or(Err(FetchError::Timeout { limit }))
}

async fn run(mut command: Command, url: &HttpsUrl, max: usize) -> Result<Vec<u8>, FetchError> {
    // The address goes by standard input: everybody may see arguments, and it may hold a token.
    command.args(["--disable", "--silent", "--fail", "--location", "--proto", "=https", "--noproxy", "*"]);
    command.args(["--max-redirs", &MAX_REDIRECTS.to_string(), "--max-filesize", &max.to_string()]);
    command.args(["--header", &format!("Accept: {ACCEPT}"), "--config", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    adit_sys::process::end_with_parent(command.as_std_mut());
    let mut child = command.spawn().map_err(FetchError::NoCurl)?;
    if let Some(mut input) = child.stdin.take() {
        let quoted = url.expose().replace('\\', "\\\\").replace('"', "\\\"");
        // curl that has gone already says why by its status.
        input.write_all(format!("url = \"{quoted}\"\n").as_bytes()).await.ok();
    }
    let mut document = Vec::new();
    if let Some(output) = child.stdout.take() {
        let most = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
        output.take(most).read_to_end(&mut document).await?;
    }
    if document.len() > max {
        return Err(FetchError::TooLong { max });
    }
    let status = child.wait().await?;
    if status.success() { Ok(document) } else { Err(CurlFailure(status.code()).into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::Cores;

    /// Runs a script of the shell in the place of curl.
    fn get(script: &str, max: usize) -> Result<String, FetchError> {
        let url = HttpsUrl::parse("https://a.example/list?token=hun\"ter\\2").unwrap();
        let fetched = Cores::block_on(async {
            let mut shell = Command::new("sh");
            shell.args(["-c", script, "curl"]);
            run(shell, &url, max).await
        });
        fetched.unwrap().map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn the_address_is_no_argument() {
        let said = get("cat; echo \"$@\"", 1000).unwrap();
        let (config, args) = said.split_once('\n').unwrap();
        assert_eq!(config, r#"url = "https://a.example/list?token=hun\"ter\\2""#);
        assert!(args.contains("--proto =https") && args.contains("--max-filesize 1000"), "{args}");
        assert!(!args.contains("a.example"), "{args}");
    }

    #[test]
    fn failures() {
        let error = get("cat >/dev/null; echo half; exit 60", 100).unwrap_err();
        assert!(matches!(error, FetchError::Curl(CurlFailure(Some(60)))), "{error:?}");
        let error = get("kill -9 $$", 100).unwrap_err();
        assert!(matches!(error, FetchError::Curl(CurlFailure(None))), "{error:?}");
        let error = get("while echo 0123456789; do :; done", 100).unwrap_err();
        assert!(matches!(error, FetchError::TooLong { max: 100 }), "{error:?}");
        let url = HttpsUrl::parse("https://a.example").unwrap();
        let missing = Cores::block_on(async { run(Command::new("adit-no-such-curl"), &url, 100).await });
        assert!(matches!(missing.unwrap(), Err(FetchError::NoCurl(_))));
    }
}
