//! The screen, of any size from 40 x 10.
//!
//! ```text
//!   program, process, time, health
//!   rates now, open connections, curve of the last minute
//!
//!   users or connections, one row selected
//!
//!   errors
//!   keys, a question, or a message
//! ```

use adit_engine::Kicked;
use adit_model::shown;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::model::{ConnectionRow, Model, TopPage, UserRow};
use crate::print::{bytes, bytes_like, rate, seconds};
use crate::table::{Grid, cut, number, text};

/// Lines of errors, without the title.
const ERRORS: usize = 4;
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const MARKED: Style = Style::new().add_modifier(Modifier::REVERSED);
const KEYS: &str = "q quit  Tab users, connections  arrows select  k kick  s sort  p pause";

/// Draws the screen.
pub(super) fn draw(frame: &mut Frame<'_>, model: &mut Model) {
    let errors = model.errors();
    let shown = errors.len().clamp(1, ERRORS);
    let below = u16::try_from(shown + 1).unwrap_or(1);
    let parts = [
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Min(2),
        Constraint::Length(below),
        Constraint::Length(1),
    ];
    let [head, title, table, bottom, foot] = Layout::vertical(parts).areas(frame.area());
    draw_head(frame, head, model);
    let (name, grid) = match model.page() {
        TopPage::Users => ("users", user_grid(&model.users(), model.millis())),
        TopPage::Connections => ("connections", connection_grid(&model.connections(), model.millis())),
    };
    let left_out = match model.status().connections_left_out {
        0 => String::new(),
        count => format!(", {count} not shown"),
    };
    let text = format!("{name}, by {}{left_out}", model.order().name());
    frame.render_widget(Paragraph::new(Line::styled(text, BOLD)), title);
    draw_table(frame, table, &grid, model);
    draw_errors(frame, bottom, &errors);
    let foot_text = foot_text(model);
    let foot_text = shown::line(&foot_text);
    frame.render_widget(Paragraph::new(Line::styled(cut(&foot_text, width_of(foot)), DIM)), foot);
}

fn width_of(area: Rect) -> usize {
    usize::from(area.width)
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let status = model.status();
    let health = match (&status.health.reason, model.is_paused()) {
        (_, true) => "paused".to_owned(),
        (Some(reason), false) => shown::line(reason).into_owned(),
        (None, false) => "ready".to_owned(),
    };
    let first =
        format!("adit {}  process {}  up {}  {health}", status.version, status.pid, seconds(status.uptime_s));
    let [up, down] = model.now();
    let open: i64 = status.inbounds.iter().map(|inbound| inbound.open).sum();
    let flows: i64 = status.inbounds.iter().filter_map(|of| Some(of.datagrams.as_ref()?.flows)).sum();
    let figures = format!(
        "down {:<10} up {:<10} open {open}  UDP flows {flows}  ",
        rate(down, model.millis()),
        rate(up, model.millis())
    );
    let width = width_of(area);
    let room = width.saturating_sub(figures.chars().count());
    let lines = vec![
        Line::styled(cut(&first, width), BOLD),
        Line::from(vec![Span::raw(cut(&figures, width)), Span::raw(curve(model, room))]),
    ];
    frame.render_widget(Paragraph::new(lines), area);
}

/// The rates of the last seconds, one column each, of a height between nothing and the highest of them.
fn curve(model: &Model, room: usize) -> String {
    const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let rates: Vec<u64> = model.rates().collect();
    let rates = &rates[rates.len().saturating_sub(room)..];
    let most = rates.iter().copied().max().unwrap_or(0).max(1);
    let step = |rate: u64| STEPS[usize::try_from(u128::from(rate) * 7 / u128::from(most)).unwrap_or(7)];
    rates.iter().map(|rate| step(*rate)).collect()
}

fn user_grid(rows: &[UserRow], millis: u64) -> Grid {
    let mut grid = Grid::new(&[
        text("user"),
        text("inbound").rank(2),
        number("open"),
        number("down now"),
        number("up now"),
        number("down").rank(4),
        number("up").rank(5),
        number("used").rank(1),
        number("quota").rank(1),
        text("state").rank(3),
    ]);
    for row in rows {
        let quota = row.quota;
        grid.row([
            row.user.clone().unwrap_or_else(|| "-".to_owned()),
            row.inbound.clone(),
            row.open.to_string(),
            rate(row.now[1], millis),
            rate(row.now[0], millis),
            bytes(row.all[1]),
            bytes(row.all[0]),
            bytes_like(row.used, quota),
            quota.map_or_else(|| "-".to_owned(), |quota| bytes_like(quota, Some(quota))),
            row.state.clone(),
        ]);
    }
    grid
}

fn connection_grid(rows: &[ConnectionRow], millis: u64) -> Grid {
    let mut grid = Grid::new(&[
        number("id"),
        text("user").rank(1),
        text("net").rank(5),
        text("source").rank(2),
        text("target"),
        text("outbound").rank(3),
        number("down now"),
        number("up now"),
        number("bytes").rank(4),
        number("age"),
    ]);
    for ConnectionRow { connection, now } in rows {
        grid.row([
            connection.id.to_string(),
            connection.user.clone().unwrap_or_else(|| "-".to_owned()),
            connection.network.clone(),
            connection.source.clone(),
            connection.target.clone(),
            connection.outbound.clone(),
            rate(now[1], millis),
            rate(now[0], millis),
            bytes(connection.up_bytes + connection.down_bytes),
            seconds(connection.age_s),
        ]);
    }
    grid
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, grid: &Grid, model: &mut Model) {
    let text = grid.render(width_of(area));
    let mut lines = text.lines();
    let Some(head) = lines.next() else {
        frame.render_widget(Paragraph::new("nothing is open"), area);
        return;
    };
    let rows: Vec<&str> = lines.collect();
    let selected = model.selected(rows.len());
    let room = usize::from(area.height).saturating_sub(1).max(1);
    let from = (selected + 1).saturating_sub(room);
    let row = |(at, row): (usize, &&str)| {
        let style = if at == selected { MARKED } else { Style::new() };
        let gap = width_of(area).saturating_sub(row.chars().count());
        Line::styled(format!("{row}{}", " ".repeat(gap)), style)
    };
    let shown = rows.iter().enumerate().skip(from).take(room).map(row);
    let all: Vec<Line<'_>> = std::iter::once(Line::styled(head.to_owned(), DIM)).chain(shown).collect();
    frame.render_widget(Paragraph::new(all), area);
}

fn draw_errors(frame: &mut Frame<'_>, area: Rect, errors: &[String]) {
    let more = match errors.len().saturating_sub(ERRORS) {
        0 => String::new(),
        more => format!(", {more} more in `adit status`"),
    };
    let mut lines = vec![Line::styled(format!("errors{more}"), BOLD)];
    if errors.is_empty() {
        lines.push(Line::raw("none"));
    }
    lines.extend(errors.iter().take(ERRORS).map(|error| Line::raw(cut(&shown::line(error), width_of(area)))));
    frame.render_widget(Paragraph::new(lines), area);
}

fn foot_text(model: &Model) -> String {
    if let Some(asked) = model.asked() {
        return match asked {
            Kicked::User(name) => format!("end all connections of {name}? y / n"),
            Kicked::Id(id) => format!("end connection {id}? y / n"),
            Kicked::All => "end all connections? y / n".to_owned(),
        };
    }
    model.message().unwrap_or(KEYS).to_owned()
}

#[cfg(test)]
mod tests {
    use adit_engine::{ConnectionStatus, Status};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::model::{Action, Key};
    use super::*;

    fn status(millis: u64, down: u64) -> Status {
        let text = format!(
            r#"{{"version":"0.1.0","uptime_s":{s},"uptime_ms":{millis},"pid":4711,"cores":2,
            "health":{{"is_live":true,"is_ready":true}},
            "inbounds":[
            {{"name":"home","protocol":"shadowsocks","listen":["0.0.0.0:8388"],"outbound":"direct","accepted":90,
            "open":3,"requests":80,"up_bytes":5000,"down_bytes":{down},"refused":{{"authentication":3}},
            "users":[{{"name":"ann","requests":9,"up_bytes":5000,"down_bytes":{down},"open":2,"used_bytes":3145728,
            "quota_bytes":10485760}},
            {{"name":"bob","requests":1,"up_bytes":10,"down_bytes":20,"open":1,"used_bytes":30,
            "quota_bytes":500000000000,"limited":"account expired"}}]}},
            {{"name":"local","protocol":"mixed","listen":["127.0.0.1:1080"],"outbound":"tokyo","accepted":7,
            "open":1,"requests":5,"up_bytes":100,"down_bytes":200,"refused":{{}}}}],
            "outbounds":[{{"name":"tokyo","protocol":"snell","dialled":12,"failed":{failed},"reused":0,"idle":0,
            "early_closes":0,"last_error":{{"code":"ADIT-NET-01","count":{failed},"since":1,"last":2,"active":true,
            "text":"cannot reach snell tokyo.example.com:6160: connection to 203.0.113.9:6160 refused"}}}}]}}"#,
            s = millis / 1000,
            failed = millis / 1000,
        );
        let mut status: Status = serde_json::from_str(&text).unwrap();
        let connection = |id: u64, user: Option<&str>, target: &str| ConnectionStatus {
            id,
            network: "tcp".into(),
            inbound: "home".into(),
            user: user.map(str::to_owned),
            source: "[2001:db8::5]:50312".into(),
            target: target.into(),
            outbound: "direct".into(),
            up_bytes: 2500,
            down_bytes: down / id,
            age_s: 60 * id,
            quiet_s: 0,
            way: adit_engine::ConnectionRoute::default(),
        };
        status.connections = vec![
            connection(1, Some("ann"), "a-rather-long-name.video.example.com:443"),
            connection(2, Some("bob"), "192.0.2.7:80"),
            connection(3, None, "mail.example.com:993"),
        ];
        status
    }

    fn screen(model: &mut Model, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, model)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y: u16| {
            let cells = (0..width).map(|x| buffer[(x, y)].symbol());
            cells.collect::<String>().trim_end().to_owned() + "\n"
        };
        (0..height).map(line).collect()
    }

    fn model() -> Model {
        let mut model = Model::new(status(60_000, 1_000_000));
        model.update(status(61_000, 13_500_000));
        model
    }

    #[test]
    fn users_on_eighty_by_twenty_four() {
        let text = screen(&mut model(), 80, 24);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 24);
        assert_eq!(lines[0], "adit 0.1.0  process 4711  up 1m 1s  ready");
        assert!(lines[1].starts_with("down 12 MB/s    up 0 B/s      open 4  UDP flows 0  █"), "{text}");
        assert_eq!(lines[2], "users, by rate");
        assert!(lines[3].starts_with("user"), "{text}");
        assert!(lines[4].starts_with("ann") && lines[4].contains("12 MB/s"), "{text}");
        assert!(lines[4].contains("3 MiB") && lines[4].contains("10 MiB"), "{text}");
        assert!(text.contains("500 GB"), "{text}");
        assert!(
            text.contains("\ntokyo: 61 of 73 connections could not be made, 1 in the last second\n"),
            "{text}"
        );
        // A long line loses its end, and not the code, which leads to more.
        assert!(text.contains("\ntokyo (ADIT-NET-01): cannot reach snell"), "{text}");
        assert!(text.contains("\nhome: 3 refused: authentication\n"), "{text}");
        assert_eq!(lines[23], KEYS);
    }

    #[test]
    fn connections_on_eighty_by_twenty_four() {
        let mut model = model();
        assert_eq!(model.press(Key::Tab), Action::Nothing);
        let text = screen(&mut model, 80, 24);
        assert!(text.contains("\nconnections, by rate\n"), "{text}");
        assert!(
            text.contains("a-rather") && text.contains("192.0.2.7:80") && text.contains("12 MB/s"),
            "{text}"
        );
        let place = |text: &str, name: &str| text.find(name).unwrap();
        assert!(place(&text, "a-rather") < place(&text, "192.0.2.7"), "{text}");
        model.press(Key::Char('s'));
        model.press(Key::Char('s'));
        let text = screen(&mut model, 80, 24);
        assert!(text.contains("by open, age") && place(&text, "mail.") < place(&text, "a-rather"), "{text}");
    }

    #[test]
    fn a_kick_is_asked_for_once_more() {
        let mut model = model();
        assert_eq!(model.press(Key::Char('k')), Action::Nothing);
        assert!(screen(&mut model, 80, 24).ends_with("end all connections of ann? y / n\n"));
        assert_eq!(model.press(Key::Char('n')), Action::Nothing);
        model.press(Key::Down(1));
        model.press(Key::Char('k'));
        assert!(
            screen(&mut model, 80, 24).ends_with("no user and no connection is selected\n"),
            "the second row is an inbound without users"
        );
        model.press(Key::Char('c'));
        model.press(Key::Char('k'));
        assert_eq!(model.press(Key::Char('y')), Action::Kick(Kicked::Id(1)));
        model.say("1 connection ended".into());
        assert!(screen(&mut model, 80, 24).ends_with("1 connection ended\n"));
        assert_eq!(model.press(Key::Char('q')), Action::Quit);
    }

    #[test]
    fn every_size_is_drawn_and_a_restart_begins_anew() {
        let mut model = model();
        for (width, height) in [(1, 1), (10, 3), (40, 10), (200, 60)] {
            screen(&mut model, width, height);
        }
        model.update(Status { pid: 4712, ..status(500, 7) });
        assert_eq!(model.now(), [0, 0]);
        model.update(Status { pid: 4712, connections: Vec::new(), ..status(1_500, 1_007) });
        assert_eq!(model.now(), [0, 1000]);
        model.press(Key::Tab);
        assert!(screen(&mut model, 80, 24).contains("\nnothing is open\n"));
    }

    #[test]
    fn a_long_list_follows_the_selected_row() {
        let mut all = status(1000, 5);
        let first = all.connections[0].clone();
        all.connections = (1..=100).map(|id| ConnectionStatus { id, ..first.clone() }).collect();
        let mut model = Model::new(all);
        model.press(Key::Tab);
        model.press(Key::Down(usize::MAX));
        let text = screen(&mut model, 80, 24);
        assert!(text.contains("\n100  ") && !text.contains("\n  1  "), "{text}");
        model.press(Key::Up(usize::MAX));
        assert!(screen(&mut model, 80, 24).contains("\n  1  "));
    }
}
