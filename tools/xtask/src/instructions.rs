//! The instructions and allocations of the codecs, counted by valgrind and compared with a stored baseline.
//!
//! Instructions do not depend on what else the machine does, so that a difference of a percent is the change's own. Each
//! case of the example `instructions` (adit-testkit) runs twice; the difference is what the rounds between cost, without
//! start and warm-up.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

use crate::process::{cargo, output, run};
use crate::suites::target_dir;

/// The stored counts, from the root of the workspace.
const BASELINE: &str = "bench/instructions.tsv";
/// Rounds of the two runs of a case.
const ROUNDS: [u32; 2] = [2, 10];
/// A change of instructions beyond this, in percent, is one.
const TOLERANCE: f64 = 2.0;

/// The cost of one round of a case.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cost {
    instructions: f64,
    allocations: f64,
    bytes: f64,
}

/// A case and what a round of it is.
struct Case {
    name: String,
    unit: String,
}

/// The same as a part of the long suite, which leaves it out where there is no valgrind.
pub(crate) fn part(root: &Path) -> anyhow::Result<()> {
    if output(Command::new("valgrind").arg("--version")).is_err() {
        println!("instructions: skipped, needs valgrind");
        return Ok(());
    }
    instructions(root, &[])
}

/// Counts the cases whose names contain one of the words in `args`, or all, and compares; `--save` stores them all.
pub(crate) fn instructions(root: &Path, args: &[&str]) -> anyhow::Result<()> {
    let save = args.contains(&"--save");
    let words: Vec<&str> = args.iter().copied().filter(|arg| *arg != "--save").collect();
    ensure!(words.iter().all(|word| !word.starts_with('-')), "unknown option: {}", words.join(" "));
    ensure!(!save || words.is_empty(), "--save stores all cases: name none");
    let valgrind = output(Command::new("valgrind").arg("--version")).context("valgrind is needed")?;
    let program = build(root)?;
    let versions = format!("{}, {}", compiler(root)?, valgrind.trim());
    let stored = std::fs::read_to_string(root.join(BASELINE)).unwrap_or_default();
    let (stored_versions, baseline) = parse(&stored)?;
    let comparable = stored_versions == versions;
    if !save && !comparable {
        println!(
            "instructions: stored with {stored_versions}; this is {versions}: changes may be theirs, nothing fails"
        );
    }
    println!("| case | a round is | instructions | stored | change | allocations | stored | bytes |");
    println!("|---|---|--:|--:|--:|--:|--:|--:|");
    let (mut text, mut worse) =
        (format!("# {versions}\n# case\tround\tinstructions\tallocations\tbytes\n"), Vec::new());
    for case in cases(&program)? {
        if !words.is_empty() && !words.iter().any(|word| case.name.contains(word)) {
            continue;
        }
        let cost = measure(&program, &case.name)?;
        let before = baseline.get(&case.name);
        println!("{}", row(&case, &cost, before));
        if comparable && before.is_some_and(|before| is_worse(&cost, before)) {
            worse.push(case.name.clone());
        }
        text.push_str(&format!(
            "{}\t{}\t{:.0}\t{:.2}\t{:.0}\n",
            case.name, case.unit, cost.instructions, cost.allocations, cost.bytes
        ));
    }
    if save {
        std::fs::write(root.join(BASELINE), text).with_context(|| format!("write {BASELINE}"))?;
        println!("instructions: stored in {BASELINE}");
        return Ok(());
    }
    ensure!(
        worse.is_empty(),
        "more than stored (instructions by {TOLERANCE} %, or allocations): {}\nhint: if that is the price of something, \
         store it: cargo xtask instructions --save",
        worse.join(", ")
    );
    Ok(())
}

fn build(root: &Path) -> anyhow::Result<PathBuf> {
    run(cargo(root).args([
        "build",
        "--profile",
        "dist",
        "--package",
        "adit-testkit",
        "--example",
        "instructions",
    ]))?;
    Ok(target_dir(root)?.join("dist/examples/instructions"))
}

fn compiler(root: &Path) -> anyhow::Result<String> {
    let version = output(Command::new("rustc").arg("--version").current_dir(root))?;
    let short = version.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    Ok(format!("{short}, {}", std::env::consts::ARCH))
}

fn cases(program: &Path) -> anyhow::Result<Vec<Case>> {
    let list = output(Command::new(program).arg("--list"))?;
    let case = |line: &str| {
        let (name, unit) = line.split_once('\t')?;
        Some(Case { name: name.to_owned(), unit: unit.to_owned() })
    };
    list.lines().map(case).collect::<Option<_>>().context("list of cases")
}

fn measure(program: &Path, case: &str) -> anyhow::Result<Cost> {
    let [few, many] = ROUNDS;
    let per_round = |before: u64, after: u64| (after as f64 - before as f64) / f64::from(many - few);
    let instructions = |rounds| collected(&valgrind(program, case, rounds, "callgrind")?);
    let heap = |rounds| allocated(&valgrind(program, case, rounds, "dhat")?);
    let (instructions_few, instructions_many) = (instructions(few)?, instructions(many)?);
    let ((bytes_few, blocks_few), (bytes_many, blocks_many)) = (heap(few)?, heap(many)?);
    Ok(Cost {
        instructions: per_round(instructions_few, instructions_many),
        allocations: per_round(blocks_few, blocks_many),
        bytes: per_round(bytes_few, bytes_many),
    })
}

/// The figures that `tool` prints at the end.
fn valgrind(program: &Path, case: &str, rounds: u32, tool: &str) -> anyhow::Result<String> {
    let mut command = Command::new("valgrind");
    command.arg(format!("--tool={tool}")).arg(format!("--{tool}-out-file=/dev/null"));
    command.arg(program).arg(case).arg(rounds.to_string());
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("run {command:?}"))?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{}: {command:?}: {}", output.status, text.trim());
    Ok(text)
}

/// Callgrind: `==1== Collected : 12345`.
fn collected(text: &str) -> anyhow::Result<u64> {
    let number = text.lines().find_map(|line| line.split_once("Collected :").map(|(_, number)| number));
    number.and_then(|number| number.trim().parse().ok()).context("no count in the output of callgrind")
}

/// DHAT: `==1== Total: 1,234 bytes in 5 blocks`: bytes and blocks.
fn allocated(text: &str) -> anyhow::Result<(u64, u64)> {
    let line = text.lines().find_map(|line| line.split_once("Total:").map(|(_, rest)| rest));
    let line = line.context("no total in the output of dhat")?.replace(',', "");
    let mut numbers = line.split_whitespace().filter_map(|word| word.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(bytes), Some(blocks)) => Ok((bytes, blocks)),
        _ => bail!("no total in the output of dhat: {line}"),
    }
}

/// The versions that the counts were stored with, and the counts.
fn parse(text: &str) -> anyhow::Result<(String, BTreeMap<String, Cost>)> {
    let versions = text.lines().next().and_then(|line| line.strip_prefix("# ")).unwrap_or("nothing");
    let mut costs = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split('\t').collect();
        let number = |at: usize| fields.get(at).and_then(|field| field.parse().ok());
        let cost = number(2).zip(number(3)).zip(number(4));
        let ((instructions, allocations), bytes) = cost.with_context(|| format!("{BASELINE}: {line}"))?;
        costs.insert(fields[0].to_owned(), Cost { instructions, allocations, bytes });
    }
    Ok((versions.to_owned(), costs))
}

/// Percent more instructions than before.
fn change(cost: &Cost, before: &Cost) -> f64 {
    (cost.instructions / before.instructions.max(1.0) - 1.0) * 100.0
}

/// Fractions of allocations come from tables that grow now and then, and from rounding in the file.
fn is_worse(cost: &Cost, before: &Cost) -> bool {
    change(cost, before) > TOLERANCE || cost.allocations > before.allocations + 0.2
}

fn row(case: &Case, cost: &Cost, before: Option<&Cost>) -> String {
    let stored = |of: &dyn Fn(&Cost) -> String| before.map_or_else(|| "-".to_owned(), of);
    format!(
        "| {} | {} | {:.0} | {} | {} | {:.2} | {} | {:.0} |",
        case.name,
        case.unit,
        cost.instructions,
        stored(&|before| format!("{:.0}", before.instructions)),
        stored(&|before| format!("{:+.1} %", change(cost, before))),
        cost.allocations,
        stored(&|before| format!("{:.2}", before.allocations)),
        cost.bytes,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_valgrind_says_is_read() {
        let callgrind = "==7== Callgrind\n==7== Events    : Ir\n==7== Collected : 5298611\n==7==\n";
        assert_eq!(collected(callgrind).unwrap(), 5_298_611);
        let dhat = "==7== DHAT\n==7== Total:     1,234,567 bytes in 89 blocks\n==7== At t-gmax: 5 bytes in 1 blocks\n";
        assert_eq!(allocated(dhat).unwrap(), (1_234_567, 89));
        assert!(collected("==7== nothing").is_err() && allocated("==7== Total: none").is_err());
    }

    #[test]
    fn the_stored_counts_are_those_of_the_cases() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let (versions, stored) = parse(&std::fs::read_to_string(root.join(BASELINE)).unwrap()).unwrap();
        assert!(versions.starts_with("rustc "), "{versions}");
        let source = "tools/testkit/examples/instructions/main.rs";
        let source = std::fs::read_to_string(root.join(source)).unwrap();
        let table = source.split_once("const CASES").unwrap().1.split_once("];").unwrap().0;
        let names: Vec<&str> =
            table.lines().filter_map(|line| line.trim().strip_prefix("(\"")?.split('"').next()).collect();
        assert!(names.len() >= 20);
        assert_eq!(stored.len(), names.len());
        for name in names {
            assert!(stored.get(name).is_some_and(|cost| cost.instructions > 0.0), "{name}");
        }
    }

    #[test]
    fn more_than_the_tolerance_is_worse() {
        let before = Cost { instructions: 1000.0, allocations: 3.0, bytes: 100.0 };
        assert!(!is_worse(&Cost { instructions: 1019.0, ..before }, &before));
        assert!(is_worse(&Cost { instructions: 1021.0, ..before }, &before));
        assert!(!is_worse(&Cost { instructions: 500.0, ..before }, &before));
        assert!(is_worse(&Cost { allocations: 4.0, ..before }, &before));
        assert!(parse("# x\nname\tunit\tnot a number\t1\t1\n").is_err());
    }
}
