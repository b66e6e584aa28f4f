//! The recorder's threads. Input: batches from all other threads. Output: a recording. One thread writes batches to the
//! log at once; the other waits for the disk.

use super::config::Config;
use super::daemon::MonitorError;
use super::instruments::Context;
use super::threads;
use crate::recording::{Batch, RecordError, Recorder, Sealer};
use nearpath_host::Root;
use std::fs::File;
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel,
};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Batches that may wait for the log; more are lost.
const WAITING_MAX: usize = 256;
/// How long to wait without an open segment.
const IDLE: Duration = Duration::from_secs(60);

/// Where batches go: to the recorder, if there is one.
#[derive(Debug, Default)]
pub struct Sink(Mutex<Sent>);

#[derive(Debug, Default)]
struct Sent {
    to: Option<SyncSender<Batch>>,
    /// Batches for which the disk was too slow.
    lost: u64,
}

impl Sink {
    fn with<R>(&self, act: impl FnOnce(&mut Sent) -> R) -> R {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes a batch and sends it, if there is a recorder.
    pub fn add(&self, batch: impl FnOnce() -> Batch) {
        let Some(to) = self.with(|sent| sent.to.clone()) else { return };
        if let Err(TrySendError::Full(_)) = to.try_send(batch()) {
            self.with(|sent| sent.lost += 1);
        }
    }

    fn lost(&self) -> u64 {
        self.with(|sent| std::mem::take(&mut sent.lost))
    }
}

/// Opens the recording, if there is to be one.
///
/// # Errors
/// It cannot be written, or another process writes it.
pub fn open(config: &Config) -> Result<Option<(Recorder, Sealer)>, MonitorError> {
    let Some(settings) = &config.record else { return Ok(None) };
    let root = Root::live();
    let text = |path: &str| root.text(path).map_err(|error| MonitorError::Host(error.to_string()));
    let (host, boot) =
        (text("/proc/sys/kernel/hostname")?, text("/proc/sys/kernel/random/boot_id")?);
    Ok(Some(Recorder::new(settings.clone(), &host, &boot)?))
}

/// Records while something runs, and all that it has sent.
///
/// # Errors
/// What it returns; or no thread can be started.
pub fn during(
    recording: Option<(Recorder, Sealer)>,
    context: Context<'_>,
    run: impl FnOnce() -> Result<(), MonitorError>,
) -> Result<(), MonitorError> {
    let Some((recorder, sealer)) = recording else { return run() };
    let (to, batches) = sync_channel(WAITING_MAX);
    let (work, works) = channel();
    let sink = context.monitored.sink();
    std::thread::scope(|scope| {
        threads::start(scope, context, "record", move || {
            write(recorder, &batches, &work, context);
        })?;
        threads::start(scope, context, "seal", move || seal(sealer, &works, context))?;
        sink.with(|sent| sent.to = Some(to));
        // The threads end with the last sender, also if `run` panics.
        let _ends = Ends(sink);
        run()
    })
}

/// Sends all batches of this thread and others to a receiver until the guard is dropped.
pub fn receive(sink: &Sink) -> (Receiver<Batch>, impl Drop + '_) {
    let (to, batches) = sync_channel(WAITING_MAX);
    sink.with(|sent| sent.to = Some(to));
    (batches, Ends(sink))
}

struct Ends<'a>(&'a Sink);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.with(|sent| sent.to = None);
    }
}

/// What is to be done on the disk.
enum Work {
    /// Make a log durable.
    Sync(Arc<File>),
    /// Seal a segment.
    Seal(String),
}

/// Reports errors, each once until there is none.
struct Reports<'a> {
    context: Context<'a>,
    said: Option<String>,
}

impl Reports<'_> {
    fn of(&mut self, result: Result<(), RecordError>) {
        let text = result.err().map(|error| error.to_string());
        if let Some(text) = text.as_ref().filter(|_| self.said != text) {
            (self.context.say)(&format!("cannot record: {text}"));
        }
        self.said = text;
    }
}

fn write(
    mut recorder: Recorder,
    batches: &Receiver<Batch>,
    work: &Sender<Work>,
    context: Context<'_>,
) {
    let mut reports = Reports { context, said: None };
    // The other thread ends after this one only.
    let send = |what: Work| {
        let _ = work.send(what);
    };
    loop {
        let wait = recorder.due_in().unwrap_or(IDLE).min(IDLE);
        match batches.recv_timeout(wait) {
            Ok(batch) => {
                if batch.left_out > 0 {
                    (context.say)(&format!("not recorded: {} rows of too many", batch.left_out));
                }
                let log = recorder.append(&batch).map(|log| log.map(Work::Sync).map(send));
                reports.of(log.map(|_| ()));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if recorder.due_in() == Some(Duration::ZERO) {
            recorder.close().map(Work::Seal).map(send);
        }
        let lost = context.monitored.sink().lost();
        if lost > 0 {
            (context.say)(&format!("not recorded: {lost} readings, as the disk was too slow"));
        }
    }
    recorder.close().map(Work::Seal).map(send);
}

fn seal(mut sealer: Sealer, works: &Receiver<Work>, context: Context<'_>) {
    let mut reports = Reports { context, said: None };
    while let Ok(first) = works.recv() {
        // While the disk was slow, several may have come: the last state of a log is enough.
        let mut sync = None;
        for work in std::iter::once(first).chain(works.try_iter()) {
            match work {
                Work::Sync(log) => sync = Some(log),
                Work::Seal(name) => reports.of(sealer.seal(Some(name))),
            }
        }
        if let Some(log) = sync {
            reports.of(sealer.sync(&log));
        }
    }
}
