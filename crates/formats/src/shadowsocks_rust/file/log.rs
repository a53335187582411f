//! `log`: level, shape, and the places that lines go to.

use std::path::PathBuf;

use adit_model::Log;

use super::{Reader, Wanted};
use crate::read::json_fields::JsonFields;
use crate::read::value::{Problem, text_of};

/// Most places.
const MAX_WRITERS: usize = 16;
/// Longest path and parts of a name, in bytes.
const MAX_PATH: usize = 4000;
const MAX_PART: usize = 100;

/// A log file: `directory/prefix.suffix`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::shadowsocks_rust) struct LogFile {
    pub(in crate::shadowsocks_rust) directory: PathBuf,
    /// The name of the program unless written.
    pub(in crate::shadowsocks_rust) prefix: Option<Box<str>>,
    pub(in crate::shadowsocks_rust) suffix: Box<str>,
    /// Earlier files that are kept.
    pub(in crate::shadowsocks_rust) keep: u8,
}

impl LogFile {
    /// Its path, for a program of that name.
    pub(in crate::shadowsocks_rust) fn path(&self, program: &str) -> PathBuf {
        let prefix = self.prefix.as_deref().unwrap_or(program);
        self.directory.join(format!("{prefix}.{}", self.suffix))
    }
}

impl Reader<'_, '_, '_> {
    pub(super) fn log(&mut self, block: &mut JsonFields<'_>, wanted: &mut Wanted) {
        self.level_and_format(block, wanted);
        if let Some(field) = block.take(self.report, "config_path") {
            field.warning(self.report, Problem::new("a file of log4rs, which has no effect here"));
        }
        let Some(field) = block.take(self.report, "writers") else { return };
        let writers = field.list(self.report, MAX_WRITERS);
        if writers.is_empty() {
            let problem = Problem::new("the log goes to standard error all the same");
            field.warning(self.report, problem.hint("send it to /dev/null"));
        }
        let mut is_console = false;
        for writer in writers {
            let Some(mut writer) = writer.object(self.report) else { continue };
            if let Some(mut console) = self.block(&mut writer, "console") {
                self.level_and_format(&mut console, wanted);
                self.end(console);
                is_console = true;
            }
            if let Some(mut file) = self.block(&mut writer, "file") {
                self.level_and_format(&mut file, wanted);
                self.log_file(&mut file, wanted);
                self.end(file);
            }
            if let Some(mut syslog) = self.block(&mut writer, "syslog") {
                self.level_and_format(&mut syslog, wanted);
                for key in ["identity", "facility"] {
                    if let Some(field) = syslog.take(self.report, key) {
                        field.warning(
                            self.report,
                            Problem::new("the system's log gets the program's name, as a daemon"),
                        );
                    }
                }
                self.end(syslog);
                wanted.process.syslog = true;
            }
            self.end(writer);
        }
        if usize::from(is_console)
            + usize::from(wanted.log_file.is_some())
            + usize::from(wanted.process.syslog)
            > 1
        {
            let one = if wanted.process.syslog { "the system's log" } else { "the file" };
            field.warning(self.report, Problem::new(format!("lines go to one place: {one}")));
        }
    }

    fn level_and_format(&mut self, block: &mut JsonFields<'_>, wanted: &mut Wanted) {
        if let Some(level) = block.number(self.report, "level", 0..=u64::from(u32::MAX)) {
            wanted.level = Some(super::level(level));
        }
        if let Some(mut format) = self.block(block, "format") {
            wanted.without_time |= format.flag(self.report, "without_time").unwrap_or(false);
            self.end(format);
        }
    }

    fn log_file(&mut self, block: &mut JsonFields<'_>, wanted: &mut Wanted) {
        let directory = block.take(self.report, "directory");
        let directory = directory.and_then(|field| field.parsed(self.report, |text| text_of(text, MAX_PATH)));
        if let Some(field) = block.take(self.report, "rotation") {
            let known = |text: &str| match text {
                "never" => Ok(false),
                "daily" | "hourly" => Ok(true),
                _ => Err(Problem::new("neither never, daily nor hourly")),
            };
            if field.parsed(self.report, known) == Some(true) {
                let problem =
                    Problem::new("another file is begun when one is 10 MiB long, at no certain hour");
                field.warning(self.report, problem);
            }
        }
        let mut part =
            |key| block.take(self.report, key).and_then(|field| field.parsed(self.report, part_of_name));
        let (prefix, suffix) = (part("prefix"), part("suffix"));
        let keep = block.number(self.report, "max_files", 0..=10_000);
        match directory {
            Some(directory) => {
                wanted.log_file = Some(LogFile {
                    directory: PathBuf::from(&*directory),
                    prefix,
                    suffix: suffix.unwrap_or_else(|| "log".into()),
                    keep: keep.map_or(Log::KEEP, |keep| u8::try_from(keep.min(100)).unwrap_or(100)),
                });
            }
            None => {
                let at = block.at;
                self.report.error(at, block.path("directory"), Problem::new("missing"));
            }
        }
    }
}

fn part_of_name(text: &str) -> Result<Box<str>, Problem> {
    if text.contains('/') {
        return Err(Problem::new("a part of a name, without folders"));
    }
    text_of(text, MAX_PART)
}
