//! Datagrams of users: counted, and held to limits, over every transport.

use adit_model::{ObfsClient, ObfsServer, SnellClient, SnellKeys, SnellServer, User, UserLimits, Users};

use super::snell::{PSK, envelope_of, exchange, initial, lens, snell_client, snell_server};
use super::*;
use crate::UserStatus;

const KEY: &str = "the own key of ann";

fn ann(key: &str, limits: UserLimits) -> Users {
    Users::new(vec![User { name: "ann".into(), key: Secret::new(key), limits }]).unwrap()
}

fn named(limits: UserLimits) -> SnellKeys {
    SnellKeys::Named(Secret::new(PSK), ann(KEY, limits))
}

fn snell(psk: SnellKeys) -> SnellServer {
    SnellServer { psk, ..snell_server(ObfsServer::Off) }
}

fn user(running: &Running) -> UserStatus {
    running.status().inbounds[0].users[0].clone()
}

#[test]
fn datagrams_in_streams_are_counted() {
    for is_named in [true, false] {
        let none = UserLimits::default();
        let psk = if is_named { named(none) } else { SnellKeys::Each(ann(KEY, none)) };
        let (far, server_at) = run(InboundProtocol::Snell(snell(psk)), OutboundProtocol::Direct, 1);
        let client = snell_client(server_at, ObfsClient::Off);
        let client = if is_named {
            SnellClient { client_id: Some(Secret::new(KEY)), ..client }
        } else {
            SnellClient { psk: Secret::new(KEY), ..client }
        };
        let (near, at) = run(tunnel(echo()), OutboundProtocol::Snell(client), 1);
        check_echo(&socket(), at, &lens());
        let sum: usize = lens().iter().sum();
        let user = user(&far);
        assert_eq!((user.up_bytes, user.down_bytes, user.open), (sum as u64, sum as u64, 1), "{is_named}");
        near.end();
        eventually(&far, |status| status.flows == 0);
        far.end();
    }
}

#[test]
fn envelopes_say_whose_flow_it_is() {
    let limits = UserLimits { quota: Some(4 * 1200), ..UserLimits::default() };
    let server = SnellServer { quic: true, ..snell(named(limits)) };
    let mut config = config(InboundProtocol::Snell(server), OutboundProtocol::Direct, 1);
    config.inbounds[0].listen = vec![adit_testkit::unused_addr()];
    let running = start(&config).unwrap();
    let (at, target, client) = (running.addresses()[0].1, echo(), socket());
    for id in [&b""[..], b"mallory"] {
        client.send_to(&envelope_of(PSK, id, target, &initial(1)), at).unwrap();
    }
    eventually(&running, |status| status.dropped.get("authentication") == Some(&2));
    let envelope = envelope_of(PSK, KEY.as_bytes(), target, &initial(2));
    assert_eq!(exchange(&client, at, &envelope), initial(2));
    assert_eq!(exchange(&client, at, &initial(3)), initial(3));
    assert_eq!((user(&running).up_bytes, user(&running).down_bytes), (2400, 2400));
    // The quota is used up: what comes now goes nowhere, in the old flow and in a new one.
    client.send_to(&initial(4), at).unwrap();
    socket().send_to(&envelope_of(PSK, KEY.as_bytes(), target, &initial(5)), at).unwrap();
    eventually(&running, |status| status.dropped.get("user-limit") == Some(&2));
    assert_eq!(user(&running).used_bytes, 4800);
    running.end();
}

#[test]
fn users_of_shadowsocks_are_counted_and_held_to_their_quota() {
    check_quota(OutboundProtocol::Direct);
}

#[test]
fn users_whose_datagrams_go_on_in_streams_are_too() {
    let (next, at) = run(InboundProtocol::Snell(snell_server(ObfsServer::Off)), OutboundProtocol::Direct, 1);
    check_quota(OutboundProtocol::Snell(snell_client(at, ObfsClient::Off)));
    next.end();
}

/// A user of a Shadowsocks server that reaches its targets over `outbound`.
fn check_quota(outbound: OutboundProtocol) {
    const OWN: &str = "AQECAwQFBgcICQoLDA0ODw==";
    const METHOD: &str = "2022-blake3-aes-128-gcm";
    let limits = UserLimits { quota: Some(2000), ..UserLimits::default() };
    let InboundProtocol::Shadowsocks(server) = server(METHOD) else { panic!("a server") };
    let users = vec![("ann".into(), Secret::new(OWN))];
    let key = ShadowsocksServerKey::with_users(key(METHOD), users).unwrap().with_limits(vec![limits]);
    let server = InboundProtocol::Shadowsocks(ShadowsocksServer { key, ..server });
    let (far, server_at) = run(server, outbound, 1);
    let text = format!("{}:{OWN}", super::key(METHOD).text().expose());
    let OutboundProtocol::Shadowsocks(client) = client(METHOD, server_at) else { panic!("a client") };
    let key = ShadowsocksKey::new(METHOD.parse().unwrap(), Secret::new(text), KeyForm::Password).unwrap();
    let client = OutboundProtocol::Shadowsocks(ShadowsocksClient { key, ..client });
    let (near, at) = run(tunnel(echo()), client, 1);
    let sender = socket();
    check_echo(&sender, at, &[100, 200, 300]);
    assert_eq!((user(&far).up_bytes, user(&far).down_bytes), (600, 600));
    sender.send_to(&[1; 801], at).unwrap();
    eventually(&far, |status| status.dropped.get("user-limit") == Some(&1));
    check_echo(&sender, at, &[400]);
    assert_eq!((user(&far).used_bytes, user(&far).limited.as_deref()), (2000, Some("quota used up")));
    near.end();
    far.end();
}
