//! What is read on the daemon's own thread: facts, memory, workers, the journal, and the findings from all of it.

use super::config::{Config, Source};
use super::instruments::Context;
use super::observe::thread_time;
use super::pace::Pace;
use crate::collect::{self, Facts, Workers};
use crate::metrics::Id;
use crate::recording::rows::{self, FactRows};
use nearpath_host::{MemoryReader, MemorySelection, Root, TrafficReader, Wanted};
use nearpath_model::Host;
use nearpath_tune::{Journal, Live, change_status, steering};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Reads a source; the reason if it cannot be read.
type Read<R> = fn(&mut R) -> Result<(), String>;

/// What the thread remembers.
pub struct Reader<'a> {
    root: Root,
    context: Context<'a>,
    due: BTreeMap<Source, Duration>,
    facts: Facts,
    traffic: TrafficReader,
    workers: Workers,
    fact_rows: FactRows,
    /// The host at the last diagnosis.
    diagnosed: Option<(Host, Duration)>,
    said: BTreeMap<Source, String>,
}

impl<'a> Reader<'a> {
    /// Nothing read yet.
    pub fn new(context: Context<'a>, root: Root) -> Self {
        Self {
            root,
            context,
            due: BTreeMap::new(),
            facts: Facts::default(),
            traffic: TrafficReader::default(),
            workers: Workers::default(),
            fact_rows: FactRows::default(),
            diagnosed: None,
            said: BTreeMap::new(),
        }
    }

    /// Reads what is due.
    pub fn read(&mut self) {
        let began = Instant::now();
        // In this order: findings are of what the others have read.
        let sources: [(Source, Read<Self>); 5] = [
            (Source::Facts, Self::facts),
            (Source::Memory, Self::memory),
            (Source::Workers, Self::workers),
            (Source::Steering, Self::steering),
            (Source::Findings, Self::findings),
        ];
        for (source, read) in sources {
            if self.context.config.has(source) && self.is_due(source) {
                self.timed(source, read);
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        self.context.monitored.store().set(Id::CollectionSeconds, &[], seconds);
    }

    /// Makes everything due.
    pub fn again(&mut self) {
        self.due.clear();
    }

    fn is_due(&self, source: Source) -> bool {
        self.due.get(&source).is_none_or(|due| self.context.monitored.now() >= *due)
    }

    /// Reads, and keeps the cost of reading within the source's share.
    fn timed(&mut self, source: Source, read: Read<Self>) {
        let (began, own) = (self.context.monitored.now(), thread_time());
        let up = match read(self) {
            Ok(()) => {
                self.said.remove(&source);
                1.0
            }
            Err(error) => {
                if self.said.get(&source) != Some(&error) {
                    (self.context.say)(&format!("cannot read {}: {error}", source.name()));
                    self.said.insert(source, error);
                }
                0.0
            }
        };
        self.context.monitored.store().set(Id::InstrumentUp, &[source.name()], up);
        let pace =
            Pace::new(every(self.context.config, source), self.context.config.limit_of(source));
        let wait = pace.after(thread_time().saturating_sub(own));
        // Those that are due with each tick must not miss one because the tick was early.
        let wait = wait.saturating_sub(self.context.config.interval / 4);
        self.due.insert(source, began + wait);
    }

    fn host(&self, wanted: &Wanted) -> Result<Host, String> {
        nearpath_host::read(&self.root, wanted).map_err(|error| error.to_string())
    }

    fn facts(&mut self) -> Result<(), String> {
        let host = self.traffic.read(&self.root);
        self.facts.add(&mut self.context.monitored.store(), &host);
        let now = self.context.monitored.now();
        self.context.monitored.record(|| self.fact_rows.add(&host, now));
        Ok(())
    }

    /// On a host with one node it does not matter where memory is.
    fn memory(&mut self) -> Result<(), String> {
        if self.context.topology.nodes.len() < 2 {
            return Ok(());
        }
        let host = self.host(&Wanted::default())?;
        // Without any process there is nothing to read.
        let Ok(reader) = MemoryReader::new(&self.root, &host, &MemorySelection::default()) else {
            return Ok(());
        };
        let memory = reader.still(&self.root);
        collect::memory(&mut self.context.monitored.store(), &memory);
        self.context.monitored.record(|| rows::memory(&memory));
        self.context.monitored.gathered().memory = Some(memory);
        Ok(())
    }

    fn workers(&mut self) -> Result<(), String> {
        let polling = nearpath_host::workers::read(&self.root);
        self.workers.add(&mut self.context.monitored.store(), &polling);
        self.context.monitored.record(|| rows::workers(&polling));
        Ok(())
    }

    fn steering(&mut self) -> Result<(), String> {
        let contents = Journal::contents(&Journal::folder()).map_err(|error| error.to_string())?;
        let boot = steering::boot(&self.root).map_err(|error| error.to_string())?;
        let changes = change_status(&contents.entries, &Live::new(), &boot);
        collect::steering(&mut self.context.monitored.store(), &changes);
        self.context.monitored.record(|| rows::settings(&changes));
        Ok(())
    }

    fn findings(&mut self) -> Result<(), String> {
        let host = self.host(&Wanted { sockets: true, ..Wanted::default() })?;
        // The first reading is the start of the first interval.
        if let Some((before, at)) = &self.diagnosed {
            let window = self.context.monitored.gathered().turn();
            let diagnosis = nearpath_diagnose::diagnose(&host, Some(before), window.evidence());
            collect::findings(&mut self.context.monitored.store(), &diagnosis);
            let interval_s = self.context.monitored.now().saturating_sub(*at).as_secs_f64();
            self.context.monitored.record(|| rows::findings(&diagnosis, interval_s));
            self.context.monitored.show_findings(&host, diagnosis);
        }
        self.diagnosed = Some((host, self.context.monitored.now()));
        Ok(())
    }
}

/// How often a source is read at most.
fn every(config: &Config, source: Source) -> Duration {
    match source {
        Source::Findings | Source::Memory => config.findings,
        _ => config.interval,
    }
}
