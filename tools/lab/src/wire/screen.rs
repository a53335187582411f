//! The display while an interface is captured: the busiest flows on a terminal, plain lines elsewhere.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::time::Duration;

use console::Term;

use super::{Counting, table};

/// Time between two pictures: short enough to follow, long enough to cost nothing.
const PICTURE: Duration = Duration::from_millis(500);
/// Time between two lines where there is no terminal.
const LINE: Duration = Duration::from_secs(5);
/// Lines of the table's head and of the line above it.
const HEAD: usize = 3;

/// The other screen of the terminal, without wrapping and cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?7l\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?7h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const REST_OF_LINE: &str = "\x1b[K\n";
const REST_OF_SCREEN: &str = "\x1b[J";

/// A live table. Dropping it gives the terminal back as it was.
pub(crate) struct Screen<'n> {
    interface: &'n str,
    terminal: Option<Term>,
    next: Duration,
}

impl<'n> Screen<'n> {
    /// On standard output if that is a terminal; else lines go to standard error.
    pub(crate) fn new(interface: &'n str) -> Self {
        let terminal = stdout().is_terminal().then(Term::stdout);
        if terminal.is_some() {
            show(ENTER);
        }
        let next = if terminal.is_some() { Duration::ZERO } else { LINE };
        Self { interface, terminal, next }
    }

    /// Shows what was counted, if it is time to.
    pub(crate) fn tick(&mut self, counting: &Counting, time: Duration) {
        if time < self.next {
            return;
        }
        let Some(terminal) = &self.terminal else {
            self.next = time + LINE;
            writeln!(stderr(), "{}", line(self.interface, counting, time)).ok();
            return;
        };
        self.next = time + PICTURE;
        let (rows, columns) = terminal.size();
        let lines = picture(self.interface, counting, time, (rows.into(), columns.into()));
        let mut text = HOME.to_owned();
        for line in lines {
            // Writing to a string does not fail.
            write!(text, "{line}{REST_OF_LINE}").ok();
        }
        text.push_str(REST_OF_SCREEN);
        show(&text);
    }
}

impl Drop for Screen<'_> {
    fn drop(&mut self) {
        if self.terminal.is_some() {
            show(LEAVE);
        }
    }
}

/// A terminal that is gone is no reason to stop counting.
fn show(text: &str) {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).ok();
}

fn line(interface: &str, counting: &Counting, time: Duration) -> String {
    format!(
        "{interface}: {} s, {} frames, {} flows, {} bytes",
        time.as_secs(),
        counting.frames,
        counting.flows.len(),
        counting.flows.bytes()
    )
}

/// The busiest flows, as many as fit `rows`, cut to `columns`. The last row stays free, so that nothing scrolls.
fn picture(
    interface: &str,
    counting: &Counting,
    time: Duration,
    (rows, columns): (usize, usize),
) -> Vec<String> {
    let count = rows.saturating_sub(HEAD + 1) / 2;
    let flows = counting.flows.top(count);
    let mut lines = vec![format!("{}; an interrupt ends it", line(interface, counting, time))];
    lines.extend(table(flows.iter()).to_string().lines().map(str::to_owned));
    lines.truncate(rows.saturating_sub(1));
    for line in &mut lines {
        *line = line.chars().take(columns).collect();
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::file::Captured;
    use super::*;
    use crate::frame::Link;
    use crate::frame::tests::segment;

    #[test]
    fn a_picture_fits_the_terminal() {
        let mut counting = Counting::default();
        for port in 1001..1101 {
            let bytes = segment(port, 443, 1, 0, 16, &vec![0; usize::from(port - 1000)]);
            let captured = Captured { time: Duration::ZERO, link: Some(Link::Ethernet), bytes: &bytes };
            assert!(counting.frame(&captured, None));
        }
        for (rows, columns) in [(24, 80), (50, 200), (10, 40), (3, 20), (1, 1), (0, 0)] {
            let lines = picture("eth0", &counting, Duration::from_secs(7), (rows, columns));
            assert!(lines.len() < rows.max(1), "{rows}: {}", lines.len());
            assert!(lines.iter().all(|line| line.chars().count() <= columns));
        }
        let lines = picture("eth0", &counting, Duration::from_secs(7), (24, 200));
        assert!(lines[0].starts_with("eth0: 7 s, 100 frames, 100 flows, 5050 bytes;"), "{}", lines[0]);
        // Ten flows of two rows, the busiest first.
        assert_eq!(lines.len(), HEAD + 20);
        assert!(lines[3].contains("tcp 10.0.0.1:1100 > 10.0.0.2:443"), "{}", lines[3]);
    }
}
