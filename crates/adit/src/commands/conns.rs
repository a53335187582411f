//! `adit conns` and `adit kick`: the open connections of a running adit.

use adit_engine::{ConnectionStatus, ControlAnswer, ControlRequest, Kicked, Status, ask, ask_snapshot};
use adit_model::shown;
use anyhow::bail;

use crate::commands::cli::{ConnsArgs, KickArgs};
use crate::commands::running_process;
use crate::print::{self, bytes, seconds};
use crate::table::{Grid, number, text};

pub(crate) fn run(args: &ConnsArgs) -> anyhow::Result<()> {
    let socket = running_process::one(&args.place)?;
    let mut status = running_process::explained(&socket, ask_snapshot(&socket))?;
    if let Some(user) = &args.user {
        status.connections.retain(|connection| connection.user.as_ref() == Some(user));
    }
    if args.json {
        return print::data(format_args!("{}\n", serde_json::to_string(&status.connections)?));
    }
    print::text(render(&status, print::width()))
}

fn render(status: &Status, width: usize) -> String {
    let mut grid = Grid::new(&[
        number("id"),
        text("user").rank(1),
        text("inbound").rank(5),
        text("net").rank(4),
        text("source"),
        text("target"),
        text("outbound").rank(3),
        number("up"),
        number("down"),
        number("age"),
        number("quiet").rank(6),
    ]);
    for connection in &status.connections {
        grid.row(cells(connection));
    }
    let left_out = match status.connections_left_out {
        0 => String::new(),
        count => format!("connections not shown: {count}\n"),
    };
    if grid.is_empty() { format!("no open connections\n{left_out}") } else { grid.render(width) + &left_out }
}

fn cells(connection: &ConnectionStatus) -> [String; 11] {
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    [
        connection.id.to_string(),
        or_dash(connection.user.as_deref().unwrap_or_default()),
        connection.inbound.clone(),
        connection.network.clone(),
        connection.source.clone(),
        connection.target.clone(),
        or_dash(&connection.outbound),
        bytes(connection.up_bytes),
        bytes(connection.down_bytes),
        seconds(connection.age_s),
        seconds(connection.quiet_s),
    ]
}

pub(super) fn kick(args: &KickArgs) -> anyhow::Result<()> {
    let socket = running_process::one(&args.place)?;
    let of = match args.who.parse() {
        Ok(id) if !args.user => Kicked::Id(id),
        _ => Kicked::User(args.who.clone()),
    };
    let what = match &of {
        Kicked::User(name) => format!("user {name}"),
        Kicked::Id(id) => format!("number {id}"),
        Kicked::All => "any number".to_owned(),
    };
    match running_process::explained(&socket, ask(&socket, &ControlRequest::Kick { of }))? {
        ControlAnswer::Kicked(0) => {
            bail!("no open connection of {what}\n  hint: `adit conns` lists them with users and numbers")
        }
        ControlAnswer::Kicked(1) => print::data("1 connection ended\n"),
        ControlAnswer::Kicked(count) => print::data(format_args!("{count} connections ended\n")),
        ControlAnswer::Error(text) => bail!("{}", shown::line(&text)),
        ControlAnswer::Status(_)
        | ControlAnswer::Files(_)
        | ControlAnswer::Differences(_)
        | ControlAnswer::Refused(_)
        | ControlAnswer::Doubts(_)
        | ControlAnswer::Upgraded { .. } => {
            bail!("{} answers something else", socket.display())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_fits_eighty_columns() {
        let connection = ConnectionStatus {
            id: 1_234,
            network: "tcp".into(),
            inbound: "shadowsocks".into(),
            user: Some("somebody".into()),
            source: "[2001:db8:1234:5678:9abc:def0:1234:5678]:65000".into(),
            target: "a-name-that-is-rather-long.example.com:443".into(),
            outbound: "tokyo".into(),
            up_bytes: 1_500,
            down_bytes: 12_345_678,
            age_s: 3_700,
            quiet_s: 2,
            way: adit_engine::ConnectionRoute::default(),
        };
        let mut status: Status = serde_json::from_str(
            r#"{"version":"1","uptime_s":1,"pid":1,"cores":1,"inbounds":[],"outbounds":[]}"#,
        )
        .unwrap();
        assert_eq!(render(&status, 80), "no open connections\n");
        status.connections = vec![connection.clone(), ConnectionStatus { user: None, id: 2, ..connection }];
        status.connections_left_out = 7;
        let text = render(&status, 80);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for word in ["1234", "somebody", "12 MB", "1h 1m", "connections not shown: 7"] {
            assert!(text.contains(word), "{word}: {text}");
        }
        let wide = render(&status, usize::MAX);
        assert!(
            wide.contains("shadowsocks") && wide.contains("tokyo") && wide.contains("example.com:443"),
            "{wide}"
        );
    }
}
