//! The state of the screen: two snapshots, and the place of the reader.

use std::cmp::Reverse;
use std::collections::VecDeque;

use adit_engine::{ConnectionStatus, InboundStatus, Kicked, Status, UserStatus};
use adit_model::map::Map;

/// Seconds of the curve.
const HISTORY: usize = 60;

/// A key that means something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    /// A character.
    Char(char),
    Escape,
    Tab,
    /// So many rows.
    Up(usize),
    Down(usize),
}

/// The consequence of a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    Quit,
    /// These connections are to end.
    Kick(Kicked),
}

/// The table that is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TopPage {
    Users,
    Connections,
}

/// Order of the rows, the largest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Bytes of the last second.
    Rate,
    /// All bytes.
    Bytes,
    /// Open connections of users; age of connections.
    Open,
}

impl Order {
    /// Its name on the screen.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Bytes => "bytes",
            Self::Open => "open, age",
        }
    }
}

/// A user of an inbound, or all clients of an inbound that knows no users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UserRow {
    pub(super) user: Option<String>,
    pub(super) inbound: String,
    pub(super) open: i64,
    /// Bytes of the last interval: from clients, to clients.
    pub(super) now: [u64; 2],
    pub(super) all: [u64; 2],
    pub(super) used: u64,
    pub(super) quota: Option<u64>,
    pub(super) state: String,
}

/// A connection with the bytes of the last interval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConnectionRow {
    pub(super) connection: ConnectionStatus,
    pub(super) now: [u64; 2],
}

/// The state of the screen.
#[derive(Debug)]
pub(super) struct Model {
    status: Status,
    earlier: Option<Status>,
    page: TopPage,
    order: Order,
    selected: usize,
    is_paused: bool,
    /// Connections that end if the reader says yes.
    asked: Option<Kicked>,
    message: Option<String>,
    /// Bytes a second, both ways together, the latest last.
    rates: VecDeque<u64>,
}

impl Model {
    /// The first screen.
    pub(super) fn new(status: Status) -> Self {
        let has_users = status.inbounds.iter().any(|inbound| !inbound.users.is_empty());
        Self {
            status,
            earlier: None,
            page: if has_users { TopPage::Users } else { TopPage::Connections },
            order: Order::Rate,
            selected: 0,
            is_paused: false,
            asked: None,
            message: None,
            rates: VecDeque::new(),
        }
    }

    /// The next state.
    pub(super) fn update(&mut self, status: Status) {
        // Another process at the same socket begins anew.
        let is_same = status.pid == self.status.pid && status.uptime_ms >= self.status.uptime_ms;
        let earlier = std::mem::replace(&mut self.status, status);
        self.earlier = is_same.then_some(earlier);
        let [up, down] = self.now();
        self.rates.push_back((up + down) * 1000 / self.millis());
        if self.rates.len() > HISTORY {
            self.rates.pop_front();
        }
    }

    /// Something that the reader should know.
    pub(super) fn say(&mut self, message: String) {
        self.message = Some(message);
    }

    pub(super) fn status(&self) -> &Status {
        &self.status
    }

    pub(super) fn page(&self) -> TopPage {
        self.page
    }

    pub(super) fn order(&self) -> Order {
        self.order
    }

    pub(super) fn is_paused(&self) -> bool {
        self.is_paused
    }

    pub(super) fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    pub(super) fn asked(&self) -> Option<&Kicked> {
        self.asked.as_ref()
    }

    pub(super) fn rates(&self) -> impl Iterator<Item = u64> {
        self.rates.iter().copied()
    }

    /// Milliseconds between the two states, at least 1.
    pub(super) fn millis(&self) -> u64 {
        let earlier = self.earlier.as_ref().map_or(0, |earlier| earlier.uptime_ms);
        self.status.uptime_ms.saturating_sub(earlier).max(1)
    }

    /// The selected row among `rows` of them.
    pub(super) fn selected(&mut self, rows: usize) -> usize {
        self.selected = self.selected.min(rows.saturating_sub(1));
        self.selected
    }

    /// Follows a key.
    pub(super) fn press(&mut self, key: Key) -> Action {
        self.message = None;
        if let Some(asked) = self.asked.take() {
            return if key == Key::Char('y') { Action::Kick(asked) } else { Action::Nothing };
        }
        match key {
            Key::Char('q') | Key::Escape => return Action::Quit,
            Key::Tab => {
                self.turn_to(if self.page == TopPage::Users { TopPage::Connections } else { TopPage::Users })
            }
            Key::Char('u') => self.turn_to(TopPage::Users),
            Key::Char('c') => self.turn_to(TopPage::Connections),
            Key::Char('p') => self.is_paused = !self.is_paused,
            Key::Char('s') => {
                self.order = match self.order {
                    Order::Rate => Order::Bytes,
                    Order::Bytes => Order::Open,
                    Order::Open => Order::Rate,
                };
            }
            Key::Up(rows) => self.selected = self.selected.saturating_sub(rows),
            Key::Down(rows) => self.selected = self.selected.saturating_add(rows),
            Key::Char('k') => self.ask_to_kick(),
            Key::Char(_) => {}
        }
        Action::Nothing
    }

    fn turn_to(&mut self, page: TopPage) {
        if self.page != page {
            (self.page, self.selected) = (page, 0);
        }
    }

    fn ask_to_kick(&mut self) {
        let of = match self.page {
            TopPage::Users => {
                let rows = self.users();
                let at = self.selected(rows.len());
                rows.into_iter().nth(at).and_then(|row| row.user).map(Kicked::User)
            }
            TopPage::Connections => {
                let rows = self.connections();
                let at = self.selected(rows.len());
                rows.into_iter().nth(at).map(|row| Kicked::Id(row.connection.id))
            }
        };
        match of {
            Some(of) => self.asked = Some(of),
            None => self.say("no user and no connection is selected".to_owned()),
        }
    }

    /// Bytes of the last interval over all inbounds, and all bytes.
    pub(super) fn now(&self) -> [u64; 2] {
        self.status.inbounds.iter().fold([0, 0], |[up, down], inbound| {
            let [more_up, more_down] = self.inbound_now(inbound);
            [up + more_up, down + more_down]
        })
    }

    fn earlier_inbound(&self, name: &str) -> Option<&InboundStatus> {
        self.earlier.as_ref()?.inbounds.iter().find(|inbound| inbound.name == name)
    }

    fn inbound_now(&self, inbound: &InboundStatus) -> [u64; 2] {
        let earlier =
            self.earlier_inbound(&inbound.name).map(|earlier| [earlier.up_bytes, earlier.down_bytes]);
        since(earlier, [inbound.up_bytes, inbound.down_bytes])
    }

    /// The rows of users, in order.
    pub(super) fn users(&self) -> Vec<UserRow> {
        let mut rows = Vec::new();
        for inbound in &self.status.inbounds {
            if inbound.users.is_empty() {
                rows.push(self.inbound_row(inbound));
            }
            let earlier: Map<&str, &UserStatus> = self
                .earlier_inbound(&inbound.name)
                .map(|inbound| inbound.users.iter().map(|user| (&*user.name, user)).collect())
                .unwrap_or_default();
            rows.extend(
                inbound.users.iter().map(|user| user_row(inbound, user, earlier.get(&*user.name).copied())),
            );
        }
        rows.sort_by_key(|row| {
            let key = match self.order {
                Order::Rate => row.now[0] + row.now[1],
                Order::Bytes => row.all[0] + row.all[1],
                Order::Open => row.open.unsigned_abs(),
            };
            (Reverse(key), Reverse(row.all[0] + row.all[1]))
        });
        rows
    }

    fn inbound_row(&self, inbound: &InboundStatus) -> UserRow {
        let flows = inbound.datagrams.as_ref().map_or(0, |datagrams| datagrams.flows);
        UserRow {
            user: None,
            inbound: inbound.name.clone(),
            open: inbound.open + flows,
            now: self.inbound_now(inbound),
            all: [inbound.up_bytes, inbound.down_bytes],
            used: inbound.up_bytes + inbound.down_bytes,
            quota: None,
            state: String::new(),
        }
    }

    /// The rows of connections, in order.
    pub(super) fn connections(&self) -> Vec<ConnectionRow> {
        let earlier: Map<u64, [u64; 2]> = self
            .earlier
            .iter()
            .flat_map(|status| &status.connections)
            .map(|connection| (connection.id, [connection.up_bytes, connection.down_bytes]))
            .collect();
        let row = |connection: &ConnectionStatus| {
            let all = [connection.up_bytes, connection.down_bytes];
            // One that is new has moved all of its bytes since.
            let before =
                self.earlier.is_some().then(|| earlier.get(&connection.id).copied().unwrap_or_default());
            ConnectionRow { connection: connection.clone(), now: since(before, all) }
        };
        let mut rows: Vec<ConnectionRow> = self.status.connections.iter().map(row).collect();
        rows.sort_by_key(|row| {
            let all = row.connection.up_bytes + row.connection.down_bytes;
            let key = match self.order {
                Order::Rate => row.now[0] + row.now[1],
                Order::Bytes => all,
                Order::Open => row.connection.age_s,
            };
            (Reverse(key), Reverse(all), row.connection.id)
        });
        rows
    }

    /// Failures, those of the last interval first.
    pub(super) fn errors(&self) -> Vec<String> {
        let mut found: Vec<(u64, u64, String)> = Vec::new();
        if let Some(reason) = &self.status.health.reason {
            found.push((u64::MAX, 0, reason.clone()));
        }
        let outbounds = self.status.outbounds.iter().map(|outbound| (&outbound.name, &outbound.last_error));
        let inbounds = self.status.inbounds.iter().map(|inbound| (&inbound.name, &inbound.last_error));
        for (name, error) in outbounds.chain(inbounds) {
            if let Some(error) = error.as_ref().filter(|error| error.active) {
                found.push((u64::MAX - 1, error.count, format!("{name} ({}): {}", error.code, error.text)));
            }
        }
        self.outbound_errors(&mut found);
        for inbound in &self.status.inbounds {
            let earlier = self.earlier_inbound(&inbound.name);
            for (cause, count) in &inbound.refused {
                let before = earlier.map(|earlier| earlier.refused.get(cause).copied().unwrap_or_default());
                let now = before.map_or(0, |before| count.saturating_sub(before));
                let text = format!("{}: {count} refused: {cause}{}", inbound.name, more(now));
                found.push((now, *count, text));
            }
        }
        for group in &self.status.groups {
            for member in &group.members {
                for (transport, health) in [("tcp", &member.tcp), ("udp", &member.udp)] {
                    let Some(health) = health.as_ref().filter(|health| health.state == "dead") else {
                        continue;
                    };
                    let why = health.failure.as_deref().unwrap_or("no answer");
                    let text =
                        format!("{}: member {} is dead for {transport}: {why}", group.name, member.name);
                    found.push((u64::from(health.failures), 0, text));
                }
            }
        }
        found.sort_by_key(|(now, count, _)| Reverse((*now, *count)));
        found.into_iter().map(|(_, _, text)| text).collect()
    }

    fn outbound_errors(&self, found: &mut Vec<(u64, u64, String)>) {
        for outbound in &self.status.outbounds {
            let earlier = self.earlier.as_ref();
            let earlier =
                earlier.and_then(|earlier| earlier.outbounds.iter().find(|of| of.name == outbound.name));
            let name = &outbound.name;
            let of = outbound.dialled + outbound.failed;
            for (count, before, text) in [
                (
                    outbound.failed,
                    earlier.map(|of| of.failed),
                    format!("of {of} connections could not be made"),
                ),
                (
                    outbound.early_closes,
                    earlier.map(|of| of.early_closes),
                    "connections were closed before any reply".to_owned(),
                ),
            ] {
                let now = before.map_or(0, |before| count.saturating_sub(before));
                if count > 0 {
                    found.push((now, count, format!("{name}: {count} {text}{}", more(now))));
                }
            }
        }
    }
}

fn user_row(inbound: &InboundStatus, user: &UserStatus, earlier: Option<&UserStatus>) -> UserRow {
    let all = [user.up_bytes, user.down_bytes];
    UserRow {
        user: Some(user.name.clone()),
        inbound: inbound.name.clone(),
        open: user.open.into(),
        now: since(earlier.map(|earlier| [earlier.up_bytes, earlier.down_bytes]), all),
        all,
        used: user.used_bytes,
        quota: user.quota_bytes,
        state: user.limited.clone().unwrap_or_default(),
    }
}

/// The difference of two counters; none without an earlier state.
fn since(earlier: Option<[u64; 2]>, now: [u64; 2]) -> [u64; 2] {
    earlier.map_or([0, 0], |earlier| [now[0].saturating_sub(earlier[0]), now[1].saturating_sub(earlier[1])])
}

fn more(now: u64) -> String {
    if now > 0 { format!(", {now} in the last second") } else { String::new() }
}
