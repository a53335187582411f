//! `ss-nat`: rules that bring traffic to `ss-redir`. Status 0 when they are made, 2 when something is missing, 1 otherwise.

use std::ffi::OsString;
use std::process::ExitCode;

use adit_engine::transparent;
use adit_formats::read::source;
use adit_formats::shadowsocks::nat::{self, EXIT_USAGE, NatInvocation};

use crate::print;

/// Runs the program.
pub(crate) fn main((): (), args: Vec<OsString>) -> ExitCode {
    match nat::flags(args) {
        Ok(NatInvocation::Help) => super::say(&nat::usage()),
        Ok(NatInvocation::Flush) => done(transparent::nat::flush().map_err(Into::into)),
        Ok(NatInvocation::Make(mut rules, file)) => {
            if let Some(path) = file {
                match source::read_up_to(&path, nat::MAX_LEN) {
                    Ok(text) => nat::add_file(&mut rules, &text),
                    Err(error) => return done(Err(adit_model::diagnostic::Diagnostics::from(error).into())),
                }
            }
            done(transparent::nat::make(&rules).map_err(Into::into))
        }
        Err(found) => {
            print::remark(format_args!("{found}{}", nat::usage()));
            ExitCode::from(EXIT_USAGE)
        }
    }
}

/// Its flags, for a person.
pub(crate) fn usage((): ()) -> String {
    nat::usage()
}

fn done(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => print::failure(&error),
    }
}
