//! All threads together.

use super::config::Config;
use super::facts::Reader;
use super::instruments::{Context, OBSERVERS, Observer};
use super::pages::Monitored;
use super::records;
use super::stop::Stop;
use super::systemd::{Notify, passed_listener};
use super::threads;
use crate::exposition::Format;
use crate::http::{Access, AccessError, CurrentAccess, Server, serve};
use crate::metrics::Id;
use crate::recording::{Batch, RecordError};
use nearpath_host::{Root, Wanted};
use nearpath_model::Topology;
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::Scope;
use std::time::{Duration, Instant};

/// Why the daemon did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum MonitorError {
    /// It would be open to everybody.
    #[error(
        "{0} is not a loopback address: use TLS (--web-config), or --insecure to serve everybody"
    )]
    Open(SocketAddr),
    /// The file of `--web-config`.
    #[error("cannot use the web configuration")]
    Access(#[from] AccessError),
    /// It cannot listen.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, io::Error),
    /// The host cannot be read.
    #[error("cannot read the host: {0}")]
    Host(String),
    /// The recording cannot be written.
    #[error("cannot record")]
    Record(#[from] RecordError),
    /// The system refuses something that it needs.
    #[error("cannot start")]
    System(#[from] io::Error),
}

/// What the daemon needs of its caller.
#[derive(Clone, Copy)]
pub struct Outside<'a> {
    /// Waits for this time or until a signal arrives; returns whether one did.
    pub wait: &'a dyn Fn(Duration) -> bool,
    /// Reports something.
    pub say: &'a (dyn Fn(&str) + Sync),
}

/// Serves until a signal arrives.
///
/// # Errors
/// It cannot listen, or the host cannot be read.
pub fn run(config: &Config, outside: Outside<'_>) -> Result<(), MonitorError> {
    let mut access = match &config.web_config {
        Some(file) => CurrentAccess::of(file)?,
        None => CurrentAccess::fixed(Access::default()),
    };
    let is_encrypted = access.now().0.tls().is_some();
    one_arena();
    let listener = listener(config, is_encrypted)?;
    let address = listener.local_addr().unwrap_or(config.listen);
    if is_encrypted && !config.insecure && !address.ip().is_loopback() {
        access.needs_tls();
    }
    let (stop, topology) = (Stop::new()?, topology()?);
    let monitored = Arc::new(Monitored::new(config.interval).with_report(config.report));
    let recording = records::open(config)?;
    let server = Server::new(Arc::clone(&monitored) as Arc<_>, access, outside.say);
    let context = Context {
        config,
        topology: &topology,
        monitored: &monitored,
        stop: &stop,
        say: outside.say,
    };
    records::during(recording, context, || {
        std::thread::scope(|scope| {
            // Whatever happens, all threads end.
            let _ends = Ends(&stop);
            start(scope, context)?;
            let show_access = || {
                if let Some(is_current) = server.is_current() {
                    let is_current = f64::from(u8::from(is_current));
                    monitored.store().set(Id::WebConfigCurrent, &[], is_current);
                }
            };
            // Who connects before there is anything to serve waits.
            let mut ticks = Ticks::new(context);
            show_access();
            ticks.tick();
            let (stop, server) = (&stop, &server);
            threads::start(scope, context, "accept", move || {
                use std::os::fd::AsFd;
                if let Err(error) = serve(scope, server, &listener, stop.as_fd()) {
                    (context.say)(&format!("cannot serve: {error}"));
                }
            })?;
            let scheme = if is_encrypted { "https" } else { "http" };
            (outside.say)(&format!("serving {scheme}://{address}/metrics; Ctrl-C stops"));
            tick_until_signal(ticks, outside, &show_access);
            Ok(())
        })
    })
}

/// Records until a signal arrives, without serving anything.
///
/// # Errors
/// The recording cannot be written, or the host cannot be read.
pub fn record(config: &Config, outside: Outside<'_>) -> Result<(), MonitorError> {
    one_arena();
    let (stop, topology) = (Stop::new()?, topology()?);
    let monitored = Monitored::new(config.interval);
    let recording = records::open(config)?;
    let context = Context {
        config,
        topology: &topology,
        monitored: &monitored,
        stop: &stop,
        say: outside.say,
    };
    records::during(recording, context, || {
        std::thread::scope(|scope| {
            let _ends = Ends(&stop);
            start(scope, context)?;
            let folder = config.record.as_ref().map(|settings| settings.folder.display());
            let folder = folder.map_or_else(String::new, |folder| folder.to_string());
            (outside.say)(&format!("recording to {folder}; Ctrl-C stops"));
            let mut ticks = Ticks::new(context);
            ticks.tick();
            tick_until_signal(ticks, outside, &|| ());
            Ok(())
        })
    })
}

/// Observes while something runs that is given all batches. The instruments are stopped when it has returned.
///
/// # Errors
/// The host cannot be read, or no thread can be started.
pub fn watch<R>(
    config: &Config,
    say: &(dyn Fn(&str) + Sync),
    act: impl FnOnce(&Receiver<Batch>) -> R,
) -> Result<R, MonitorError> {
    one_arena();
    let (stop, topology) = (Stop::new()?, topology()?);
    let monitored = Monitored::new(config.interval);
    let context = Context { config, topology: &topology, monitored: &monitored, stop: &stop, say };
    let (batches, _ends) = records::receive(monitored.sink());
    std::thread::scope(|scope| {
        let _ends = Ends(&stop);
        start(scope, context)?;
        threads::start(scope, context, "facts", move || {
            let mut reader = Reader::new(context, Root::live());
            loop {
                let began = Instant::now();
                reader.read();
                if context.stop.wait(config.interval.saturating_sub(began.elapsed())) {
                    break;
                }
            }
        })?;
        Ok(act(&batches))
    })
}

fn tick_until_signal(mut ticks: Ticks<'_>, outside: Outside<'_>, before_each: &dyn Fn()) {
    let notify = Notify::new();
    let interval = ticks.context.config.interval;
    notify.send("READY=1\nSTATUS=observing");
    let mut began = Instant::now();
    while !(outside.wait)(interval.saturating_sub(began.elapsed())) {
        began = Instant::now();
        before_each();
        ticks.tick();
        if ticks.context.monitored.is_healthy() {
            notify.send("WATCHDOG=1");
        }
    }
    notify.send("STOPPING=1");
}

/// Observes for one interval; returns the exposition as text.
///
/// # Errors
/// The host cannot be read.
pub fn once(config: &Config, outside: Outside<'_>) -> Result<Arc<[u8]>, MonitorError> {
    let (stop, topology) = (Stop::new()?, topology()?);
    let monitored = Monitored::new(config.interval);
    let context = Context {
        config,
        topology: &topology,
        monitored: &monitored,
        stop: &stop,
        say: outside.say,
    };
    let mut daemon = Ticks::new(context);
    std::thread::scope(|scope| {
        let _ends = Ends(&stop);
        start(scope, context)?;
        daemon.reader.read();
        (outside.wait)(config.interval);
        Ok::<_, io::Error>(())
    })?;
    // What the instruments have seen is complete once their threads have ended.
    daemon.reader.again();
    daemon.tick();
    Ok(monitored.exposition().encoded(Format::Text))
}

/// Ends all threads, also if one panics.
struct Ends<'a>(&'a Stop);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.set();
    }
}

fn topology() -> Result<Topology, MonitorError> {
    let host = nearpath_host::read(&Root::live(), &Wanted::default());
    Ok(host.map_err(|error| MonitorError::Host(error.to_string()))?.topology)
}

fn listener(config: &Config, is_encrypted: bool) -> Result<TcpListener, MonitorError> {
    if let Some(passed) = passed_listener() {
        // Whoever wrote the socket unit has decided where it listens.
        return Ok(passed);
    }
    if !config.listen.ip().is_loopback() && !is_encrypted && !config.insecure {
        return Err(MonitorError::Open(config.listen));
    }
    TcpListener::bind(config.listen).map_err(|error| MonitorError::Listen(config.listen, error))
}

fn start<'scope>(scope: &'scope Scope<'scope, '_>, context: Context<'scope>) -> io::Result<()> {
    let is_on = |(source, _): &&Observer| context.config.has(*source);
    for (source, observe) in OBSERVERS.iter().filter(is_on) {
        threads::start(scope, context, source.name(), move || observe(context))?;
    }
    Ok(())
}

/// The daemon's own thread: what it does at each tick.
pub struct Ticks<'a> {
    context: Context<'a>,
    reader: Reader<'a>,
    cpu: Duration,
}

impl<'a> Ticks<'a> {
    /// Of this host.
    pub fn new(context: Context<'a>) -> Self {
        Self::of(context, Root::live())
    }

    /// Of the host behind a root.
    pub fn of(context: Context<'a>, root: Root) -> Self {
        Self { context, reader: Reader::new(context, root), cpu: Duration::ZERO }
    }

    /// Reads what is due, and renews what scrapers get.
    pub fn tick(&mut self) {
        self.reader.read();
        let now = process_time();
        let mut store = self.context.monitored.store();
        store.add(Id::ObservingCpu, &[], now.saturating_sub(self.cpu).as_secs_f64());
        store.set(Id::BuildInfo, &[&self.context.config.version], 1.0);
        drop(store);
        self.cpu = now;
        // Loading programs leaves tens of megabytes of freed memory with the allocator.
        trim_memory();
        self.context.monitored.tick();
    }
}

/// Keeps memory that is freed on one thread for all others: arenas of their own would each keep what loading a program
/// has taken once.
fn one_arena() {
    // SAFETY: it sets a number of the allocator (mallopt(3)), before other threads are started.
    let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Returns freed memory to the system.
fn trim_memory() {
    // SAFETY: it takes the allocator's own locks (malloc_trim(3)).
    let _ = unsafe { libc::malloc_trim(0) };
}

/// CPU time of this process.
fn process_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let (s, ns) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(s.unwrap_or(0), ns.unwrap_or(0))
}
