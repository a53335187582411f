//! Versions of Snell.

/// The versions that a Snell server takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnellVersions {
    /// One version; 4 and 5 are the same over TCP, so each takes both.
    Only(SnellVersion),
    /// 4, 5 and 6 in the modes default and unshaped, told apart by what opens.
    Auto,
}

impl Default for SnellVersions {
    fn default() -> Self {
        Self::Only(SnellVersion::default())
    }
}

impl SnellVersions {
    /// Whether a server of these versions can use obfs.
    pub fn has_obfs(self) -> bool {
        matches!(self, Self::Only(version) if version.has_obfs())
    }

    /// Whether clients of these versions may send datagrams.
    pub fn has_datagrams(self) -> bool {
        match self {
            Self::Only(version) => version.has_datagrams(),
            Self::Auto => true,
        }
    }

    /// Whether a server of these versions takes QUIC on its UDP port.
    pub fn has_quic(self) -> bool {
        match self {
            Self::Only(version) => version.has_quic(),
            Self::Auto => true,
        }
    }

    /// Whether anything that is said is sealed.
    pub fn is_sealed(self) -> bool {
        self != Self::Only(SnellVersion::V6(SnellMode::UnsafeRaw))
    }

    /// Lengths that the pre-shared key may have, in bytes.
    pub fn psk_lens(self) -> std::ops::RangeInclusive<usize> {
        match self {
            Self::Only(version) => version.psk_lens(),
            Self::Auto => SnellVersion::V6(SnellMode::Default).psk_lens(),
        }
    }
}

/// A version of Snell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SnellVersion {
    /// Version 1, for old installations.
    V1,
    /// Version 2, for old installations: connections are always kept for further requests.
    V2,
    /// Version 3, for old installations.
    V3,
    /// Version 4.
    V4,
    /// Version 5.
    #[default]
    V5,
    /// Version 6.
    V6(SnellMode),
}

impl SnellVersion {
    /// A version by its number and, for 6, its mode.
    pub fn new(number: u8, mode: SnellMode) -> Option<Self> {
        match number {
            1 => Some(Self::V1),
            2 => Some(Self::V2),
            3 => Some(Self::V3),
            4 => Some(Self::V4),
            5 => Some(Self::V5),
            6 => Some(Self::V6(mode)),
            _ => None,
        }
    }

    /// 1 to 6.
    pub fn number(self) -> u8 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
            Self::V3 => 3,
            Self::V4 => 4,
            Self::V5 => 5,
            Self::V6(_) => 6,
        }
    }

    /// The mode of version 6.
    pub fn mode(self) -> Option<SnellMode> {
        match self {
            Self::V6(mode) => Some(mode),
            Self::V1 | Self::V2 | Self::V3 | Self::V4 | Self::V5 => None,
        }
    }

    /// Whether it can use obfs; version 6 cannot.
    pub fn has_obfs(self) -> bool {
        self.mode().is_none()
    }

    /// Whether it carries datagrams: 3 and later do.
    pub fn has_datagrams(self) -> bool {
        self.number() >= 3
    }

    /// Whether it sends QUIC to the UDP port of the server: 5 alone does.
    pub fn has_quic(self) -> bool {
        self == Self::V5
    }

    /// Whether connections are kept for further requests, where the version decides that: 2 always does, 1 and 3 never.
    pub fn fixed_reuse(self) -> Option<bool> {
        match self {
            Self::V1 | Self::V3 => Some(false),
            Self::V2 => Some(true),
            Self::V4 | Self::V5 | Self::V6(_) => None,
        }
    }

    /// Lengths that the pre-shared key may have, in bytes; other programs refuse others (sing-box 1.14.1).
    pub fn psk_lens(self) -> std::ops::RangeInclusive<usize> {
        match self {
            Self::V6(_) => 12..=255,
            Self::V1 | Self::V2 | Self::V3 | Self::V4 | Self::V5 => 1..=usize::MAX,
        }
    }
}

/// Shape of version 6 on the wire; both ends must agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SnellMode {
    /// Shaped by the pre-shared key.
    #[default]
    Default,
    /// Sealed frames and nothing else.
    Unshaped,
    /// Nothing is sealed, and the key is not used: for loopback or inside another tunnel.
    UnsafeRaw,
}

/// The modes by their names.
pub const SNELL_MODES: &[(&str, SnellMode)] = &[
    ("default", SnellMode::Default),
    ("unshaped", SnellMode::Unshaped),
    ("unsafe-raw", SnellMode::UnsafeRaw),
];

impl SnellMode {
    /// Its name.
    pub fn name(self) -> &'static str {
        SNELL_MODES.iter().find(|(_, mode)| *mode == self).map_or("", |(name, _)| name)
    }
}
