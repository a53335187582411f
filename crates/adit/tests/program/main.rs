//! The real binary, in a fresh folder, over loopback.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![expect(clippy::disallowed_methods, reason = "the program's peers own their sockets and clocks")]

mod access;
mod background;
mod balancer;
mod capture;
mod capture_checks;
mod capture_faults;
mod capture_tun;
mod capture_upgrade;
mod clash;
mod clash_api;
mod clash_checks;
mod clash_dead;
mod clash_differ;
mod clash_lines;
mod clash_sniff;
mod clash_way;
mod commands;
mod convert;
mod demo;
mod deploy;
mod dns;
mod explain;
mod faults;
mod faults_local;
mod first_contact;
mod fleet;
mod interop_acme;
mod interop_rawtcp;
mod interop_sets;
mod interop_snowflake;
mod interop_ssr;
mod kcptun;
mod kills;
mod manage;
mod manager;
mod moves;
mod panel;
mod panel_live;
mod plugin;
mod providers;
mod reload;
mod reload_load;
mod room;
mod run;
mod secrets;
mod see;
mod shadowsocks;
mod shown;
mod snell;
mod snowflake;
mod soak;
mod ssr;
mod support;
mod test_server;
mod tun;
mod units;
mod up;
mod upgrade;
mod upgrade_systemd;
mod users;
mod web;
