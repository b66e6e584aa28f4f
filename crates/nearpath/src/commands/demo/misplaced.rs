//! `nearpath demo` without a subcommand: diagnoses real packets on a deliberately misplaced path.

use crate::demo::Demo;
use crate::failure::{Failure, say};
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::Timing;
use crate::verbose::Verbose;
use anyhow::Context;
use clap::Args;
use nearpath_diagnose::diagnose;
use nearpath_host::{NetnsRef, Root, Wanted, in_netns};
use nearpath_instruments::Filter;
use nearpath_instruments::stages::Stages;
use nearpath_model::units::{bytes, digits, short};
use nearpath_model::{Detail, Diagnosis, Host};
use nearpath_trial::load::{LoadKind, LoadReport};
use std::ffi::OsStr;

/// Arguments of `demo` without a subcommand.
#[derive(Debug, Args)]
pub(super) struct Misplaced {
    #[command(flatten)]
    verbose: Verbose,
    /// Print one JSON document, the same as that of 'diagnose'
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    timing: Timing,
}

impl Misplaced {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let interrupt = Interrupt::listen()?;
        let here = nearpath_host::read(&Root::live(), &Wanted::default())
            .context("cannot read the host")?;
        let demo = Demo::start(&here, OsStr::new(super::PROGRAM))?;
        demo.story().iter().for_each(|line| say(line));
        let diagnosis = observe(&demo, &self.timing, &interrupt);
        // The path is torn down first, on success and on failure.
        let report = demo.stop()?;
        report_load(&report);
        let diagnosis = diagnosis?;
        if self.json {
            output::json(&diagnosis)
        } else {
            output::text(&self.verbose.diagnosis(&diagnosis, Some("nearpath demo tune")))
        }
    }
}

/// Observes the running demo until the time is over or a signal arrives.
fn observe(demo: &Demo, timing: &Timing, interrupt: &Interrupt) -> anyhow::Result<Diagnosis> {
    let before = facts(demo)?;
    // Other activity on the host does not belong to the facts of this namespace.
    let netns = u32::try_from(demo.server_netns_inode()).context("the namespace's inode")?;
    let filter = Filter { netns: Some(netns), ..Filter::default() };
    let mut stages = Stages::new(&before.topology, timing.options(filter, Detail::Full));
    let measured = timing.measure(&mut stages, interrupt);
    if let Err(error) = &measured {
        say(&format!("{error:#}; using kernel counters only"));
        interrupt.wait(timing.time.duration);
    }
    if interrupt.happened() {
        say("stopped early by a signal");
    }
    let after = facts(demo)?;
    Ok(match measured {
        Ok(measurement) => diagnose(&after, Some(&before), Some(&measurement)),
        Err(error) => {
            diagnose(&after, Some(&before), None).not_measured(&error.root_cause().to_string())
        }
    })
}

/// The host, seen from the server's namespace.
fn facts(demo: &Demo) -> anyhow::Result<Host> {
    let netns = demo.server_netns().context("the demo's namespace")?;
    let wanted = Wanted { sockets: true, memory_of: vec![demo.server_pid()] };
    in_netns(&NetnsRef::Fd(netns), |root| nearpath_host::read(&root, &wanted))
        .and_then(|host| host)
        .context("cannot read the host")
}

/// Reports what the load did, and that nothing is left of it.
pub(super) fn report_load(report: &LoadReport) {
    let sum = |kind: LoadKind| report.counts.iter().filter(move |c| c.kind == kind);
    let received = |kind| sum(kind).map(|c| c.received).sum::<u64>();
    let streamed = sum(LoadKind::TcpStream).map(|c| c.received_bytes).sum::<u64>();
    say(&format!(
        "load of {}s: {} requests, {} streamed, {} UDP, {} lost; namespaces removed",
        digits(report.duration_s),
        short(received(LoadKind::TcpRequests)),
        bytes(streamed),
        short(received(LoadKind::UdpDatagrams)),
        short(report.lost()),
    ));
    let planned: u64 = report.counts.iter().map(|c| c.planned).sum();
    let sent: u64 = report.counts.iter().map(|c| c.sent).sum();
    if sent < planned / 10 * 9 {
        say(&format!("the host could not keep up: {sent} of {planned} messages were sent"));
    }
    report.failures.iter().for_each(|failure| say(&format!("part of the load failed: {failure}")));
}
