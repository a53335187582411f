//! The process that takes over.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use adit_model::Config;
use adit_net::handover::{self, Adopted, Earlier, HandoverLink, Label};
use adit_net::udp::divert::Diversion;

use super::HandoverError;
use super::wire::{self, Message, SocketClients, SuccessorMessage, VERSION};
use crate::lifecycle::apply::check;
use crate::lifecycle::{Engine, Extensions, Inherited, Running, StartError, start_after};
use crate::replay::{Print, ReplayFilter};
use crate::transparent::Lent;
use crate::users::{AccountLedger, Charged};

/// Time for each step of the old process.
const STEP: Duration = Duration::from_secs(30);
/// Time between two looks at the users that both processes have.
const EVERY: Duration = Duration::from_secs(1);
/// Most sockets that are taken.
const MOST_SOCKETS: usize = 65_536;

/// A process that is about to take over.
#[derive(Debug)]
pub struct Taking {
    link: HandoverLink,
    cores: usize,
}

impl Taking {
    /// Receives the sockets of the old process.
    ///
    /// # Errors
    /// When it speaks another version, or its description does not fit its sockets.
    pub fn begin(link: &HandoverLink) -> Result<Self, HandoverError> {
        let step = "receiving the listening sockets";
        let (message, _) = wire::receive(link, Some(STEP)).map_err(HandoverError::link(step))?;
        let Message::Hello { version, program, cores, sockets } = message else {
            return Err(HandoverError::link(step)(wire::unexpected(&message)));
        };
        if version != VERSION {
            return Err(HandoverError::Unfit(format!(
                "adit {program} hands over by version {version} of the messages, this is version {VERSION}: restart the process"
            )));
        }
        if sockets.len() > MOST_SOCKETS {
            return Err(HandoverError::Unfit(format!("{} sockets are too many", sockets.len())));
        }
        let descriptors = wire::receive_all(link, sockets.len(), STEP).map_err(HandoverError::link(step))?;
        for (number, (label, descriptor)) in sockets.iter().zip(descriptors).enumerate() {
            adopt(label, number, descriptor).map_err(HandoverError::link(step))?;
        }
        let link = link.try_clone().map_err(HandoverError::own("no descriptor is left"))?;
        Ok(Self { link, cores: cores.max(1) })
    }

    /// Says that the configuration is good, and waits for the files of the old process.
    fn prepared(&self) -> Result<Inherited, HandoverError> {
        let step = "taking over the files";
        wire::send(&self.link, &SuccessorMessage::Prepared, &[]).map_err(HandoverError::link(step))?;
        let received = wire::receive(&self.link, Some(STEP));
        let (message, passed) = received.map_err(HandoverError::link(step))?;
        let Message::Stores { salts, capture } = message else {
            return Err(HandoverError::link(step)(wire::unexpected(&message)));
        };
        let netlink = passed.into_iter().next();
        let capture = capture.map(|facts| Lent { netlink, facts });
        Ok(Inherited { salts_key: salts, capture, cores: Some(self.cores) })
    }

    /// As [`start`](crate::start), with the sockets of the old process. Nothing is accepted before [`Taking::finish`].
    ///
    /// # Errors
    /// [`StartError`], also when the old process says no.
    pub fn start(&self, config: &Config, extensions: &Extensions) -> Result<Running, StartError> {
        handover::hold();
        if config.cores.is_some_and(|cores| cores != self.cores) {
            tracing::warn!(
                cores = self.cores,
                "`cores` stays as it is in the process before: restart adit to change it"
            );
        }
        check(config, extensions)?;
        let inherited = self.prepared().map_err(StartError::Handover)?;
        start_after(config, extensions, inherited)
    }

    /// Serves: from now on connections are accepted, and the old process finishes those that it has.
    ///
    /// # Errors
    /// When the old process says no; nothing has been accepted then.
    pub fn finish(self, running: &Running) -> Result<(), HandoverError> {
        let step = "taking over the clients";
        let engine = running.engine.clone();
        let has_capture = engine.state().capture.is_some();
        let ready = SuccessorMessage::Ready { taken: handover::taken(), has_capture };
        wire::send(&self.link, &ready, &[]).map_err(HandoverError::link(step))?;
        let verdicts = self.receive_clients(&engine).map_err(HandoverError::link(step))?;
        handover::leave_rest();
        let ledger = engine.state().ledger();
        let mut charged = Charged::default();
        // Bytes of before are no news.
        ledger.charges(&mut charged);
        let salts = engine.state().salts.clone();
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(run);
            spawned.map(drop).map_err(HandoverError::own("no thread"))
        };
        if let Some(verdicts) = verdicts {
            spawn("adit-verdicts", Box::new(move || judge(&verdicts, salts.as_deref())))?;
        }
        let earlier = Earlier::begin();
        if let Some(active) = &mut engine.state().capture {
            active.own();
        }
        handover::release();
        let serving = SuccessorMessage::Serving { program: env!("CARGO_PKG_VERSION").into() };
        wire::send(&self.link, &serving, &[]).map_err(HandoverError::link(step))?;
        // From here on the old process may end at any time.
        let is_announced = matches!(wire::receive(&self.link, Some(STEP)), Ok((Message::Announced, _)));
        tracing::debug!(is_announced, "taken over");
        let link = self.link;
        spawn("adit-earlier", Box::new(move || follow(&link, &ledger, charged, earlier)))
    }

    /// Takes what the old process says when it has left its sockets. Gives the link by which it asks about salts.
    fn receive_clients(&self, engine: &Engine) -> io::Result<Option<HandoverLink>> {
        let link = &self.link;
        let (message, _) = wire::receive(link, Some(STEP))?;
        let Message::Go { datagrams, names, prints, has_verdicts } = message else {
            return Err(wire::unexpected(&message));
        };
        let mut pairs = wire::receive_all(link, datagrams.len() + usize::from(has_verdicts), STEP)?;
        let verdicts = if has_verdicts { pairs.pop().map(HandoverLink::from) } else { None };
        for (clients, pair) in datagrams.into_iter().zip(pairs) {
            let SocketClients { socket, peers, led } = clients;
            adit_net::udp::divert::set_diversion(socket, Diversion { pair, peers, led })?;
        }
        let salts = engine.state().salts.clone();
        wire::receive_prints(link, prints, STEP, |print| {
            // Some may be in the file already.
            let _is_new: Option<bool> = salts.as_ref().map(|salts| salts.admit(print));
        })?;
        if let Some(fake) = engine.dns.fake() {
            fake.learn(&names);
        }
        Ok(verdicts)
    }

    /// Tells the process that started this one why this one does not take over.
    pub fn fail(link: &HandoverLink, cause: &str) {
        // It may be gone, or have heard why.
        wire::send(link, &SuccessorMessage::Failed { cause: cause.to_owned() }, &[]).ok();
    }
}

fn adopt(label: &str, number: usize, descriptor: OwnedFd) -> io::Result<()> {
    let label = Label::parse(label)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a label of a socket makes no sense"))?;
    handover::adopt(descriptor, Adopted { label: Some(label), number })
}

/// Decides about the salts of the old process until that is gone.
fn judge(link: &HandoverLink, salts: Option<&ReplayFilter>) {
    while let Ok((bytes, _)) = link.receive(None) {
        let Ok(bytes) = <[u8; Print::LEN]>::try_from(bytes) else { return };
        let is_new = salts.is_none_or(|salts| salts.admit(Print::parse(bytes)));
        if link.send(&[u8::from(is_new)], &[]).is_err() {
            return;
        }
    }
}

/// Adds what users do in the old process until that is gone.
fn follow(link: &HandoverLink, ledger: &Arc<AccountLedger>, mut charged: Charged, _earlier: Earlier) {
    loop {
        let mut changes = match wire::receive(link, Some(EVERY)) {
            Ok((Message::Credits { users }, _)) => {
                let gone = ledger.credit(&users);
                charged.note(&users);
                gone
            }
            Ok((Message::Bye, _)) => {
                tracing::info!("the process before this one has ended: all its connections are over");
                return;
            }
            Ok(_) => Vec::new(),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Vec::new(),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                tracing::warn!(%error, "the process before this one cannot be followed");
                return;
            }
            Err(_) => {
                tracing::info!("the process before this one has ended");
                return;
            }
        };
        changes.extend(ledger.charges(&mut charged));
        if !changes.is_empty()
            && wire::send(link, &SuccessorMessage::Changes { users: changes }, &[]).is_err()
        {
            // Messages that it sent before may still be there.
            tracing::debug!("the process before this one takes no changes");
        }
    }
}
