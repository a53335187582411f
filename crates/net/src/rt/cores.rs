use std::future::Future;
use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::thread::JoinHandle;

use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::watch;

/// A group of event loops, one thread each.
#[derive(Debug, Default)]
pub struct Cores(Vec<JoinHandle<()>>);

impl Cores {
    /// Starts an event loop on a thread of its own and runs there, until it is done, the future that `make`
    /// returns. A panic ends that loop alone.
    ///
    /// # Errors
    /// When the thread or the loop cannot be made.
    pub fn start<F: Future<Output = ()> + 'static>(
        &mut self,
        name: String,
        make: impl FnOnce() -> F + Send + 'static,
    ) -> io::Result<()> {
        self.start_boxed(name, Box::new(|| Box::pin(make())))
    }

    fn start_boxed(&mut self, name: String, make: Box<dyn FnOnce() -> Task + Send>) -> io::Result<()> {
        let (ready, started) = std::sync::mpsc::channel();
        let run = move || {
            let runtime = match local_runtime() {
                Ok(runtime) => runtime,
                Err(error) => return drop(ready.send(Err(error))),
            };
            drop(ready.send(Ok(())));
            runtime.block_on(make());
            // Tasks that still run are dropped here, on the thread they belong to.
            drop(std::panic::catch_unwind(AssertUnwindSafe(|| drop(runtime))));
        };
        self.0.push(std::thread::Builder::new().name(name).spawn(run)?);
        started.recv().unwrap_or_else(|_| Err(io::Error::other("event loop died while starting")))
    }

    /// Whether a loop still runs.
    pub fn is_running(&self) -> bool {
        self.0.iter().any(|thread| !thread.is_finished())
    }

    /// Waits until every loop is done.
    pub fn join(self) {
        for thread in self.0 {
            if let Err(panic) = thread.join() {
                tracing::error!(?panic, "event loop ended by a panic");
            }
        }
    }

    /// Runs `future` on an event loop of the calling thread.
    ///
    /// # Errors
    /// When the loop cannot be made.
    pub fn block_on<T>(future: impl Future<Output = T>) -> io::Result<T> {
        let mut output = None;
        block_on_boxed(Box::pin(async { output = Some(future.await) }))?;
        Ok(output.expect("the future is done"))
    }
}

fn local_runtime() -> io::Result<LocalRuntime> {
    Builder::new_current_thread().enable_all().build_local(LocalOptions::default())
}

/// A future of any type: the machinery of loops and tasks is compiled once for all of them.
type Task = Pin<Box<dyn Future<Output = ()>>>;

fn block_on_boxed(future: Pin<Box<dyn Future<Output = ()> + '_>>) -> io::Result<()> {
    local_runtime()?.block_on(future);
    Ok(())
}

/// Starts a task on the current loop. A panic ends that task alone.
pub fn spawn_local(task: impl Future<Output = ()> + 'static) {
    let task: Task = Box::pin(task);
    spawn_small(task);
}

/// As [`spawn_local`], with the future in the task itself instead of a box: for tasks that are small, and many.
pub fn spawn_small(task: impl Future<Output = ()> + 'static) {
    drop(tokio::task::spawn_local(task));
}

/// Lets the other tasks of this loop run.
pub async fn yield_now() {
    tokio::task::yield_now().await;
}

/// The sending half of [`Stop`].
#[derive(Debug)]
pub struct Stopper(watch::Sender<u8>);

/// Tells any number of loops, in steps, that it is time to go: first to drain, then to end at once.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<u8>);

impl Stopper {
    /// A stopper and the receiver that loops clone.
    pub fn new() -> (Self, Stop) {
        let (sender, receiver) = watch::channel(0);
        (Self(sender), Stop(receiver))
    }

    /// Accept nothing more, let connections finish.
    pub fn drain(&self) {
        self.0.send_modify(|step| *step = (*step).max(1));
    }

    /// End at once.
    pub fn end(&self) {
        self.0.send_modify(|step| *step = 2);
    }
}

impl Stop {
    /// Returns once draining has been asked for, or the [`Stopper`] is gone.
    pub async fn draining(&mut self) {
        drop(self.0.wait_for(|step| *step >= 1).await);
    }

    /// Returns once an immediate end has been asked for, or the [`Stopper`] is gone.
    pub async fn ending(&mut self) {
        drop(self.0.wait_for(|step| *step >= 2).await);
    }

    /// Whether draining has begun.
    pub fn is_draining(&self) -> bool {
        *self.0.borrow() >= 1
    }
}

/// A signal that concerns adit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT or SIGTERM.
    Stop,
    /// SIGHUP.
    Reload,
    /// SIGUSR1.
    User,
    /// SIGUSR2.
    Upgrade,
}
