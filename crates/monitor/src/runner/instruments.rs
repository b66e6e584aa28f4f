//! The threads of the instruments, one each.

use super::config::{Config, Source};
use super::explaining::Explaining;
use super::observe::{Next, Plan, observe, thread_time};
use super::pace::Pace;
use super::pages::Monitored;
use super::stop::Stop;
use crate::collect;
use crate::metrics::Id;
use crate::recording::rows;
use nearpath_host::{Root, TcpFilter, Wanted, current_netns};
use nearpath_instruments::accepts::{self, Accepts};
use nearpath_instruments::drops::{self, Drops};
use nearpath_instruments::locality::{self, PacketLocality};
use nearpath_instruments::stages::{self, Stages};
use nearpath_instruments::tcp::{self, Tcp};
use nearpath_instruments::vm::VmPackets;
use nearpath_instruments::{Instrument, InstrumentError};
use nearpath_model::{Detail, Measurement, Topology};
use std::cell::RefCell;
use std::time::Duration;

/// Longer than any daemon runs: the governor's allowance has no end.
const ALWAYS: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// Slow packets that are kept individually: for findings.
const OUTLIERS: usize = 4;
/// Connections that are listed, those with the most bytes first.
const CONNECTIONS: usize = 1_000;
/// A refused instrument is tried again after this time.
const AGAIN: Duration = Duration::from_secs(300);

/// What a thread needs.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// What is observed.
    pub config: &'a Config,
    /// The machine's CPUs.
    pub topology: &'a Topology,
    /// Where readings go.
    pub monitored: &'a Monitored,
    /// The end.
    pub stop: &'a Stop,
    /// Reports something to the log.
    pub say: &'a (dyn Fn(&str) + Sync),
}

impl Context<'_> {
    fn plan(&self, source: Source) -> Plan<'_> {
        let limit = self.config.limit_of(source);
        Plan { interval: self.config.interval, limit, stop: self.stop }
    }

    /// An instrument cannot observe: reported once for each reason.
    fn refused(&self, source: Source, said: &mut Option<InstrumentError>, error: &InstrumentError) {
        self.monitored.store().set(Id::InstrumentUp, &[source.name()], 0.0);
        if said.as_ref() != Some(error) {
            (self.say)(&format!("cannot observe {}: {error}", source.name()));
            *said = Some(error.clone());
        }
    }
}

/// Observes stages until the end. They have a limit of their own.
pub fn observe_stages(context: Context<'_>) {
    let Context { config, topology, monitored, stop, .. } = context;
    let mut said = None;
    while !stop.is_set() {
        let options = stages::Options {
            detail: Detail::Coarse,
            budgets: config.has(Source::Budgets),
            limit: config.limit_of(Source::Stages),
            outliers: OUTLIERS,
            btf_file: config.btf_file.clone(),
            watch: true,
            causes: config.has(Source::Budgets),
            ..stages::Options::default()
        };
        let before: RefCell<Option<Measurement>> = RefCell::new(None);
        let each = |now: &Measurement| {
            let mut before = before.borrow_mut();
            collect::stages(&mut monitored.store(), now, before.as_ref());
            monitored.record(|| rows::stages(now, before.as_ref()));
            monitored.gathered().stages.add(now, before.is_none());
            *before = Some(now.clone());
        };
        let mut instrument = Stages::new(topology, options);
        let measured =
            instrument.measure(ALWAYS, config.interval, &|wait| !stop.wait(wait), &mut |now| {
                each(now);
            });
        match measured {
            Ok(last) => each(&last),
            Err(error) => {
                context.refused(Source::Stages, &mut said, &error);
                stop.wait(AGAIN);
            }
        }
    }
}

/// Observes locality until the end.
pub fn observe_locality(context: Context<'_>) {
    let mut said = None;
    observe(
        &context.plan(Source::Locality),
        &mut || {
            let btf_file = context.config.btf_file.clone();
            let options = locality::Options { btf_file, ..locality::Options::default() };
            PacketLocality::new(context.topology, options)
        },
        &|now| now.cost.map_or(0.0, |cost| cost.cpu_percent / 100.0 * now.duration_s),
        &mut |now, before| {
            collect::locality(&mut context.monitored.store(), now, before);
            context.monitored.record(|| rows::locality(now, before));
            context.monitored.gathered().locality.add(now, before.is_none());
            Next::Go
        },
        &mut |error| context.refused(Source::Locality, &mut said, error),
    );
}

/// Observes accepts until the end.
pub fn observe_accepts(context: Context<'_>) {
    let (root, mut said) = (Root::live(), None);
    observe(
        &context.plan(Source::Accepts),
        &mut || {
            let btf_file = context.config.btf_file.clone();
            let options = accepts::Options { btf_file, ..accepts::Options::default() };
            Accepts::new(&root, context.topology, options)
        },
        &|now| now.cost.map_or(0.0, |cost| cost.cpu_percent / 100.0 * now.duration_s),
        &mut |now, before| {
            collect::accepts(&mut context.monitored.store(), now, before);
            context.monitored.record(|| rows::accepts(now, before));
            context.monitored.gathered().accepts.add(now, before.is_none());
            Next::Go
        },
        &mut |error| context.refused(Source::Accepts, &mut said, error),
    );
}

/// Observes drops until the end.
pub fn observe_drops(context: Context<'_>) {
    let (root, mut said) = (Root::live(), None);
    observe(
        &context.plan(Source::Drops),
        &mut || {
            let btf_file = context.config.btf_file.clone();
            let limit = context.config.limit_of(Source::Drops);
            Drops::new(&root, drops::Options { btf_file, limit, ..drops::Options::default() })
        },
        &|now| now.cost.map_or(0.0, |cost| cost.cpu_percent / 100.0 * now.duration_s),
        &mut |now, before| {
            collect::drops(&mut context.monitored.store(), now, before);
            context.monitored.record(|| rows::drops(now, before));
            Next::Go
        },
        &mut |error| context.refused(Source::Drops, &mut said, error),
    );
}

/// Observes TCP connections until the end.
pub fn observe_tcp(context: Context<'_>) {
    let (root, mut said) = (Root::live(), None);
    let netns = current_netns(&root).inode;
    let limit = context.config.limit_of(Source::Tcp);
    observe(
        &context.plan(Source::Tcp),
        &mut || {
            let options = tcp::Options {
                filter: TcpFilter::default(),
                netns,
                top: Some(CONNECTIONS),
                step: context.config.interval,
                btf_file: context.config.btf_file.clone(),
                limit,
                detail: Detail::Coarse,
                ..tcp::Options::default()
            };
            Tcp::new(&root, options)
        },
        &|now| now.cost.programs.map_or(0.0, |cost| cost.cpu_percent / 100.0 * now.duration_s),
        &mut |now, before| {
            collect::tcp(&mut context.monitored.store(), now, before);
            context.monitored.record(|| rows::tcp(now, before));
            context.monitored.gathered().tcp.add(now, before.is_none());
            Next::Go
        },
        &mut |error| context.refused(Source::Tcp, &mut said, error),
    );
}

/// Observes packets into virtual machines until the end, from when there is one.
pub fn observe_vms(context: Context<'_>) {
    let (root, mut said) = (Root::live(), None);
    let pace = Pace::new(context.config.interval, context.config.limit_of(Source::Vms));
    loop {
        // All descriptors of all processes are looked at.
        let own = thread_time();
        let is_there = !nearpath_host::vms::read(&root).vms.is_empty();
        if is_there {
            break;
        }
        if context.stop.wait(pace.after(thread_time().saturating_sub(own))) {
            return;
        }
    }
    // Names of taps are not exported: what is missing has no effect.
    let host = nearpath_host::read(&root, &Wanted::default()).unwrap_or_default();
    let explaining = RefCell::new(Explaining::new(context.config.has(Source::Budgets)));
    observe(
        &context.plan(Source::Vms),
        &mut || {
            let packets = VmPackets::new(&root, &host, context.config.btf_file.clone());
            packets.explaining(explaining.borrow().limit())
        },
        &|now| now.cost.map_or(0.0, |cost| cost.cpu_percent / 100.0 * now.duration_s),
        &mut |now, before| {
            collect::vms(&mut context.monitored.store(), now, before);
            context.monitored.record(|| rows::vms(now, before));
            context.monitored.gathered().vms.add(now, before.is_none());
            explaining.borrow_mut().take(context.monitored.now(), now, before)
        },
        &mut |error| context.refused(Source::Vms, &mut said, error),
    );
}

/// A source with its thread.
pub type Observer = (Source, fn(Context<'_>));

/// All instruments that have a thread.
pub const OBSERVERS: [Observer; 6] = [
    (Source::Stages, observe_stages),
    (Source::Locality, observe_locality),
    (Source::Accepts, observe_accepts),
    (Source::Drops, observe_drops),
    (Source::Tcp, observe_tcp),
    (Source::Vms, observe_vms),
];
