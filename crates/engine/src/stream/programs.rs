//! The programs that send datagrams: sought once for each address of a client, and kept for as long as a system lets a port
//! rest.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Waker;

use adit_net::program::{self, Client, Program};
use adit_net::rt;

use crate::datagram::FlowTick;

/// Seconds after which a program is sought again.
const LIFE: FlowTick = 30;
/// Most addresses of clients.
const MOST: usize = 4096;

/// The programs of one inbound on one core.
#[derive(Default)]
pub(super) struct Programs(RefCell<HashMap<SocketAddr, Found>>);

/// The result of a search.
enum Found {
    /// It goes on, and these are woken at its end.
    Pending(Vec<Waker>),
    /// It has ended at this time.
    Known(Option<Program>, FlowTick),
}

impl Programs {
    /// The program of a client; `None` while it is sought, and `waker` is woken at the end of that. A client for which there
    /// is no room has none.
    pub(super) fn find(
        self: &Rc<Self>,
        client: Client,
        waker: &Waker,
        now: FlowTick,
    ) -> Option<Option<Program>> {
        let from = client.from;
        let mut all = self.0.borrow_mut();
        match all.get_mut(&from) {
            Some(Found::Known(program, at)) if now.wrapping_sub(*at) <= LIFE => return Some(program.clone()),
            Some(Found::Pending(wakers)) => {
                if !wakers.iter().any(|known| known.will_wake(waker)) {
                    wakers.push(waker.clone());
                }
                return None;
            }
            Some(Found::Known(..)) | None => {}
        }
        if all.len() >= MOST {
            all.retain(|_, found| match found {
                Found::Pending(_) => true,
                Found::Known(_, at) => now.wrapping_sub(*at) <= LIFE,
            });
            if all.len() >= MOST {
                return Some(None);
            }
        }
        all.insert(from, Found::Pending(vec![waker.clone()]));
        let this = Rc::downgrade(self);
        rt::spawn_local(async move {
            let program = program::find(client).await;
            let Some(this) = this.upgrade() else { return };
            let before = this.0.borrow_mut().insert(from, Found::Known(program, now));
            if let Some(Found::Pending(wakers)) = before {
                wakers.into_iter().for_each(Waker::wake);
            }
        });
        None
    }
}
