//! Every fuzz target: its name, and the function that it runs.
//!
//! The functions live beside the parsers that they feed and assert a property of theirs. To add one: a line here, its
//! twin in `Cargo.toml`, and inputs worth keeping in `corpus/<name>/`. Two programs read this table: libFuzzer's
//! (`fuzz_targets/any.rs`), which looks for new inputs, and the test `corpus` of adit-testkit, which replays the kept
//! ones on stable Rust.

use std::time::Instant;

/// A name, and the function that it runs.
type Target = (&'static str, fn(&[u8]));

/// Sorted by name.
pub(crate) const TARGETS: &[Target] = &[
    // One line each.
    ("capture_file", adit_lab::wire::file::fuzz_capture),
    ("capture_packet", adit_lab::frame::fuzz_packet),
    ("config_clash", adit_formats::clash::fuzz_clash),
    ("config_flags", adit_formats::fuzz::fuzz_flags),
    ("config_import", adit_formats::import::fuzz_import),
    ("config_ini", adit_formats::snell::fuzz_ini),
    ("config_kcptun", adit_formats::kcptun::fuzz_kcptun),
    ("config_native", adit_formats::adit_toml::fuzz_native),
    ("config_plugin", adit_formats::plugins::fuzz_plugin),
    ("config_share", adit_formats::share::fuzz_share),
    ("control", adit_engine::fuzz_control),
    ("dns_asked", adit_engine::fuzz_dns_asked),
    ("dns_fake_store", adit_engine::fuzz_fake_store),
    ("dns_files", adit_engine::fuzz_dns_files),
    ("dns_reply", adit_engine::fuzz_dns_reply),
    ("fleet_journal", adit_fleet::journal::fuzz_journal),
    ("fleet_panel", adit_fleet::panel::fuzz_panel_users),
    ("fleet_store", adit_fleet::store::fuzz_resp),
    ("fleet_store_record", adit_fleet::store::fuzz_store_record),
    ("goquiet", adit_proto::goquiet::fuzz_goquiet),
    ("handover", adit_engine::fuzz_handover),
    ("http_body", adit_proto::http::fuzz_http_body),
    ("http_request", adit_proto::http::fuzz_http_request),
    ("http_response", adit_proto::http::fuzz_http_response),
    ("http_url", adit_model::fuzz_http_url),
    ("http_visit", adit_proto::http::fuzz_http_visit),
    ("ip_packet", adit_proto::ip::fuzz_ip),
    ("kcp_arq", |data| adit_proto::kcp::arq::fuzz_arq(data, now())),
    ("kcp_crypt", adit_proto::kcp::crypt::fuzz_crypt),
    ("kcp_fec", adit_proto::kcp::fec::fuzz_decoder),
    ("kcp_session", |data| adit_engine::fuzz_kcp_session(data, now())),
    ("kcp_tune", adit_proto::tune::fuzz_model),
    ("netlink", adit_engine::transparent::fuzz_netlink),
    ("obfs_http", adit_proto::obfs::http::fuzz_obfs_http),
    ("obfs_tls", adit_proto::obfs::tls::fuzz_obfs_tls),
    ("rawtcp", |data| adit_proto::rawtcp::fuzz_rawtcp(data, now())),
    ("route_rules", adit_engine::routing::fuzz_route),
    ("route_set", adit_formats::rulesets::fuzz_set),
    ("rtc_channel", adit_proto::rtc::fuzz_dcep),
    ("rtc_peer", |data| adit_proto::rtc::fuzz_peer(data, now())),
    ("rtc_sctp", |data| adit_proto::rtc::fuzz_sctp(data, now())),
    ("rtc_sdp", adit_proto::rtc::sdp::fuzz_sdp),
    ("rtc_stun", adit_proto::rtc::stun::fuzz_stun),
    ("set_dat", adit_formats::rulesets::fuzz_dat),
    ("set_geo", adit_formats::rulesets::fuzz_geo),
    ("set_mrs", adit_formats::rulesets::fuzz_mrs),
    ("set_srs", adit_formats::rulesets::fuzz_srs),
    ("shadowsocks_accept", |data| adit_proto::shadowsocks::shadowsocks_fuzz::fuzz_accept(data, now())),
    ("shadowsocks_acl", adit_formats::shadowsocks::acl::fuzz_acl),
    ("shadowsocks_libev", adit_formats::shadowsocks_libev::fuzz_libev),
    ("shadowsocks_link", adit_formats::shadowsocks::sip002::fuzz_link),
    ("shadowsocks_list", adit_formats::shadowsocks::sip008::fuzz_sip008),
    ("shadowsocks_manager", adit_formats::shadowsocks::manager::fuzz_manager),
    ("shadowsocks_packets", adit_proto::shadowsocks::shadowsocks_fuzz::fuzz_packets),
    ("shadowsocks_response", |data| adit_proto::shadowsocks::shadowsocks_fuzz::fuzz_response(data, now())),
    ("shadowsocks_rust", adit_formats::shadowsocks_rust::fuzz_rust),
    ("shadowsocks_ssr", adit_formats::shadowsocksr::fuzz_ssr),
    ("shadowsocks_ssr_link", adit_formats::shadowsocksr::link::fuzz_link),
    ("sip003_options", adit_proto::sip003::fuzz_options),
    ("smux", |data| adit_proto::smux::fuzz_smux(data, now())),
    ("snappy", adit_proto::snappy::fuzz_snappy),
    ("snell_client", |data| adit_proto::snell::snell_fuzz::fuzz_client(data, now())),
    ("snell_envelope", adit_proto::snell::udp::envelope::fuzz_envelope),
    ("snell_request", adit_proto::snell::snell_fuzz::fuzz_request),
    ("snell_server", |data| adit_proto::snell::snell_fuzz::fuzz_server(data, now())),
    ("snell_udp", adit_proto::snell::udp::fuzz_udp),
    ("snell_versions", |data| adit_proto::snell::snell_fuzz::fuzz_versions(data, now())),
    ("sniff", adit_proto::sniff::fuzz_sniff),
    ("snowflake_amp", adit_proto::snowflake::fuzz_snowflake_amp),
    ("snowflake_chunks", adit_proto::snowflake::fuzz_snowflake_chunks),
    ("snowflake_edges", adit_proto::snowflake::fuzz_snowflake_edges),
    ("snowflake_files", adit_snowflake::fuzz_snowflake_files),
    ("snowflake_messages", adit_proto::snowflake::fuzz_snowflake_messages),
    ("socks_client", adit_proto::socks::fuzz_socks_client),
    ("socks_server", adit_proto::socks::fuzz_socks_server),
    ("socks_udp", adit_proto::socks::fuzz_socks_udp),
    ("ssr_obfs", |data| adit_proto::ssr::ssr_fuzz::fuzz_obfs(data, now())),
    ("ssr_packets", adit_proto::ssr::ssr_fuzz::fuzz_packets),
    ("ssr_protocol", |data| adit_proto::ssr::ssr_fuzz::fuzz_protocol(data, now())),
    ("ssr_stream", |data| adit_proto::ssr::ssr_fuzz::fuzz_stream(data, now())),
    ("state_choices", adit_engine::fuzz_choices),
    ("state_image", adit_engine::fuzz_state_image),
    ("state_lmdb", adit_engine::fuzz_lmdb),
    ("state_salts", adit_engine::fuzz_salts),
    ("state_sources", adit_engine::fuzz_sources),
    ("websocket", adit_engine::fuzz_websocket),
    ("wire_address", adit_proto::wire::fuzz_address),
    ("wire_host", adit_proto::wire::fuzz_host),
    ("wire_target", adit_proto::wire::fuzz_target),
];

/// Some instant: the protocols are given the time, and only measure distances from it.
#[expect(clippy::disallowed_methods, reason = "the standard library offers no other way to an Instant")]
fn now() -> Instant {
    Instant::now()
}
