//! `adit capture`: the parts of captures that this machine has.

use adit_engine::transparent;

use crate::commands::cli::CaptureCommand;
use crate::print;

pub(crate) fn run(command: &CaptureCommand) -> anyhow::Result<()> {
    match command {
        CaptureCommand::Status => {
            let found = transparent::status()?;
            let nothing = if found.is_empty() { "nothing is captured\n" } else { "" };
            let tracked = found.tracked.map_or_else(String::new, |(count, max)| {
                format!("tracked connections: {count} of {max} at most\n")
            });
            print::text(format_args!("{nothing}{found}{tracked}"))
        }
        CaptureCommand::Clean => {
            let found = transparent::clean()?;
            match found.is_empty() {
                true => print::data("nothing was left\n"),
                false => print::text(format_args!("removed:\n{found}")),
            }
        }
        CaptureCommand::Watch => Ok(transparent::watch()?),
    }
}
