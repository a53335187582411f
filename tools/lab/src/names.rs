//! Names for targets and rules that look like those of the Internet, drawn from a seed.

use crate::random::Random;

/// The length of the names of one file.
pub(crate) struct Names {
    /// Words of the host's own label.
    pub(crate) words: usize,
    /// Syllables of the longest word, of two letters each.
    pub(crate) syllables: u32,
}

impl Names {
    /// A name of two or three labels.
    pub(crate) fn name(&self, random: &mut Random) -> String {
        const TOPS: [&str; 8] = ["com", "com", "com", "net", "org", "de", "cn", "io"];
        let top = TOPS[random.below(8) as usize];
        let host: String = (0..self.words).map(|_| self.word(random)).collect();
        if random.below(3) == 0 {
            format!("{}.{host}.{top}", self.word(random))
        } else {
            format!("{host}.{top}")
        }
    }

    /// One to `syllables` syllables.
    pub(crate) fn word(&self, random: &mut Random) -> String {
        const SOUNDS: [&str; 16] =
            ["ba", "co", "di", "fe", "go", "hu", "ka", "li", "mo", "ne", "pa", "ri", "so", "tu", "ve", "xi"];
        (0..=random.below(self.syllables)).map(|_| SOUNDS[random.below(16) as usize]).collect()
    }
}
