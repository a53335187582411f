//! Addresses of relays, and which of them a proxy goes to.

use std::net::IpAddr;

use adit_model::{SnowflakeProxy, WebUrl};
use adit_net::reach::{Reach, private_kind};
use adit_proto::wire::Host;

/// Reads the address of a WebSocket.
pub(super) fn relay_url(text: &str) -> Result<WebUrl, String> {
    let http = match text.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("wss") => format!("https://{rest}"),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("ws") => format!("http://{rest}"),
        _ => return Err("not an address that begins with wss:// or ws://".to_owned()),
    };
    WebUrl::parse(&http).map_err(|error| error.to_string())
}

/// Looks at a relay that a broker names. Addresses behind names are looked at when they are connected to.
pub(super) fn check(text: &str, settings: &SnowflakeProxy) -> Result<(WebUrl, Reach), String> {
    let url = relay_url(text)?;
    if !url.tls && !settings.allows_plain {
        return Err("it is without TLS (-allow-non-tls-relay allows that)".to_owned());
    }
    let host = url.target.host.to_string();
    if !settings.pattern.matches(&host) {
        return Err(format!("{host} is outside the pattern {}", settings.pattern_text));
    }
    if settings.allows_private {
        return Ok((url, Reach::Anywhere));
    }
    match &url.target.host {
        Host::Ip(ip) => match private_kind(*ip) {
            Some(kind) => Err(format!("{kind} (-allow-proxying-to-private-addresses allows that)")),
            None => Ok((url, Reach::Anywhere)),
        },
        Host::Name(_) => Ok((url, Reach::Public)),
    }
}

/// The address with `client_ip` among its parameters, which are sorted by name.
pub(super) fn with_client(url: &WebUrl, client: Option<IpAddr>) -> WebUrl {
    let Some(client) = client else { return url.clone() };
    let (path, query) = url.path.split_once('?').unwrap_or((&url.path, ""));
    let mut parts: Vec<String> = query
        .split('&')
        .filter(|part| !part.is_empty() && !part.starts_with("client_ip="))
        .map(str::to_owned)
        .collect();
    parts.push(format!("client_ip={}", client.to_string().replace(':', "%3A")));
    parts.sort();
    WebUrl { path: format!("{path}?{}", parts.join("&")).into(), ..url.clone() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use adit_proto::snowflake::pattern::RelayPattern;

    use super::*;

    fn settings() -> SnowflakeProxy {
        SnowflakeProxy {
            broker: WebUrl::parse("http://b.example/").unwrap(),
            relay: "wss://r.example/".into(),
            stun: Vec::new(),
            probe: None,
            capacity: None,
            poll_interval: Duration::from_secs(5),
            pattern: RelayPattern::parse("example$"),
            pattern_text: "example$".into(),
            allows_plain: false,
            allows_private: false,
            keep_local: false,
            outbound: None,
            ports: None,
            retest: None,
            summary: None,
            nat: None,
            mimics_dtls: false,
        }
    }

    #[test]
    fn relays_are_looked_at() {
        let usual = settings();
        assert_eq!(check("wss://a.example/x", &usual).map(|(_, reach)| reach), Ok(Reach::Public));
        for relay in [
            "ws://a.example/",
            "wss://a.other/",
            "https://a.example/",
            "a.example",
            "wss://",
            "wss://u@a.example/",
        ] {
            assert!(check(relay, &usual).is_err(), "{relay}");
        }
        let open = SnowflakeProxy { allows_plain: true, pattern: RelayPattern::parse("$"), ..settings() };
        assert!(check("ws://203.0.113.1:80/", &open).is_ok());
        for relay in [
            "ws://127.0.0.1/",
            "wss://10.1.2.3/",
            "wss://[::1]/",
            "wss://[fe80::1]/",
            "wss://0.0.0.0/",
            "wss://100.64.0.1/",
        ] {
            assert!(check(relay, &open).is_err(), "{relay}");
        }
        let free = SnowflakeProxy { allows_private: true, ..open };
        assert_eq!(check("ws://127.0.0.1/", &free).map(|(_, reach)| reach), Ok(Reach::Anywhere));
    }

    #[test]
    fn the_clients_address_is_told() {
        let url = relay_url("wss://a.example/p?z=1&a=2").unwrap();
        let told = with_client(&url, Some("2001:db8::1".parse().unwrap()));
        assert_eq!(&*told.path, "/p?a=2&client_ip=2001%3Adb8%3A%3A1&z=1");
        assert_eq!(with_client(&url, None).path, url.path);
        let bare = relay_url("ws://a.example").unwrap();
        assert_eq!(&*with_client(&bare, Some("192.0.2.1".parse().unwrap())).path, "/?client_ip=192.0.2.1");
    }
}
