//! `version` and `mode`: what is spoken, and what does not go with it.

use adit_model::{ObfsServer, SNELL_MODES, Secret, SnellMode, SnellVersion, SnellVersions};

use super::snell_to_model::Keys;
use crate::read::value::{self, Problem};

impl Keys<'_> {
    /// The versions that a server takes. Without `version` they are 4 and 5, and with `mode` alone, as the official
    /// server of version 6 has it, 6.
    pub(super) fn server_versions(&mut self, psk: &Secret, obfs: ObfsServer) -> SnellVersions {
        let mode = self.mode();
        let versions = match self.take("version") {
            None => SnellVersions::Only(mode.map_or_else(SnellVersion::default, SnellVersion::V6)),
            Some(value) if &*value.text == "auto" => {
                self.check_mode(mode, None);
                SnellVersions::Auto
            }
            Some(value) => match version(&value.text, mode) {
                Some(version) => {
                    if version.fixed_reuse().is_some() {
                        let problem = format!("only version {} is served then", version.number());
                        self.warning(
                            value.entry,
                            "version",
                            Problem::new(problem).hint("OpenSnell serves 4 and 5"),
                        );
                    }
                    self.check_mode(mode, Some(version));
                    SnellVersions::Only(version)
                }
                None => {
                    let problem = Problem::new("unknown version, so 4 and 5 are served");
                    self.warning(value.entry, "version", problem.hint("write 1 to 6, or auto"));
                    self.check_mode(mode, Some(SnellVersion::default()));
                    SnellVersions::default()
                }
            },
        };
        self.check_psk(psk, &versions.psk_lens());
        self.check_obfs(obfs, versions.has_obfs());
        versions
    }

    /// The version that a client speaks.
    pub(super) fn client_version(&mut self, psk: &Secret, obfs: ObfsServer) -> SnellVersion {
        let mode = self.mode();
        let version = self.parsed("version", |text| {
            version(text, mode).ok_or_else(|| Problem::new("no version of Snell").hint("write 1 to 6"))
        });
        if version.is_some() {
            self.check_mode(mode, version);
        }
        let version = version.unwrap_or_else(|| mode.map_or_else(SnellVersion::default, SnellVersion::V6));
        self.check_psk(psk, &version.psk_lens());
        self.check_obfs(obfs, version.has_obfs());
        version
    }

    /// Whether connections are kept, which some versions decide themselves.
    pub(super) fn client_reuse(&mut self, version: SnellVersion) -> bool {
        let wanted = self.flag("reuse", false);
        let Some(fixed) = version.fixed_reuse() else { return wanted };
        if let Some(value) = self.take("reuse").filter(|_| wanted != fixed) {
            let always = if fixed { "always" } else { "never" };
            let problem = format!("version {} {always} reuses connections", version.number());
            self.warning(value.entry, "reuse", Problem::new(problem));
        }
        fixed
    }

    /// Without a seal everybody who reaches the port can use it.
    pub(super) fn check_exposure(&mut self, versions: SnellVersions, listen: &[std::net::SocketAddr]) {
        if versions.is_sealed() || listen.iter().all(|addr| addr.ip().to_canonical().is_loopback()) {
            return;
        }
        let Some(value) = self.take("mode") else { return };
        let problem = Problem::new("everybody who reaches this server can use it: no key is asked for");
        self.warning(value.entry, "mode", problem.hint("write default, or listen on 127.0.0.1"));
    }

    fn mode(&mut self) -> Option<SnellMode> {
        self.parsed("mode", |text| {
            let mode = SNELL_MODES.iter().find(|(name, _)| *name == text).map(|(_, mode)| *mode);
            mode.ok_or_else(|| {
                Problem::new(format!("unknown value: {}", value::excerpt(text)))
                    .hint("write one of default, unshaped, unsafe-raw")
            })
        })
    }

    /// `mode` chooses a wire format of version 6: a file that says it must not run as something else.
    fn check_mode(&mut self, mode: Option<SnellMode>, version: Option<SnellVersion>) {
        let fits = mode.is_none() || version.is_some_and(|version| version.mode().is_some());
        if let Some(value) = self.take("mode").filter(|_| !fits) {
            let problem = Problem::new("only version 6 has modes");
            self.error(value.entry, "mode", problem.hint("write version = 6, or leave one of them out"));
        }
    }

    fn check_psk(&mut self, psk: &Secret, lens: &std::ops::RangeInclusive<usize>) {
        if psk.expose().is_empty() || lens.contains(&psk.expose().len()) {
            return;
        }
        if let Some(value) = self.take("psk") {
            let problem = format!("version 6 wants {} to {} bytes", lens.start(), lens.end());
            self.error(value.entry, "psk", Problem::new(problem).hint("`adit key` prints a good one"));
        }
    }

    fn check_obfs(&mut self, obfs: ObfsServer, may_have: bool) {
        if let Some(value) = self.take("obfs").filter(|_| obfs != ObfsServer::Off && !may_have) {
            self.error(value.entry, "obfs", Problem::new("version 6 has no obfs").hint("leave it out"));
        }
    }
}

/// `4`, `v4` or `V4`.
fn version(text: &str, mode: Option<SnellMode>) -> Option<SnellVersion> {
    let digit = text.strip_prefix(['v', 'V']).unwrap_or(text);
    let number = digit.parse().ok().filter(|_| digit.len() == 1)?;
    SnellVersion::new(number, mode.unwrap_or_default())
}
