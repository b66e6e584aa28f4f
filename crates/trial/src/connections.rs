//! The connections of a server: one thread each, up to a limit, and all of them end with the server.
//!
//! Input: listeners and a connection handler. Each connection ends by itself, or when the server is stopped.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Timeout of an idle connection, or one that does not read.
const SILENCE: Duration = Duration::from_secs(60);
const STUCK: Duration = Duration::from_secs(10);
/// Delay before a retry if, for example, no descriptor is available.
const AGAIN: Duration = Duration::from_millis(100);

/// The listeners and open connections of one server.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    stop: AtomicBool,
    listeners: Mutex<Vec<TcpListener>>,
    /// By a number that is unique in the server, across its listeners.
    streams: Mutex<BTreeMap<u64, TcpStream>>,
    next: AtomicU64,
}

/// Handler of a server's connections.
pub(crate) trait Service: Sync {
    /// The name of their threads.
    const THREAD: &'static str;
    /// Maximum number of connections, on all listeners.
    const LIMIT: usize;

    /// Prepares a connection before it is served.
    fn welcome(&self, stream: &TcpStream) -> io::Result<()>;

    /// A connection is closed unserved: the limit was reached, or it could not be prepared.
    fn refuse(&self, stream: &TcpStream);

    /// Serves it until it ends.
    fn serve(&self, stream: &TcpStream) -> io::Result<()>;
}

impl Connections {
    /// A listener that ends with the server.
    ///
    /// # Errors
    /// No descriptor is available.
    pub fn add(&self, listener: &TcpListener) -> io::Result<()> {
        lock(&self.listeners).push(listener.try_clone()?);
        Ok(())
    }

    /// Whether the server is stopping.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Ends everything: wakes threads that accept or read. Shutting down a listener wakes its thread too,
    /// although it may return ENOTCONN (`inet_shutdown` in net/ipv4/af_inet.c).
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        for listener in lock(&self.listeners).iter() {
            let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
        }
        self.end_streams();
    }

    /// Accepts connections from a listener until the server is stopped, and returns when they have ended.
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
            // Including those accepted while the server was being stopped.
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
            // However it ends, the peer sees the end.
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

    /// Prepares a connection and registers it, unless there are too many.
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

/// Locks, even if a thread panicked while holding it: the data is consistent at each step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
