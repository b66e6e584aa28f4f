//! The connections of a server: a thread for each, of which there is a limit, and all of them end with
//! the server.
//!
//! In go listeners and what to do with a connection; each ends by itself, or when the server is stopped.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// A connection on which nothing comes for so long is closed, and one that takes nothing.
const SILENCE: Duration = Duration::from_secs(60);
const STUCK: Duration = Duration::from_secs(10);
/// When no descriptor is left, for instance, it is tried again after so long.
const AGAIN: Duration = Duration::from_millis(100);

/// The listeners and open connections of one server.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    stop: AtomicBool,
    listeners: Mutex<Vec<TcpListener>>,
    /// By a number that no other connection of the server has, whichever listener took it.
    streams: Mutex<BTreeMap<u64, TcpStream>>,
    next: AtomicU64,
}

/// What a server does with its connections.
pub(crate) trait Service: Sync {
    /// The name of their threads.
    const THREAD: &'static str;
    /// How many there may be at a time, on all listeners.
    const LIMIT: usize;

    /// Sets a connection up before it is served.
    fn welcome(&self, stream: &TcpStream) -> io::Result<()>;

    /// A connection is closed unserved: it is one too many, or could not be set up.
    fn refuse(&self, stream: &TcpStream);

    /// Serves it until it ends.
    fn serve(&self, stream: &TcpStream) -> io::Result<()>;
}

impl Connections {
    /// A listener that is to end with the server.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn add(&self, listener: &TcpListener) -> io::Result<()> {
        lock(&self.listeners).push(listener.try_clone()?);
        Ok(())
    }

    /// Whether the server is to end.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Ends all: wakes who accepts and who reads. On a listener shutting down wakes too, although it may
    /// answer ENOTCONN (`inet_shutdown` in net/ipv4/af_inet.c).
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        for listener in lock(&self.listeners).iter() {
            let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
        }
        self.end_streams();
    }

    /// Takes connections from a listener until the server is stopped, and returns when those have ended.
    pub fn accept(&self, listener: &TcpListener, service: &impl Service) {
        thread::scope(|scope| {
            while !self.stopped() {
                let Ok((stream, _)) = listener.accept() else {
                    if !self.stopped() {
                        thread::sleep(AGAIN);
                    }
                    continue;
                };
                self.start(scope, stream, service);
            }
            // Also those that were accepted while it was told to stop.
            self.end_streams();
        });
    }

    fn start<'s, S: Service>(
        &'s self,
        scope: &'s thread::Scope<'s, '_>,
        stream: TcpStream,
        service: &'s S,
    ) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if self.keep(number, &stream, service).is_none() {
            return service.refuse(&stream);
        }
        let serve = move || {
            // Whatever ends it, the other side sees the end.
            let _ = service.serve(&stream);
            let _ = stream.shutdown(Shutdown::Both);
            lock(&self.streams).remove(&number);
        };
        let named = thread::Builder::new().name(S::THREAD.to_owned());
        if named.spawn_scoped(scope, serve).is_err()
            && let Some(stream) = lock(&self.streams).remove(&number)
        {
            service.refuse(&stream);
        }
    }

    /// Sets a connection up and remembers it, unless there are too many.
    fn keep<S: Service>(&self, number: u64, stream: &TcpStream, service: &S) -> Option<()> {
        let mut streams = lock(&self.streams);
        if streams.len() >= S::LIMIT {
            return None;
        }
        let set_up = || -> io::Result<TcpStream> {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(SILENCE))?;
            stream.set_write_timeout(Some(STUCK))?;
            service.welcome(stream)?;
            stream.try_clone()
        };
        streams.insert(number, set_up().ok()?);
        Some(())
    }

    fn end_streams(&self) {
        for stream in lock(&self.streams).values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// The lock, also after a thread that held it has panicked: what it guards is whole at each step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
