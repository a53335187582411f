//! TCP options of either side.

use std::time::Duration;

use super::fields::{Fields, Report};
use crate::dialect::value::Problem;
use crate::model::TcpOptions;

pub(super) fn read(fields: &mut Fields<'_>, report: &mut Report<'_>) -> TcpOptions {
    TcpOptions {
        keep_alive: keep_alive(fields, report),
        send_buffer: buffer(fields, report, "tcp-send-buffer"),
        receive_buffer: buffer(fields, report, "tcp-receive-buffer"),
        multipath: fields.flag(report, "tcp-multipath").unwrap_or(false),
    }
}

fn keep_alive(fields: &mut Fields<'_>, report: &mut Report<'_>) -> Duration {
    const KEY: &str = "tcp-keep-alive";
    let keep_alive = fields.duration(report, KEY).unwrap_or_else(|| TcpOptions::default().keep_alive);
    let is_allowed = (TcpOptions::MIN_KEEP_ALIVE..=TcpOptions::MAX_KEEP_ALIVE).contains(&keep_alive);
    if !is_allowed || keep_alive.subsec_nanos() > 0 {
        let problem = Problem::new("no whole number of seconds from 1 to 32767");
        report.error(&fields.place(KEY), fields.path(KEY), problem);
    }
    keep_alive
}

fn buffer(fields: &mut Fields<'_>, report: &mut Report<'_>, key: &'static str) -> Option<u32> {
    let most = usize::try_from(TcpOptions::MAX_BUFFER).unwrap_or(usize::MAX);
    fields.integer(report, key, 1..=most).and_then(|len| len.try_into().ok())
}
