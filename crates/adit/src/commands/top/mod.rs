//! `adit top`: users, connections, rates and errors of a running adit, anew every second.

mod model;
mod view;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::{Duration, Instant};

use adit_engine::{ControlAnswer, ControlRequest, Kicked, ask, ask_snapshot};
use adit_net::rt;
use anyhow::ensure;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use self::model::{Action, Key, Model};
use crate::commands::cli::TopArgs;
use crate::commands::running_process;

/// Interval at which the state is asked for.
const EVERY: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &TopArgs) -> anyhow::Result<()> {
    ensure!(
        io::stdout().is_terminal() && io::stdin().is_terminal(),
        "top needs a terminal\n  hint: `adit status` and `adit conns --json` write to a file or pipe"
    );
    let socket = running_process::one(&args.place)?;
    let first = running_process::explained(&socket, ask_snapshot(&socket))?;
    let mut terminal = ratatui::try_init()?;
    let result = watch(&mut terminal, &socket, Model::new(first));
    // The screen is as it was, after an error too.
    ratatui::try_restore()?;
    result
}

fn watch(terminal: &mut DefaultTerminal, socket: &Path, mut model: Model) -> anyhow::Result<()> {
    let mut due = rt::now() + EVERY;
    loop {
        terminal.draw(|frame| view::draw(frame, &mut model))?;
        if let Some(key) = next_key(due)? {
            match model.press(key) {
                Action::Nothing => {}
                Action::Quit => return Ok(()),
                Action::Kick(of) => model.say(kick(socket, of)),
            }
        }
        if rt::now() >= due {
            due = rt::now() + EVERY;
            if !model.is_paused() {
                match ask_snapshot(socket) {
                    Ok(status) => model.update(status),
                    Err(error) => model.say(format!("no answer: {error}")),
                }
            }
        }
    }
}

/// The next key, if one is pressed until then.
fn next_key(due: Instant) -> io::Result<Option<Key>> {
    if !event::poll(due.saturating_duration_since(rt::now()))? {
        return Ok(None);
    }
    Ok(key_of(&event::read()?))
}

#[allow(clippy::wildcard_enum_match_arm, reason = "the other keys and events mean nothing here")]
fn key_of(event: &Event) -> Option<Key> {
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press | KeyEventKind::Repeat, .. }) =
        event
    else {
        return None;
    };
    let control = modifiers.contains(KeyModifiers::CONTROL);
    match code {
        KeyCode::Char('c') if control => Some(Key::Char('q')),
        KeyCode::Char(c) if !control => Some(Key::Char(*c)),
        KeyCode::Esc => Some(Key::Escape),
        KeyCode::Tab | KeyCode::BackTab => Some(Key::Tab),
        KeyCode::Up => Some(Key::Up(1)),
        KeyCode::Down => Some(Key::Down(1)),
        KeyCode::PageUp => Some(Key::Up(10)),
        KeyCode::PageDown => Some(Key::Down(10)),
        KeyCode::Home => Some(Key::Up(usize::MAX)),
        KeyCode::End => Some(Key::Down(usize::MAX)),
        _ => None,
    }
}

/// Ends connections; the result in words.
fn kick(socket: &Path, of: Kicked) -> String {
    match ask(socket, &ControlRequest::Kick { of }) {
        Ok(ControlAnswer::Kicked(0)) => "it had ended already".to_owned(),
        Ok(ControlAnswer::Kicked(1)) => "1 connection ended".to_owned(),
        Ok(ControlAnswer::Kicked(count)) => format!("{count} connections ended"),
        Ok(ControlAnswer::Error(text)) => text,
        Ok(
            ControlAnswer::Status(_)
            | ControlAnswer::Files(_)
            | ControlAnswer::Differences(_)
            | ControlAnswer::Refused(_)
            | ControlAnswer::Doubts(_)
            | ControlAnswer::Upgraded { .. },
        ) => "the process answers something else".to_owned(),
        Err(error) => format!("no answer: {error}"),
    }
}
