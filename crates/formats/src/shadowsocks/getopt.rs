//! Command lines in the way of `getopt_long` and of clap, which agree about nearly everything.
//!
//! ```text
//! -p 1   -p1   -uvp1            short ones may be written together; the last may take a value
//! --mtu 1   --mtu=1
//! --                            everything behind it is an operand
//! ```
//!
//! getopt takes any unambiguous beginning of a long option; clap takes `-p=1` as `-p 1`.

use std::ffi::OsString;

use zeroize::Zeroizing;

use super::ProgramFamily;
use crate::read::usage;
use crate::read::value::excerpt;

/// One option.
pub(crate) struct Opt<T: 'static> {
    pub(crate) id: T,
    /// Its letter, if it has one.
    pub(crate) short: Option<char>,
    /// Its long names, of which the first is the usual one.
    pub(crate) long: &'static [&'static str],
    pub(crate) takes_value: bool,
}

/// An option that takes a value.
pub(crate) const fn value<T>(id: T, short: Option<char>, long: &'static [&'static str]) -> Opt<T> {
    Opt { id, short, long, takes_value: true }
}

/// An option that takes none.
pub(crate) const fn switch<T>(id: T, short: Option<char>, long: &'static [&'static str]) -> Opt<T> {
    Opt { id, short, long, takes_value: false }
}

/// An option of some programs, as their help shows it.
pub(crate) struct KnownOption<T: 'static, P: 'static> {
    pub(crate) opt: Opt<T>,
    pub(crate) programs: &'static [P],
    /// Name of the value, and description.
    pub(crate) usage: (&'static str, &'static str),
}

impl<T, P: PartialEq> KnownOption<T, P> {
    /// Whether `program` has it.
    pub(crate) fn is_of(&self, program: &P) -> bool {
        self.programs.contains(program)
    }

    /// Whether a message calls it `name`, with its dashes.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        match name.strip_prefix("--") {
            Some(long) => self.opt.long.first() == Some(&long),
            None => {
                let letter = name.strip_prefix('-');
                self.opt.short.is_some_and(|short| letter.is_some_and(|n| n.chars().eq([short])))
            }
        }
    }
}

/// The lines of an option in a help text whose descriptions begin at column `column`: its letter, the `long` names,
/// the name of its value, the description.
pub(crate) fn usage_line<T>(
    option: &Opt<T>,
    long: &[&str],
    (value, what): (&str, &str),
    column: usize,
) -> String {
    let short = option.short.map(|short| format!("-{short}"));
    let long = long.iter().map(|long| format!("--{long}"));
    let names: Vec<String> = short.into_iter().chain(long).collect();
    usage::flag(format!("{} {value}", names.join(", ")).trim_end(), what, column)
}

/// The help of `program`, which goes by `name` and takes the place of one of `peer`.
pub(crate) fn usage<T, P: PartialEq>(
    program: &P,
    name: &str,
    peer: &str,
    known: &[KnownOption<T, P>],
) -> String {
    let lines = known.iter().filter(|known| known.is_of(program));
    let lines = lines.map(|known| usage_line(&known.opt, known.opt.long, known.usage, 30));
    usage::head(name, peer) + &lines.collect::<String>()
}

/// An option that was on the command line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Item<T> {
    pub(crate) id: T,
    /// The option as it is named in messages.
    pub(crate) name: String,
    /// Empty for those that take none. It may be a password.
    pub(crate) value: Zeroizing<String>,
}

/// The error that ended the reading.
#[derive(Debug, PartialEq)]
pub(crate) struct OptionError {
    pub(crate) name: String,
    pub(crate) problem: &'static str,
}

/// The options up to the first mistake, the number of operands, and the mistake.
pub(crate) fn read<T: Copy>(
    family: ProgramFamily,
    options: &'static [Opt<T>],
    args: impl IntoIterator<Item = OsString>,
) -> (Vec<Item<T>>, usize, Option<OptionError>) {
    let mut reader = Reader { family, options, args: args.into_iter(), items: Vec::new(), operands: 0 };
    let wrong = reader.read().err();
    (reader.items, reader.operands, wrong)
}

struct Reader<T: 'static, I> {
    family: ProgramFamily,
    options: &'static [Opt<T>],
    args: I,
    items: Vec<Item<T>>,
    operands: usize,
}

impl<T: Copy, I: Iterator<Item = OsString>> Reader<T, I> {
    fn read(&mut self) -> Result<(), OptionError> {
        while let Some(arg) = self.next() {
            if arg.as_str() == "--" {
                self.operands += self.args.by_ref().count();
            } else if let Some(body) = arg.strip_prefix("--") {
                self.long(body)?;
            } else if let Some(body) = arg.strip_prefix('-').filter(|body| !body.is_empty()) {
                self.cluster(body)?;
            } else {
                self.operands += 1;
            }
        }
        Ok(())
    }

    fn long(&mut self, body: &str) -> Result<(), OptionError> {
        let (word, value) = body.split_once('=').map_or((body, None), |(word, value)| (word, Some(value)));
        let option = self.find(word)?;
        let name = format!("--{}", option.long[0]);
        let value = match (option.takes_value, value) {
            (true, Some(value)) => Zeroizing::new(value.to_owned()),
            (true, None) => self.value(&name)?,
            (false, None) => Zeroizing::default(),
            (false, Some(_)) => return Err(OptionError { name, problem: "takes no value" }),
        };
        self.items.push(Item { id: option.id, name, value });
        Ok(())
    }

    fn find(&self, word: &str) -> Result<&'static Opt<T>, OptionError> {
        let options = self.options;
        if let Some(option) = options.iter().find(|option| option.long.contains(&word)) {
            return Ok(option);
        }
        let begins = |option: &&Opt<T>| option.long.iter().any(|long| long.starts_with(word));
        let mut found = options.iter().filter(begins).filter(|_| self.family == ProgramFamily::Libev);
        let problem = match (found.next(), found.next()) {
            (Some(option), None) => return Ok(option),
            (Some(_), Some(_)) => "more than one flag begins so",
            (None, _) => "no such flag",
        };
        Err(OptionError { name: format!("--{}", excerpt(word)), problem })
    }

    fn cluster(&mut self, body: &str) -> Result<(), OptionError> {
        let mut rest = body;
        while let Some(letter) = rest.chars().next() {
            rest = &rest[letter.len_utf8()..];
            let name = format!("-{letter}");
            let option = self.options.iter().find(|option| option.short == Some(letter));
            let Some(option) = option else { return Err(OptionError { name, problem: "no such flag" }) };
            let mut value = Zeroizing::default();
            if option.takes_value {
                let attached = match self.family {
                    ProgramFamily::Libev => rest,
                    ProgramFamily::Rust => rest.strip_prefix('=').unwrap_or(rest),
                };
                value =
                    if rest.is_empty() { self.value(&name)? } else { Zeroizing::new(attached.to_owned()) };
                rest = "";
            }
            self.items.push(Item { id: option.id, name, value });
        }
        Ok(())
    }

    fn value(&mut self, name: &str) -> Result<Zeroizing<String>, OptionError> {
        self.next().ok_or_else(|| OptionError { name: name.to_owned(), problem: "a value must follow" })
    }

    /// The next argument; bytes that are no UTF-8 become U+FFFD, which is refused wherever it matters.
    fn next(&mut self) -> Option<Zeroizing<String>> {
        self.args.next().map(|arg| Zeroizing::new(arg.to_string_lossy().into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: &[Opt<char>] = &[
        value('p', Some('p'), &["port"]),
        value('k', Some('k'), &["password"]),
        value('m', None, &["mtu"]),
        switch('u', Some('u'), &[]),
        switch('f', None, &["fast-open", "tcp-fast-open"]),
        switch('g', None, &["fast"]),
    ];

    fn text(family: ProgramFamily, line: &str) -> String {
        let (items, operands, wrong) = read(family, OPTIONS, line.split_whitespace().map(OsString::from));
        let mut out: Vec<String> = items.iter().map(|i| format!("{}{}", i.id, *i.value)).collect();
        if operands > 0 {
            out.push(format!("+{operands}"));
        }
        out.extend(wrong.map(|wrong| format!("{}: {}", wrong.name, wrong.problem)));
        out.join(" ")
    }

    #[test]
    fn both() {
        for (line, want) in [
            ("", ""),
            ("-p 1 -u", "p1 u"),
            ("-p1 -up2", "p1 u p2"),
            ("-pu", "pu"),
            ("--mtu 5 --mtu=6 --mtu=", "m5 m6 m"),
            ("--fast --fast-open --tcp-fast-open", "g f f"),
            ("-k -u", "k-u"),
            ("a -u -- -p", "u +2"),
            ("-", "+1"),
            ("-u -x -p1", "u -x: no such flag"),
            ("-p", "-p: a value must follow"),
            ("--mtu", "--mtu: a value must follow"),
            ("--fast-open=1", "--fast-open: takes no value"),
            ("--nope=hunter2", "--nope: no such flag"),
        ] {
            for family in [ProgramFamily::Libev, ProgramFamily::Rust] {
                assert_eq!(text(family, line), want, "{line}");
            }
        }
    }

    #[test]
    fn where_they_differ() {
        for (line, libev, rust) in [
            ("--pass x", "kx", "--pass: no such flag"),
            ("--p x", "--p: more than one flag begins so", "--p: no such flag"),
            ("-p=1", "p=1", "p1"),
        ] {
            assert_eq!(text(ProgramFamily::Libev, line), libev, "{line}");
            assert_eq!(text(ProgramFamily::Rust, line), rust, "{line}");
        }
    }
}
