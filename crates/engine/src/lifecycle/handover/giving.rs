//! The process that hands over.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, mpsc};
use std::time::{Duration, Instant};

use adit_net::handover::{self, HandoverLink, Kept, Kind, Label};
use adit_net::rt;
use adit_net::udp::divert::{Diversion, Passed};

use super::draining::{DrainingProcess, Verdicts};
use super::wire::{self, Message, SocketClients, SuccessorMessage, VERSION};
use super::{HandoverError, plain};
use crate::lifecycle::command::{HandOver, LoopCommand};
use crate::lifecycle::running::RunningInbound;
use crate::lifecycle::{Engine, Running};
use crate::replay::Print;
use crate::transparent::Lent;

/// Time for the new process to read its configuration.
const PREPARED: Duration = Duration::from_secs(30);
/// Time for it to open everything; plugins are started.
const READY: Duration = Duration::from_secs(60);
/// Time for it to say that it serves.
const SERVING: Duration = Duration::from_secs(10);
/// Time for the event loops to leave their sockets.
const PASSED: Duration = Duration::from_secs(5);

/// Hands this process's part over to another one; any thread may hold one.
#[derive(Debug, Clone)]
pub struct Giver(Arc<Engine>);

/// The result of [`Giver::give`].
#[derive(Debug, Clone)]
pub struct HandedOver {
    /// The version of the program that serves now.
    pub program: String,
    /// Connections and datagram flows that are left to this process.
    pub open: u64,
}

/// The steps that have to be taken back if the other process fails.
#[derive(Default)]
struct Left {
    stores: bool,
    salts: Option<PathBuf>,
    prints: Vec<Print>,
    sockets: bool,
    /// The other process goes on with the capture.
    capture: bool,
}

impl Running {
    /// Somebody who hands this process's part over to another one.
    pub fn giver(&self) -> Giver {
        Giver(self.engine.clone())
    }
}

impl Giver {
    /// Copies of all listening sockets, for the descriptor store of a service manager. Interfaces are not among them, nor
    /// the listeners behind them: they end with the processes that use them.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn sockets(&self) -> std::io::Result<Vec<Kept>> {
        self.0.copies(|held| held.model.interface_name().is_none())
    }

    /// Hands over to the process at the other end of `link`, and has this one finish its connections within `drain`. It
    /// blocks until the other process serves, some 100 ms for most configurations. `end` ends the other process; it is called
    /// when that has failed. `announce` is called once it has not, before anything ends here.
    ///
    /// # Errors
    /// When this process goes on as before.
    pub fn give(
        &self,
        link: HandoverLink,
        drain: Duration,
        announce: impl FnOnce(&HandedOver),
        end: impl FnOnce(),
    ) -> Result<(), HandoverError> {
        let engine = &self.0;
        let mut left = Left::default();
        let result = engine.check_fit().and_then(|()| engine.try_give(&link, &mut left));
        let program = match result {
            Ok(program) => program,
            Err(error) => {
                // It may hold the files.
                end();
                engine.take_back(left);
                return Err(error);
            }
        };
        let open = u64::try_from(engine.directory.open()).unwrap_or(0) + engine.flows();
        announce(&HandedOver { program, open });
        if left.capture
            && let Some(active) = engine.state().capture.take()
        {
            active.leave();
        }
        engine.finish_handover(link, drain);
        Ok(())
    }
}

impl Engine {
    /// Copies of all listening sockets of inbounds that are `wanted`, and of those for people.
    fn copies(&self, wanted: fn(&RunningInbound) -> bool) -> std::io::Result<Vec<Kept>> {
        let state = self.state();
        let admin = self.kept();
        let inbounds = state.inbounds.values().filter(|held| wanted(held));
        let all = inbounds.flat_map(RunningInbound::kept).chain(&*admin);
        all.map(Kept::copy).collect()
    }

    /// Refuses what no other process could go on with.
    fn check_fit(&self) -> Result<(), HandoverError> {
        let state = self.state();
        let unfit = |text: String| Err(HandoverError::Unfit(text));
        if self.is_ending() || handover::is_committed() {
            return unfit("the process is ending".to_owned());
        }
        if self.has_ports() {
            return unfit(
                "ports that a manager has opened cannot be handed over: restart the process".into(),
            );
        }
        if !state.config.panels.is_empty() || state.config.store.is_some() {
            let text =
                "the journal of panels and the allowances of the store belong to one process: restart it";
            return unfit(text.to_owned());
        }
        for held in state.inbounds.values() {
            let name = &held.model.name;
            if held.model.plugin().is_some() {
                return unfit(format!(
                    "inbound {name} is behind a plugin, whose socket cannot be handed over: restart the process"
                ));
            }
            if held.model.socket.carrier.as_ref().is_some_and(|carrier| carrier.raw_tcp) {
                return unfit(format!(
                    "inbound {name} has raw sockets (its carrier looks like TCP), which cannot be handed over: restart the process"
                ));
            }
        }
        Ok(())
    }

    /// Flows of datagrams.
    fn flows(&self) -> u64 {
        let state = self.state();
        let metrics = state.inbounds.values().flat_map(|held| held.metrics.iter());
        u64::try_from(metrics.map(|core| core.datagrams.flows.value()).sum::<i64>()).unwrap_or(0)
    }

    /// All steps up to the last; `left` says what has to be taken back.
    fn try_give(&self, link: &HandoverLink, left: &mut Left) -> Result<String, HandoverError> {
        let sockets = self.copies(|_| true).map_err(HandoverError::own("no descriptor is left"))?;
        let labels: Vec<Label> = sockets.iter().map(Kept::label).collect();
        let step = "sending the listening sockets";
        let hello = Message::Hello {
            version: VERSION,
            program: env!("CARGO_PKG_VERSION").into(),
            cores: self.cores(),
            sockets: labels.iter().map(ToString::to_string).collect(),
        };
        wire::send(link, &hello, &[]).map_err(HandoverError::link(step))?;
        let descriptors: Vec<_> = sockets.iter().map(|kept| kept.as_fd()).collect();
        wire::send_all(link, &descriptors).map_err(HandoverError::link(step))?;
        let step = "checking the configuration";
        let prepared = answer(link, step, PREPARED)?;
        let SuccessorMessage::Prepared = prepared else {
            return Err(HandoverError::link(step)(wire::unexpected(&prepared)));
        };
        let salts = self.release_stores(left)?;
        let step = "opening everything";
        let (facts, netlink) = self.lend_capture()?.map(|lent| (lent.facts, lent.netlink)).unzip();
        let passed: Vec<_> = netlink.iter().flatten().map(|netlink| netlink.as_fd()).collect();
        let stores = Message::Stores { salts, capture: facts };
        wire::send(link, &stores, &passed).map_err(HandoverError::link(step))?;
        let ready = answer(link, step, READY)?;
        let SuccessorMessage::Ready { taken, has_capture } = ready else {
            return Err(HandoverError::link(step)(wire::unexpected(&ready)));
        };
        left.capture = has_capture;
        let taken: HashSet<usize> = taken.into_iter().collect();
        check_interfaces(&labels, &taken)?;
        let numbers = (0..).zip(labels).filter(|(number, _)| taken.contains(number));
        let numbers: HashMap<Label, usize> = numbers.map(|(number, label)| (label, number)).collect();
        left.sockets = true;
        handover::hold();
        let passed = self.pass_on(numbers)?;
        let (theirs, ours) = HandoverLink::pair().map_err(HandoverError::own("no descriptor is left"))?;
        let salts = self.state().salts.clone();
        let verdicts = salts.is_some().then_some(theirs);
        if let Some(salts) = &salts {
            left.prints = salts.hand_over(Box::new(Verdicts::new(ours)));
        }
        self.go(link, passed, verdicts, left)?;
        let step = "serving";
        let serving = answer(link, step, SERVING)?;
        let SuccessorMessage::Serving { program } = serving else {
            return Err(HandoverError::link(step)(wire::unexpected(&serving)));
        };
        Ok(program)
    }

    /// The capture, for the other process.
    fn lend_capture(&self) -> Result<Option<Lent>, HandoverError> {
        let state = self.state();
        let Some(active) = &state.capture else { return Ok(None) };
        let lent = active.lend().map_err(HandoverError::own("no descriptor is left"))?;
        let text = "a capture on a kernel before 5.12 cannot be handed over: restart the process";
        lent.map(Some).ok_or_else(|| HandoverError::Unfit(text.into()))
    }

    /// Leaves the files of this process. Gives the key of the fingerprints of salts.
    fn release_stores(&self, left: &mut Left) -> Result<Option<[u8; 16]>, HandoverError> {
        left.stores = true;
        let state = self.state();
        state.ledger().release().map_err(HandoverError::own("cannot write the state file"))?;
        if let Some(fake) = self.dns.fake() {
            fake.release();
        }
        let Some(salts) = &state.salts else { return Ok(None) };
        left.salts = salts.path();
        salts.release().map_err(HandoverError::own("cannot write the replay file"))?;
        Ok(Some(salts.key()))
    }

    /// Has the event loops leave the sockets for datagrams with these purposes.
    fn pass_on(&self, numbers: HashMap<Label, usize>) -> Result<Vec<Passed>, HandoverError> {
        let (reply, answers) = mpsc::channel();
        let (numbers, count) = (Arc::new(numbers), Arc::new(AtomicUsize::new(0)));
        let order = HandOver::Pass(numbers, reply, count.clone());
        let orders = self
            .cores
            .iter()
            .map(|_| LoopCommand { hand_over: Some(order.clone()), ..LoopCommand::default() });
        let orders = orders.collect();
        drop(order);
        self.send_and_wait(orders);
        let wanted = count.load(Ordering::Acquire);
        let until = rt::now() + PASSED;
        let mut passed: Vec<Passed> = Vec::new();
        while passed.len() < wanted {
            let Ok(next) = answers.recv_timeout(left_until(until)) else {
                let text = "an event loop has not left its sockets in time";
                return Err(HandoverError::Unfit(text.into()));
            };
            passed.push(next);
        }
        Ok(passed)
    }

    /// The new process is to serve.
    fn go(
        &self,
        link: &HandoverLink,
        passed: Vec<Passed>,
        verdicts: Option<HandoverLink>,
        left: &Left,
    ) -> Result<(), HandoverError> {
        let step = "handing over the clients";
        let names = self.dns.fake().map(|fake| fake.hand_over()).unwrap_or_default();
        let (mut datagrams, mut pairs) = (Vec::new(), Vec::new());
        for (socket, Diversion { pair, peers, led }) in passed {
            datagrams.push(SocketClients { socket, peers, led });
            pairs.push(pair);
        }
        let (prints, has_verdicts) = (wire::frames_of(&left.prints), verdicts.is_some());
        let go = Message::Go { datagrams, names, prints, has_verdicts };
        let pairs = pairs.iter().map(|pair| pair.as_fd());
        let descriptors: Vec<_> = pairs.chain(verdicts.as_ref().map(|link| link.as_fd())).collect();
        wire::send(link, &go, &[])
            .and_then(|()| wire::send_all(link, &descriptors))
            .and_then(|()| wire::send_prints(link, &left.prints))
            .map_err(HandoverError::link(step))
    }

    /// This process goes on as before.
    fn take_back(&self, left: Left) {
        let Left { stores, salts, prints, sockets, capture: _ } = left;
        if sockets {
            self.tell(|_| LoopCommand { hand_over: Some(HandOver::Undo), ..LoopCommand::default() });
            handover::release();
        }
        if !stores {
            return;
        }
        let state = self.state();
        if let Err(error) = state.ledger().resume() {
            tracing::error!(%error, "the state file cannot be taken back; it is tried again every second");
        }
        if let Some(memory) = &state.salts
            && let Err(error) = memory.resume(salts, &prints)
        {
            tracing::error!(%error, "the replay file cannot be taken back; recorded connections will be served again after a restart");
        }
        if let Some(fake) = self.dns.fake() {
            fake.resume();
        }
    }

    /// The other process serves: this one finishes its connections.
    fn finish_handover(&self, link: HandoverLink, drain: Duration) {
        handover::commit();
        // The manager of the service knows the new process by now.
        wire::send(&link, &Message::Announced, &[]).ok();
        // Each loop knows before it hears that it is to finish.
        let order = |_: &_| LoopCommand { drain: Some(drain), ..LoopCommand::default() };
        self.send_and_wait(self.cores.iter().map(order).collect());
        let satellite = DrainingProcess::start(self.state().ledger(), link);
        *self.satellite.lock().unwrap_or_else(PoisonError::into_inner) = Some(satellite);
        // The thread that waits for signals finishes the connections.
        let _is_heard: bool = self.handed.send(());
    }
}

/// Nobody would read an interface that the new process has not taken, and what goes by it would be lost.
fn check_interfaces(labels: &[Label], taken: &HashSet<usize>) -> Result<(), HandoverError> {
    let mut all = (0..).zip(labels).filter(|(_, label)| label.kind == Kind::Interface);
    if all.all(|(number, _)| taken.contains(&number)) {
        return Ok(());
    }
    let text =
        "the configuration has another virtual interface than the process that runs: `adit reload` first";
    Err(HandoverError::Unfit(text.into()))
}

fn left_until(until: Instant) -> Duration {
    until.saturating_duration_since(rt::now())
}

/// The next message of the new process.
fn answer(
    link: &HandoverLink,
    step: &'static str,
    patience: Duration,
) -> Result<SuccessorMessage, HandoverError> {
    match wire::receive(link, Some(patience)) {
        Ok((SuccessorMessage::Failed { cause }, _)) => Err(HandoverError::Refused(cause)),
        Ok((answer, _)) => Ok(answer),
        Err(source) => Err(HandoverError::Link { step, source: plain(source) }),
    }
}
