//! Services of systemd that run programs which adit replaces.

use adit_model::map::Map;
use serde::Serialize;

use super::{DROP_IN, MARK, UNITS};
use crate::machine::Root;

/// Folders of units; the first that has a name wins.
const FOLDERS: [&str; 4] = [UNITS, "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];
/// Units that are looked at, and words of a command line.
const MAX_UNITS: usize = 10_000;
const MAX_WORDS: usize = 256;

/// One service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct ForeignService {
    /// Its name, of an instance for a template.
    #[serde(rename = "service")]
    pub(super) name: String,
    /// The old program's name.
    pub(super) program: String,
    /// Its command line, as the unit has it.
    #[serde(skip)]
    pub(super) line: String,
    /// Its arguments, with variables and specifiers filled in.
    #[serde(skip)]
    pub(super) args: Vec<String>,
    /// Whether it starts at boot.
    pub(super) enabled: bool,
    /// Whether a drop-in of adit is there.
    pub(super) moved: bool,
}

impl ForeignService {
    /// The command line with adit in the old program's place.
    pub(super) fn with(&self, program: &str) -> String {
        let rest = without_first(python_off(&self.line));
        format!("{program} {} {rest}", self.program).trim_end().to_owned()
    }
}

/// All services of programs that adit replaces, by name.
pub(super) fn find(root: &Root) -> Vec<ForeignService> {
    let mut texts: Map<String, String> = Map::new();
    for folder in FOLDERS {
        for name in root.names(folder).into_iter().filter(|name| name.ends_with(".service")).take(MAX_UNITS) {
            if let Some(text) = root.read(format!("{folder}/{name}")) {
                texts.entry(name).or_insert(text);
            }
        }
    }
    let enabled = enabled(root);
    let mut found = Vec::new();
    for (name, text) in &texts {
        let instances: Vec<String> = match name.split_once("@.") {
            Some((stem, _)) => {
                let lead = format!("{stem}@");
                enabled
                    .iter()
                    .filter(|name| name.starts_with(&lead) && !texts.contains_key(*name))
                    .cloned()
                    .collect()
            }
            None => vec![name.clone()],
        };
        for instance in instances {
            let is_enabled = enabled.contains(&instance);
            found.extend(read(root, &instance, text, is_enabled));
        }
    }
    found
}

/// The names that a target wants.
fn enabled(root: &Root) -> Vec<String> {
    let wants =
        root.names(UNITS).into_iter().filter(|name| name.ends_with(".wants") || name.ends_with(".requires"));
    let mut names: Vec<String> = wants.flat_map(|folder| root.names(&format!("{UNITS}/{folder}"))).collect();
    names.sort();
    names.dedup();
    names
}

fn read(root: &Root, name: &str, text: &str, enabled: bool) -> Option<ForeignService> {
    let settings = settings(text);
    let value = |key: &'static str| {
        settings.iter().filter(move |(name, _)| name == key).map(|(_, value)| value.as_str())
    };
    let line = value("ExecStart").rfind(|line| !line.is_empty())?;
    let line = line.trim_start_matches(['-', '@', ':', '+', '!']);
    let first = python_off(line).split_whitespace().next()?;
    let program = first.rsplit('/').next()?.to_owned();
    if !is_known(&program) {
        return None;
    }
    let mut variables = Map::new();
    for path in value("EnvironmentFile") {
        let text = root.read(path.trim_start_matches('-')).unwrap_or_default();
        variables.extend(text.lines().filter_map(assignment));
    }
    for assignments in value("Environment") {
        variables.extend(words(assignments).iter().filter_map(|word| assignment(word)));
    }
    let instance = name.split_once('@').and_then(|(_, rest)| rest.strip_suffix(".service")).unwrap_or("");
    let args = expand(python_off(line), instance, &variables).into_iter().skip(1).collect();
    let drop_in = root.read(format!("{UNITS}/{name}.d/{DROP_IN}"));
    let moved = drop_in.is_some_and(|text| text.starts_with(MARK));
    Some(ForeignService { name: name.to_owned(), program, line: line.to_owned(), args, enabled, moved })
}

/// A command line without its first word.
fn without_first(line: &str) -> &str {
    line.split_once(char::is_whitespace).map_or("", |(_, rest)| rest.trim())
}

/// A command line without the interpreter of a Python program.
fn python_off(line: &str) -> &str {
    let first = line.split_whitespace().next().unwrap_or("");
    let is_python = first.rsplit('/').next().is_some_and(|name| name.starts_with("python"));
    if is_python { without_first(line) } else { line }
}

/// Names of programs that adit replaces, or that people look for here.
fn is_known(program: &str) -> bool {
    crate::answers_to(program)
        || ["ssr-", "snell-"].iter().any(|lead| program.starts_with(lead))
        || program.starts_with("kcptun")
}

/// Keys and values, continued lines joined, comments left out.
fn settings(text: &str) -> Vec<(String, String)> {
    let joined = text.replace("\\\r\n", " ").replace("\\\n", " ");
    let lines = joined.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';', '[']));
    lines
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
        .collect()
}

fn assignment(line: &str) -> Option<(String, String)> {
    let (name, value) = line.trim().split_once('=')?;
    let value = value.trim().trim_matches(['"', '\'']);
    (!name.starts_with('#')).then(|| (name.trim().to_owned(), value.to_owned()))
}

/// Words of a line, with quotes taken off.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote, mut begun) = (Vec::new(), String::new(), None, false);
    for letter in line.chars() {
        match (quote, letter) {
            (Some(end), letter) if letter == end => quote = None,
            (None, '"' | '\'') => (quote, begun) = (Some(letter), true),
            (None, letter) if letter.is_whitespace() => {
                if begun && words.len() < MAX_WORDS {
                    words.push(std::mem::take(&mut word));
                }
                word.clear();
                begun = false;
            }
            (_, letter) => {
                word.push(letter);
                begun = true;
            }
        }
    }
    if begun {
        words.push(word);
    }
    words
}

/// The words as the program gets them: `$NAME` alone is split at spaces, `${NAME}` is not (systemd.service(5)).
fn expand(line: &str, instance: &str, variables: &Map<String, String>) -> Vec<String> {
    let mut all = Vec::new();
    for word in words(line) {
        let word = word.replace("%i", instance).replace("%I", instance).replace("%%", "%");
        if let Some(value) = word.strip_prefix('$').filter(|name| !name.starts_with(['{', '$'])) {
            let value = variables.get(value).map_or("", String::as_str);
            all.extend(value.split_whitespace().map(str::to_owned));
            continue;
        }
        let mut word = word;
        for (name, value) in variables {
            word = word.replace(&format!("${{{name}}}"), value);
        }
        all.push(word);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_are_expanded() {
        let variables: Map<String, String> =
            [("CONFFILE", "/etc/a.json"), ("DAEMON_ARGS", "-u  -v"), ("NONE", "")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into();
        for (line, want) in [
            ("/usr/bin/ss-server -c $CONFFILE $DAEMON_ARGS", "/usr/bin/ss-server|-c|/etc/a.json|-u|-v"),
            ("x ${DAEMON_ARGS} $NONE $UNSET", "x|-u  -v"),
            ("x -c /etc/%i.json \"a b\" 'c'd ''", "x|-c|/etc/one.json|a b|cd|"),
        ] {
            assert_eq!(expand(line, "one", &variables).join("|"), want, "{line}");
        }
        assert_eq!(words("\"unterminated x"), ["unterminated x"]);
    }

    #[test]
    fn python_programs_lose_their_interpreter() {
        assert_eq!(python_off("/usr/bin/python3 /opt/server.py -c x"), "/opt/server.py -c x");
        assert_eq!(python_off("/usr/bin/ss-server -c x"), "/usr/bin/ss-server -c x");
        assert_eq!(without_first("a"), "");
    }

    #[test]
    fn settings_and_their_continuations() {
        let text = "[Service]\n# ExecStart=/no\nExecStart=/bin/x \\\n  -c y\n;z=1\nType = simple\n";
        let want = [("ExecStart", "/bin/x    -c y"), ("Type", "simple")];
        assert_eq!(settings(text), want.map(|(key, value)| (key.to_owned(), value.to_owned())));
    }
}
