//! The heartbeat of this node: whether it is the only one of its id, whether the store has lost something, and its clock.

use std::sync::Arc;

use adit_model::map::Map;
use adit_net::rt;

use super::link::StoreError;
use super::links::Request;
use super::resp::Value;
use super::sync::{Sync, Use};

/// A heartbeat lives so long, in seconds.
const BEAT_S: &str = "30";

impl Sync {
    /// Tells that this node lives, looks whether another one lives under its name, and asks for the time.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(super) async fn heart_beat(&mut self, uses: &Map<Arc<str>, Use>) -> Result<(), StoreError> {
        let key = format!("adit:{}:node:{}", self.store.fleet, self.node);
        let nodes = format!("adit:{}:nodes", self.store.fleet);
        let asked = [
            Request::command(&[b"HMGET", key.as_bytes(), b"instance", b"beat"]),
            Request::command(&[b"TIME"]),
        ];
        let asked = self.call("beat", &asked).await?;
        if let Some(Value::List(time)) = asked.get(1)
            && let Some(seconds) = time.first().and_then(Value::number)
        {
            let own = i64::try_from(rt::unix_time()).unwrap_or(i64::MAX);
            self.host.skew(i64::try_from(seconds).unwrap_or(i64::MAX) - own);
        }
        if let Some(Value::List(found)) = asked.first() {
            self.look_for_loss(found, uses);
            self.may_tell = !self.is_clone(found);
        }
        if !self.may_tell {
            self.host.follow_sources(None, 0);
            return Ok(());
        }
        self.beat += 1;
        let (beat, boot, now) = (self.beat.to_string(), self.boot.to_string(), rt::unix_time().to_string());
        let fields = Request::command(&[
            b"HSET",
            key.as_bytes(),
            b"instance",
            self.instance.as_bytes(),
            b"beat",
            beat.as_bytes(),
            b"boot",
            boot.as_bytes(),
            b"version",
            env!("CARGO_PKG_VERSION").as_bytes(),
        ]);
        let expire = Request::command(&[b"EXPIRE", key.as_bytes(), BEAT_S.as_bytes()]);
        let listed = Request::command(&[b"ZADD", nodes.as_bytes(), now.as_bytes(), self.node.as_bytes()]);
        self.call("beat", &[fields, expire, listed]).await?;
        self.has_beaten = true;
        Ok(())
    }

    /// A store without the last beat of this process has lost something, or was away for longer than a beat lives.
    fn look_for_loss(&mut self, found: &[Value], uses: &Map<Arc<str>, Use>) {
        let [instance, beat] = found else { return };
        let is_own = instance.text() == Some(&*self.instance) && beat.number() == Some(self.beat);
        let is_other = instance.text().is_some_and(|instance| instance != self.instance);
        if self.has_beaten && !is_own && !is_other {
            let moved = uses.iter().filter(|(_, usage)| usage.used > 0);
            self.tell_again(moved.map(|(user, _)| user.clone()).collect());
        }
    }

    /// Whether another instance lives under this node's id: one whose beat goes on. That of a start before is still.
    fn is_clone(&mut self, found: &[Value]) -> bool {
        let other = match found {
            [instance, beat] => instance.text().map(str::to_owned).zip(beat.number()),
            _ => None,
        };
        let other = other.filter(|(instance, _)| *instance != self.instance);
        let lives = match (&self.other, &other) {
            (Some((before, beat)), Some((instance, now))) => before == instance && now > beat,
            _ => false,
        };
        let is_new = other.is_some()
            && self.other.as_ref().map(|(instance, _)| instance)
                != other.as_ref().map(|(instance, _)| instance);
        self.other = other;
        let mut report = self.shared.report();
        if lives && !report.is_clone {
            let node = &*self.node;
            tracing::error!(
                node,
                "another process has this node's id: it was cloned with its state; totals are not told from here (hint: remove the .fleet file beside the state file of the clone)"
            );
        }
        report.is_clone = lives || report.is_clone && self.other.is_some();
        // One that may be living is looked at once more before its place is taken.
        is_new || report.is_clone
    }
}
