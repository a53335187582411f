//! TCP options of either side.

use std::time::Duration;

use adit_model::TcpOptions;

use super::fields::{TomlFields, TomlReport};
use super::rows::link as rows;
use super::write::TableEntries;
use crate::read::value::Problem;

pub(crate) fn read(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> TcpOptions {
    TcpOptions {
        keep_alive: keep_alive(fields, report),
        send_buffer: fields.read(report, &rows::SEND_BUFFER),
        receive_buffer: fields.read(report, &rows::RECEIVE_BUFFER),
        multipath: fields.read(report, &rows::MULTIPATH).unwrap_or(false),
    }
}

fn keep_alive(fields: &mut TomlFields<'_>, report: &mut TomlReport<'_>) -> Duration {
    let given = fields.read(report, &rows::KEEP_ALIVE);
    let keep_alive = given.unwrap_or_else(|| TcpOptions::default().keep_alive);
    let is_allowed = (TcpOptions::MIN_KEEP_ALIVE..=TcpOptions::MAX_KEEP_ALIVE).contains(&keep_alive);
    if !is_allowed || keep_alive.subsec_nanos() > 0 {
        let problem = Problem::new("no whole number of seconds from 1 to 32767");
        fields.wrong(report, &rows::KEEP_ALIVE, problem);
    }
    keep_alive
}

pub(super) fn write(out: &mut TableEntries, tcp: &TcpOptions) {
    out.put_unless(&rows::KEEP_ALIVE, &tcp.keep_alive, &TcpOptions::default().keep_alive);
    out.put_some(&rows::SEND_BUFFER, tcp.send_buffer.as_ref());
    out.put_some(&rows::RECEIVE_BUFFER, tcp.receive_buffer.as_ref());
    out.put_unless(&rows::MULTIPATH, &tcp.multipath, &false);
}
