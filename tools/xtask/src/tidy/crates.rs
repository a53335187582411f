//! Rules over crates and their dependencies.

use std::path::Path;

use anyhow::{Context, anyhow};
use serde_json::Value;

use super::Finding;
use super::source::Source;
use crate::process::{cargo, output};

/// Workspace crates that a crate may depend on, and those that its tests may use besides. Dependencies point down.
const DIRECTION: &[(&str, &[&str], &[&str])] = &[
    (
        "adit",
        &[
            "adit-demo",
            "adit-engine",
            "adit-fleet",
            "adit-formats",
            "adit-model",
            "adit-net",
            "adit-proto",
            "adit-snowflake",
        ],
        &["adit-testkit"],
    ),
    ("adit-demo", &["adit-sys"], &[]),
    (
        "adit-engine",
        &["adit-model", "adit-net", "adit-proto"],
        &["adit-formats", "adit-snowflake", "adit-sys", "adit-testkit"],
    ),
    // Panels and stores see no part of the engine, and the engine none of them.
    ("adit-fleet", &["adit-model", "adit-net", "adit-proto"], &["adit-testkit"]),
    ("adit-net", &["adit-model", "adit-proto", "adit-sys"], &["adit-testkit"]),
    ("adit-formats", &["adit-model", "adit-proto"], &["adit-testkit"]),
    ("adit-model", &["adit-proto"], &[]),
    ("adit-lab", &["adit-demo", "adit-netem", "adit-sys"], &["adit-testkit"]),
    ("adit-netem", &[], &[]),
    ("adit-proto", &[], &["adit-testkit"]),
    ("adit-snowflake", &["adit-engine", "adit-model", "adit-net", "adit-proto"], &["adit-testkit"]),
    ("adit-sys", &[], &["adit-testkit"]),
    // Its tests replay the fuzz corpus through every crate that parses.
    (
        "adit-testkit",
        &["adit-netem", "adit-proto", "adit-sys"],
        &["adit-formats", "adit-model", "adit-engine", "adit-fleet", "adit-lab", "adit-snowflake"],
    ),
    ("xtask", &[], &[]),
];

/// Dependencies that must not spread, and the crates that may declare them. adit-lab builds bare relays to measure
/// adit against, from the same parts.
const CONFINED: &[(&str, &[&str])] = &[
    ("tokio", &["adit-net"]),
    ("hickory-proto", &["adit-engine"]),
    ("http-body-util", &["adit-net"]),
    ("hyper", &["adit-net"]),
    ("hyper-util", &["adit-net"]),
    ("tokio-rustls", &["adit-net"]),
    ("tungstenite", &["adit-net"]),
    ("rustls-native-certs", &["adit-net"]),
    ("webpki-roots", &["adit-net"]),
    ("socket2", &["adit-net", "adit-sys", "adit-demo", "adit-lab"]),
    ("libc", &["adit-sys"]),
    ("aws-lc-rs", &["adit-proto", "adit-lab"]),
    ("argon2", &["adit-proto"]),
    ("clap", &["adit", "adit-lab"]),
    ("anyhow", &["adit", "adit-formats", "adit-demo", "adit-lab", "xtask"]),
];

/// The one crate that may say `unsafe`.
pub(super) const UNSAFE_CRATE: &str = "adit-sys";
/// Its folder in `crates/`.
pub(super) const UNSAFE_FOLDER: &str = "sys";

/// The members of the workspace, as `cargo metadata` tells.
pub(super) struct Workspace<'a> {
    root: &'a Path,
    members: Vec<Member>,
}

struct Member {
    name: String,
    /// Path from the workspace root.
    manifest: String,
    manifest_text: String,
    dependencies: Vec<Dependency>,
    /// Root files of library and programs, from the workspace root.
    roots: Vec<String>,
}

struct Dependency {
    name: String,
    dev: bool,
}

impl<'a> Workspace<'a> {
    /// Asks cargo. Nothing is resolved or downloaded.
    pub(super) fn load(root: &'a Path) -> anyhow::Result<Self> {
        let metadata = output(cargo(root).args(["metadata", "--format-version=1", "--no-deps"]))?;
        let metadata: Value = serde_json::from_str(&metadata).context("read cargo metadata")?;
        let top = metadata["workspace_root"].as_str().context("workspace_root")?;
        let members = array(&metadata["packages"])?
            .iter()
            .map(|p| member(p, Path::new(top)))
            .collect::<Result<_, _>>()?;
        Ok(Self { root, members })
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn check(&self, findings: &mut Vec<Finding>) -> anyhow::Result<()> {
        for member in &self.members {
            member.check_direction(findings);
            member.check_confined(findings);
            member.check_lints(findings);
            if member.name != UNSAFE_CRATE {
                self.check_forbids_unsafe(member, findings)?;
            }
        }
        Ok(())
    }

    fn check_forbids_unsafe(&self, member: &Member, findings: &mut Vec<Finding>) -> anyhow::Result<()> {
        for path in &member.roots {
            let text =
                std::fs::read_to_string(self.root.join(path)).with_context(|| format!("read {path}"))?;
            if !Source::new(path, &text).forbids_unsafe() {
                findings.push(Finding::new(path, 1, "forbid-unsafe", "`#![forbid(unsafe_code)]` is missing"));
            }
        }
        Ok(())
    }
}

impl Member {
    fn check_direction(&self, findings: &mut Vec<Finding>) {
        let Some((_, normal, tests)) = DIRECTION.iter().find(|(name, ..)| *name == self.name) else {
            let what =
                format!("{} is not in the table of crates (tools/xtask/src/tidy/crates.rs)", self.name);
            findings.push(Finding::new(&self.manifest, 1, "direction", what));
            return;
        };
        let is_member = |name: &str| DIRECTION.iter().any(|(member, ..)| *member == name);
        for dependency in self.dependencies.iter().filter(|dependency| is_member(&dependency.name)) {
            let name = dependency.name.as_str();
            if !(normal.contains(&name) || dependency.dev && tests.contains(&name)) {
                let what = format!("{} must not depend on {name}", self.name);
                findings.push(self.finding(name, "direction", what));
            }
        }
    }

    fn check_confined(&self, findings: &mut Vec<Finding>) {
        for dependency in &self.dependencies {
            let Some((name, homes)) = CONFINED.iter().find(|(name, _)| *name == dependency.name) else {
                continue;
            };
            // The peers of a program's tests own their sockets.
            if dependency.dev && *name == "socket2" {
                continue;
            }
            if !homes.contains(&self.name.as_str()) {
                let what = format!("only {} may depend on {name}", homes.join(", "));
                findings.push(self.finding(name, "confined", what));
            }
        }
    }

    /// Without `[lints] workspace = true` a crate escapes every lint that the workspace sets.
    fn check_lints(&self, findings: &mut Vec<Finding>) {
        let section = self.manifest_text.split("\n[").find(|section| section.starts_with("lints]"));
        if !section.is_some_and(|section| section.lines().any(|line| line.trim() == "workspace = true")) {
            let what = "`[lints] workspace = true` is missing";
            findings.push(Finding::new(&self.manifest, 1, "lints", what));
        }
    }

    /// A finding at the line of the manifest that declares `dependency`.
    fn finding(&self, dependency: &str, rule: &'static str, what: String) -> Finding {
        let declares = |line: &str| {
            line.trim_start()
                .strip_prefix(dependency)
                .is_some_and(|rest| rest.starts_with(['.', ' ', '=']) && !rest.starts_with(". "))
        };
        let line = self.manifest_text.lines().position(declares).map_or(1, |index| index + 1);
        Finding::new(&self.manifest, line, rule, what)
    }
}

fn member(package: &Value, top: &Path) -> anyhow::Result<Member> {
    let manifest = Path::new(string(&package["manifest_path"])?);
    let mut dependencies = Vec::new();
    for dependency in array(&package["dependencies"])? {
        dependencies.push(Dependency {
            name: string(&dependency["name"])?.into(),
            dev: dependency["kind"].as_str() == Some("dev"),
        });
    }
    let mut roots = Vec::new();
    for target in array(&package["targets"])? {
        let kinds = array(&target["kind"])?;
        if kinds.iter().any(|kind| matches!(kind.as_str(), Some("lib" | "bin" | "proc-macro"))) {
            roots.push(relative(Path::new(string(&target["src_path"])?), top)?);
        }
    }
    Ok(Member {
        name: string(&package["name"])?.into(),
        manifest_text: std::fs::read_to_string(manifest).with_context(|| format!("read {manifest:?}"))?,
        manifest: relative(manifest, top)?,
        dependencies,
        roots,
    })
}

fn relative(path: &Path, top: &Path) -> anyhow::Result<String> {
    let path = path.strip_prefix(top).with_context(|| format!("{path:?} lies outside the workspace"))?;
    Ok(path.to_str().context("path in UTF-8")?.replace('\\', "/"))
}

fn array(value: &Value) -> anyhow::Result<&Vec<Value>> {
    value.as_array().ok_or_else(|| anyhow!("cargo metadata: expected an array, got {value}"))
}

fn string(value: &Value) -> anyhow::Result<&str> {
    value.as_str().ok_or_else(|| anyhow!("cargo metadata: expected a string, got {value}"))
}
