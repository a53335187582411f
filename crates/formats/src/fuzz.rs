//! The fuzz target of command lines.

use std::ffi::OsString;

use crate::shadowsocks::nat;
use crate::{
    clash, kcptun, plugins, shadowsocks_libev as libev, shadowsocks_rust as rust, shadowsocksr as ssr, snell,
    snowflake,
};

/// Fuzz target: each line of `data` is an argument, which need not be UTF-8, of every program that adit replaces. Flags
/// that are understood are translated, without a file.
#[doc(hidden)]
pub fn fuzz_flags(data: &[u8]) {
    let args: Vec<OsString> = data.split(|byte| *byte == b'\n').map(argument).collect();
    let args = || args.iter().cloned();
    for program in libev::LibevProgram::ALL {
        if let Ok(libev::LibevInvocation::Run(flags)) = libev::flags(program, args()) {
            drop(libev::load(program, &flags, None));
        }
    }
    for program in ssr::SsrProgram::ALL {
        if let Ok(ssr::SsrInvocation::Run(flags)) = ssr::flags(program, args()) {
            drop(ssr::load(program, &flags, None, None));
        }
    }
    for program in rust::RustProgram::ALL {
        drop(rust::flags(program, args()));
    }
    for program in plugins::PluginProgram::ALL {
        if let Ok(plugins::PluginInvocation::Run(flags)) = plugins::flags(program, args()) {
            drop(plugins::load_flags(program, &flags, None));
        }
    }
    for side in [kcptun::Side::Client, kcptun::Side::Server] {
        for release in [kcptun::Release::Debian, kcptun::Release::Last] {
            let program = kcptun::KcptunProgram { side, release };
            if let Ok(kcptun::KcptunInvocation::Run(flags)) = kcptun::flags(program, args()) {
                drop(kcptun::load(program, flags, None, None));
            }
        }
    }
    for program in [snell::SnellProgram::Server, snell::SnellProgram::Client] {
        drop(snell::flags(program, args()));
    }
    drop(nat::flags(args()));
    drop(clash::flags(args().collect()));
    drop(snowflake::client::flags(args().collect()));
    drop(snowflake::server::flags(args().collect()));
    drop(snowflake::proxy::flags(args().collect()));
    drop(snowflake::broker::flags(args().collect()));
    drop(snowflake::probetest::flags(args().collect()));
}

#[cfg(unix)]
fn argument(bytes: &[u8]) -> OsString {
    std::os::unix::ffi::OsStringExt::from_vec(bytes.to_vec())
}

/// Windows has no arguments of bytes.
#[cfg(not(unix))]
fn argument(bytes: &[u8]) -> OsString {
    String::from_utf8_lossy(bytes).into_owned().into()
}
