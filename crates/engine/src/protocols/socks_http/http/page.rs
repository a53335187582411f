//! The page that a browser gets which opens the port itself, in the place of a site through it.

use std::net::SocketAddr;

use adit_model::LocalProtocols;

/// The page of the port at `local`. It holds nothing but that address.
pub(super) fn text(local: SocketAddr, accepts: LocalProtocols) -> String {
    let local = SocketAddr::new(local.ip().to_canonical(), local.port());
    let (ip, port) = (local.ip(), local.port());
    let has_socks = accepts != LocalProtocols::Http;
    let (kinds, socks) = if has_socks {
        (
            "HTTP and SOCKS",
            format!("<li>SOCKS: host <code>{ip}</code>, port <code>{port}</code>, version 5.\n"),
        )
    } else {
        ("HTTP", String::new())
    };
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>adit: {local}</title>\n\
         <h1>This port is open</h1>\n<p>It is adit's, for applications: {kinds}. Set it as their proxy.\n<ul>\n\
         <li>HTTP and HTTPS: host <code>{ip}</code>, port <code>{port}</code>.\n{socks}\
         <li>In a shell: <code>export http_proxy=http://{local} https_proxy=http://{local}</code>\n</ul>\n\
         <p>This page came from adit itself. Whether sites are reached through it, this shows:\n\
         <pre>curl -x http://{local} https://example.com/</pre>\n\
         <p><code>adit status</code> shows connections and the last errors, <code>adit top</code> follows them.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_tells_of_the_port() {
        let page = text("[::ffff:127.0.0.1]:1080".parse().unwrap(), LocalProtocols::Mixed);
        assert!(page.contains("host <code>127.0.0.1</code>, port <code>1080</code>, version 5"), "{page}");
        assert!(page.contains("curl -x http://127.0.0.1:1080 "), "{page}");
        let page = text("[::1]:8080".parse().unwrap(), LocalProtocols::Http);
        assert!(page.contains("http_proxy=http://[::1]:8080 ") && !page.contains("SOCKS"), "{page}");
    }
}
