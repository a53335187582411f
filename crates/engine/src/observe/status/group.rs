//! A group's members and the choice among them.

use serde::{Deserialize, Serialize};

use crate::groups::best::{CheckFailure, GroupShared, MemberHealth, Report, Transport};

/// A group of outbounds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// Its name.
    pub name: String,
    /// The member that new connections use; `None` if no member carries them.
    pub tcp: Option<ChoiceStatus>,
    /// The member that new flows of datagrams use; `None` if no member carries them.
    pub udp: Option<ChoiceStatus>,
    /// Everything there is to choose from.
    pub members: Vec<MemberStatus>,
}

/// The member of a group that is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChoiceStatus {
    /// Its name.
    pub member: String,
    /// The reason for the choice.
    pub why: String,
}

/// One member of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its name.
    pub name: String,
    /// Health over streams; `None` if it is not used for them.
    pub tcp: Option<HealthStatus>,
    /// Health over datagrams; `None` if it is not used for them.
    pub udp: Option<HealthStatus>,
}

/// Health of a member over one transport.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthStatus {
    /// `unknown` before the first check, `alive`, `doubtful` after a failed one, or `dead` after several in a row.
    pub state: String,
    /// Reason for the failure of the latest check, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Median of the latest answers, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<u64>,
    /// Failed ones among the latest checks, in percent.
    pub loss_percent: u32,
    /// Failed checks in a row.
    pub failures: u32,
    /// Preference in percent.
    pub weight: u8,
    /// Score by which members are compared, in microseconds: latency, loss and weight together; less is better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score_us: Option<u64>,
}

impl GroupStatus {
    /// As of this moment.
    pub(crate) fn of(group: &GroupShared) -> Self {
        let mut members: Vec<MemberStatus> = group
            .names()
            .into_iter()
            .map(|name| MemberStatus { name: name.to_string(), tcp: None, udp: None })
            .collect();
        let mut choices = [None, None];
        for transport in [Transport::Tcp, Transport::Udp] {
            let (chosen, reports) = group.report(transport);
            for (member, report) in members.iter_mut().zip(reports) {
                let place = if transport == Transport::Tcp { &mut member.tcp } else { &mut member.udp };
                *place = health(&report);
            }
            choices[transport as usize] = chosen.and_then(|(index, why)| {
                Some(ChoiceStatus { member: members.get(index)?.name.clone(), why })
            });
        }
        let [tcp, udp] = choices;
        Self { name: group.name().to_string(), tcp, udp, members }
    }
}

fn health(report: &Report) -> Option<HealthStatus> {
    let micros = |span: std::time::Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
    let state = match report.health? {
        MemberHealth::Unknown => "unknown",
        MemberHealth::Alive => "alive",
        MemberHealth::Doubtful => "doubtful",
        MemberHealth::Dead => "dead",
    };
    Some(HealthStatus {
        state: state.into(),
        failure: report.failure.map(|failure| failure_name(failure).into()),
        latency_us: report.latency.map(micros),
        loss_percent: report.loss,
        failures: report.failures,
        weight: report.weight,
        score_us: report.score.map(micros),
    })
}

fn failure_name(failure: CheckFailure) -> &'static str {
    match failure {
        CheckFailure::NoAnswer => "no-answer",
        CheckFailure::NoConnection => "no-connection",
    }
}
