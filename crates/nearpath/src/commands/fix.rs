//! `nearpath fix`: finds what makes packets late, tries the fix of the worst finding on the live traffic, keeps it if packets
//! are better for it, measures again, and goes on until nothing is left that a change of this host can fix.

use super::diagnose::Looking;
use super::tune::{ConfirmWithin, plan_of_findings};
use crate::failure::{Failure, say};
use crate::guardian::{Asker, Guardian, executor};
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::duration;
use crate::trial::{
    ABOVE_NS, BLOCK, Bench, Compared, MINIMUM_EFFECT, Measured, Meter, TrialConfig,
};
use anyhow::Context;
use clap::Args;
use nearpath_host::{Root, Wanted, current_netns};
use nearpath_instruments::stages::Options;
use nearpath_model::fix::{Attempt, Fixed, Kept, Left, NotTried, PacketFigures};
use nearpath_model::{
    Detail, Diagnosis, Direction, Entry, Finding, Host, PathKind, PathLatency, Pending, Plan,
    PlannedChange, Severity, Subject, Target, TrialReport, Verdict,
};
use nearpath_trial::live::{Figure, Metric};
use nearpath_tune::{Journal, Live, steering};
use nearpath_views::text;
use std::collections::BTreeSet;
use std::io::{BufRead, IsTerminal};
use std::time::{Duration, Instant};

const AFTER_HELP: &str = "\
Measures as 'nearpath diagnose' does and prints the verdict. Then tries the changes of the worst
finding on the live traffic: blocks with and without them alternate at random until the packets say
which is better, mostly within seconds. They are kept only if p50, p99, the share of late packets or
the lost packets improve and none of these gets worse. Then measures again, and goes on with what is
left. Ends with one screen: packets before and after, what was kept and how to undo it, what did not
help, and what is left and whose it is.

Changes that move other tasks or interrupt traffic (numbers of channels, rings) need a yes on the
terminal, or --yes. On Ctrl-C, a lost connection or a kill, the host keeps the changes that were
proved until then, and no others. Requires root.

EXAMPLES
  nearpath fix                        this machine
  nearpath fix --dry-run              what it would try
  nearpath fix --port 6379 --yes      for the packets of one service, without asking
  nearpath fix --netns blue --confirm-within 5m    undone in five minutes, unless confirmed";

/// Stages before the one from which the cheapest measurement follows a packet.
const BEFORE_THE_STACK: [&str; 3] = ["napi_gro_receive", "napi_gro_frags", "gro_cells_receive"];
/// Of so many packets that are received, one that is followed elsewhere says nothing.
const MOSTLY: u64 = 20;
/// Where packets that were followed take so many times as long as those that were watched, they wait before the stamp.
const STAMPED_LATE: u64 = 2;
/// Most rounds: each keeps a change.
const ROUNDS: usize = 16;
/// Time for the host to settle after a switch: what lasts longer makes an effect smaller, not wrong.
const SETTLING: Duration = Duration::from_millis(300);

/// Arguments of `fix`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP, mut_arg("max_overhead", |arg| arg.default_value("20%")))]
pub struct Fix {
    /// Show what would be tried, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Also move other tasks and make changes that interrupt traffic, without asking
    #[arg(short, long, conflicts_with = "dry_run")]
    yes: bool,
    /// Try one finding's changes for at most this time
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = duration)]
    try_for: Duration,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = None::<&'static str>)]
    looking: Looking,
    #[command(flatten, next_help_heading = None::<&'static str>)]
    confirm_within: ConfirmWithin,
}

/// What has been done so far.
#[derive(Default)]
struct Done {
    tried: Vec<Attempt>,
    not_tried: Vec<NotTried>,
    /// Findings that are done with: check and title.
    seen: BTreeSet<(String, String)>,
}

/// The changes of one finding.
struct Candidate {
    plan: Plan,
    ids: Vec<String>,
}

impl Fix {
    pub(super) fn run(&self) -> Result<(), Failure> {
        if !self.looking.is_live() {
            let message =
                "only the running host can be fixed, not one of --root, --snapshot or --evidence";
            return Err(Failure::Usage(message.to_owned()));
        }
        let interrupt = Interrupt::listen()?;
        let began = Instant::now();
        let base = Journal::read(&Journal::folder())
            .map_err(anyhow::Error::from)?
            .last()
            .map_or(0, |entry| entry.id);
        let first = self.looking.live_here()?;
        if !self.json {
            output::text(&text::verdict(&first, None, text::SCREEN_LINES))?;
        }
        let (mut now, mut done, mut rounds) = (first.clone(), Done::default(), 0);
        let mut failed = None;
        while rounds < ROUNDS && !interrupt.happened() {
            rounds += 1;
            let round =
                self.looking.in_namespace(|root| self.round(root, &now, &mut done, &interrupt));
            match round {
                Ok(true) => now = self.looking.live_here()?,
                Ok(false) => break,
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        let kept = self.looking.in_namespace(|root| self.decide(root, base, &done))?;
        let shown = main_path(&first).or_else(|| main_path(&now));
        let fixed = Fixed {
            schema: nearpath_model::fix::FIX_SCHEMA,
            rounds,
            first_finding: first.findings.first().map(|finding| finding.title.clone()),
            before: shown.and_then(|kind| figures(&first, kind)),
            after: shown.and_then(|kind| figures(&now, kind)),
            tried: done.tried,
            not_tried: done.not_tried,
            left: left(&now),
            kept,
            seconds: began.elapsed().as_secs_f64(),
        };
        if self.json {
            output::json(&fixed)?;
        } else {
            output::text(&text::fixed(&fixed, &self.looking.netns_words()))?;
        }
        match failed {
            Some(error) => Err(error.into()),
            None if interrupt.happened() => {
                Err(anyhow::anyhow!("stopped early by a signal").into())
            }
            None => Ok(()),
        }
    }

    /// Tries findings, the worst first, until changes are kept; returns whether some were.
    fn round(
        &self,
        root: &Root,
        now: &Diagnosis,
        done: &mut Done,
        interrupt: &Interrupt,
    ) -> anyhow::Result<bool> {
        let serious = now.findings.iter().filter(|finding| finding.severity > Severity::Info);
        for finding in serious {
            if interrupt.happened() {
                return Ok(false);
            }
            if !done.seen.insert((finding.check.clone(), finding.title.clone())) {
                continue;
            }
            let candidate = match candidate(root, now, finding) {
                Ok(Some(candidate)) => candidate,
                Ok(None) => continue,
                Err(reason) => {
                    done.not_tried.push(not_tried(finding, &reason));
                    continue;
                }
            };
            if let Some(reason) = self.refused(&candidate, finding) {
                done.not_tried.push(not_tried(finding, &reason));
                continue;
            }
            let attempt = self.attempt(root, now, finding, &candidate, interrupt)?;
            let kept = attempt.kept;
            say(&text::attempt(&attempt));
            done.tried.push(attempt);
            if kept {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Why changes are not tried: they cannot be undone, or would interrupt traffic or move tasks without permission.
    fn refused(&self, candidate: &Candidate, finding: &Finding) -> Option<String> {
        let changes = || candidate.changes();
        let target = |change: &PlannedChange| change.target.to_string();
        if let Some((change, reason)) =
            changes().find_map(|change| Some((change, change.target.one_way()?)))
        {
            return Some(format!("{} cannot be tried: {reason}", target(change)));
        }
        if self.dry_run {
            return Some(format!("would be tried: {}", candidate.words()));
        }
        let moves = |change: &PlannedChange| matches!(change.target, Target::Thread(_));
        let disrupts = changes().find_map(|change| change.target.disrupts());
        let why = match disrupts {
            Some(reason) => format!("it interrupts traffic ({reason})"),
            None if changes().any(moves) => "it moves tasks".to_owned(),
            None => return None,
        };
        if self.yes {
            return None;
        }
        let is_terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        let is_agreed = is_terminal && {
            say(&candidate.words());
            agreed(&format!("{}: {why}; try it?", finding.title))
        };
        (!is_agreed).then(|| format!("{why}: --yes permits that"))
    }

    fn attempt(
        &self,
        root: &Root,
        now: &Diagnosis,
        finding: &Finding,
        candidate: &Candidate,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Attempt> {
        let boot = steering::boot(root)?;
        let steps = candidate.plan.steps(&candidate.ids, &boot, current_netns(root).inode)?;
        let host = nearpath_host::read(root, &Wanted::default()).context("cannot read the host")?;
        let executor = executor(&boot, Live::new())?.pending(Some(Pending::Trial));
        let base = executor.last();
        let meter = Meter::start(root, &host, self.measured(now, finding, &host)?)?;
        let guardian = Guardian::start(Pending::Trial)?;
        let config = TrialConfig {
            compared: Compared::Packets { above_ns: above(now) },
            limit: self.try_for,
            block: BLOCK,
            settling: Some(SETTLING),
            minimum_effect: MINIMUM_EFFECT,
            trials: 1,
            irqbalance: host.daemons.irqbalance == Some(true),
        };
        let asker = Asker::parent();
        let mut bench = Bench { root, executor, meter, interrupt, asker, config, boot };
        say(&format!(
            "trying for at most {}: {}",
            humantime::format_duration(self.try_for),
            candidate.words()
        ));
        let report = match bench.trial(candidate.ids.clone(), steps) {
            Ok(report) => report,
            Err(error) => {
                let is_undone = bench.executor.last() == base;
                if interrupt.happened() || bench.asker.is_gone() || !is_undone {
                    return Err(error);
                }
                guardian.finish()?;
                return Ok(not_decided(finding, candidate, &format!("{error:#}")));
            }
        };
        // It is proved. If the result is to be confirmed, that begins at the end.
        bench.executor.decide(base, None)?;
        guardian.finish()?;
        Ok(attempt_of(finding, candidate, report))
    }

    /// What a trial measures: whole packets of the kind that most are of, from the stage on where they wait.
    fn measured(
        &self,
        now: &Diagnosis,
        finding: &Finding,
        host: &Host,
    ) -> anyhow::Result<Measured> {
        let kind = followed_path(now).unwrap_or(PathKind::Receive);
        let starts_early = finding.subjects.iter().any(|subject| match subject {
            Subject::Span(from, _) => BEFORE_THE_STACK.contains(&from.as_str()),
            _ => false,
        });
        let (direction, detail) = match kind {
            PathKind::Transmit | PathKind::KernelTransmit => (Direction::Tx, Detail::Path),
            _ if starts_early => (Direction::Rx, Detail::Path),
            _ => (Direction::Rx, Detail::Coarse),
        };
        let mut filter = self.looking.filter(host)?;
        filter.direction = Some(direction);
        let without = vec![nearpath_instruments::stages::NIC_RX.to_owned()];
        let options = Options { filter, detail, without, ..Options::default() };
        let metric = Metric::Path { kind: Some(kind), figure: Figure::Mean };
        Ok(Measured { metric, options, nics: Vec::new(), probes: None, loads: Vec::new() })
    }

    /// What was kept, as it is in the journal. It is undone again unless it is confirmed, if requested.
    fn decide(&self, root: &Root, base: u64, done: &Done) -> anyhow::Result<Vec<Kept>> {
        if done.tried.iter().all(|attempt| !attempt.kept) {
            return Ok(Vec::new());
        }
        let mut executor = executor(&steering::boot(root)?, Live::new())?;
        self.confirm_within.decide(&mut executor, base)?;
        let entries = executor.entries().into_iter().filter(|entry| entry.id > base);
        let kept = |entry: Entry| Kept { id: entry.id, target: entry.change.target.to_string() };
        Ok(entries.map(kept).collect())
    }
}

impl Candidate {
    fn changes(&self) -> impl Iterator<Item = &PlannedChange> {
        self.plan.changes.iter().filter(|change| self.ids.contains(&change.id))
    }

    fn words(&self) -> String {
        let words: Vec<String> = self.changes().take(3).map(in_words).collect();
        let more = self.ids.len().saturating_sub(words.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        words.join("; ") + &more
    }
}

fn in_words(change: &PlannedChange) -> String {
    format!("{}: {} -> {}", change.target, change.before.to_plan(), change.after.to_plan())
}

/// The changes that a finding proposes; `None` if it proposes none.
///
/// # Errors
/// The reason why none can be tried.
fn candidate(root: &Root, now: &Diagnosis, finding: &Finding) -> Result<Option<Candidate>, String> {
    if finding.changes.is_empty() {
        return Ok(None);
    }
    let plan = plan_of_findings(root, now, std::slice::from_ref(finding))
        .map_err(|error| format!("{error:#}"))?;
    let is_its = |change: &&PlannedChange| {
        change.finding.as_deref() == Some(finding.check.as_str())
            && change.target.takes_effect_immediately()
    };
    let ids: Vec<String> = plan.changes.iter().filter(is_its).map(|it| it.id.clone()).collect();
    if ids.is_empty() {
        let reason = plan.notes.last().cloned();
        return Err(reason.unwrap_or_else(|| "the host has it already".to_owned()));
    }
    Ok(Some(Candidate { plan, ids }))
}

fn not_tried(finding: &Finding, reason: &str) -> NotTried {
    let (check, title) = (finding.check.clone(), finding.title.clone());
    NotTried { check, title, reason: reason.to_owned() }
}

fn not_decided(finding: &Finding, candidate: &Candidate, reason: &str) -> Attempt {
    Attempt {
        check: finding.check.clone(),
        title: finding.title.clone(),
        changes: candidate.changes().map(in_words).collect(),
        verdict: Verdict::Inconclusive,
        reason: Some(reason.to_owned()),
        kept: false,
        blocks: 0,
        seconds: 0.0,
        figures: Vec::new(),
    }
}

fn attempt_of(finding: &Finding, candidate: &Candidate, report: TrialReport) -> Attempt {
    Attempt {
        verdict: report.verdict,
        reason: report.stopped.map(|harm| harm.what),
        kept: report.kept,
        blocks: report.design.blocks,
        seconds: report.design.seconds,
        figures: report.figures,
        ..not_decided(finding, candidate, "")
    }
}

/// Asks on the terminal.
fn agreed(question: &str) -> bool {
    say(&format!("{} [y/N]", text::printable(question)));
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

/// The kind of path that a trial compares: received packets if there are some, else what most whole packets took.
fn followed_path(diagnosis: &Diagnosis) -> Option<PathKind> {
    let paths = &diagnosis.measurement.as_ref()?.paths;
    let is_one = |path: &&PathLatency| {
        path.count > 0 && !path.kind.is_from_nic() && path.kind != PathKind::Watch
    };
    let main =
        paths.iter().filter(is_one).max_by_key(|path| (path.kind == PathKind::Receive, path.count));
    let watched = paths.iter().find(|path| path.kind == PathKind::Watch);
    // What is received and was not followed is not to be judged by a few that were sent.
    let is_few = |path: &&PathLatency| watched.is_none_or(|all| all.count / MOSTLY <= path.count);
    main.filter(is_few).map(|path| path.kind)
}

/// The kind whose figures are shown: of every packet received if there are some, unless those that were followed show that
/// the time is lost before the stack has stamped them.
fn main_path(diagnosis: &Diagnosis) -> Option<PathKind> {
    let paths = &diagnosis.measurement.as_ref()?.paths;
    let of = |kind| paths.iter().find(|path| path.kind == kind && path.count > 0);
    let p50 = |path: &PathLatency| path.p50_ns.unwrap_or(0);
    let is_early = |watched: &&PathLatency| {
        of(PathKind::Receive).is_none_or(|path| p50(path) < STAMPED_LATE * p50(watched))
    };
    let watched = of(PathKind::Watch).filter(is_early);
    let received = || of(PathKind::Receive).map(|path| path.kind);
    watched.map(|path| path.kind).or_else(|| followed_path(diagnosis)).or_else(received)
}

fn figures(diagnosis: &Diagnosis, kind: PathKind) -> Option<PacketFigures> {
    let path = diagnosis.measurement.as_ref()?.paths.iter().find(|path| path.kind == kind)?;
    Some(PacketFigures {
        path: kind.name().to_owned(),
        packets: path.count,
        p50_ns: path.p50_ns,
        p99_ns: path.p99_ns,
        p999_ns: path.p999_ns,
        max_ns: path.max_ns,
    })
}

/// Packets above this are late: a millisecond, or p99 in milliseconds if that is longer.
fn above(diagnosis: &Diagnosis) -> u64 {
    let figures = main_path(diagnosis).and_then(|kind| figures(diagnosis, kind));
    let p99_ns = figures.and_then(|it| it.p99_ns).unwrap_or(0);
    p99_ns.max(ABOVE_NS).next_multiple_of(ABOVE_NS)
}

/// What is left, and whose it is.
fn left(now: &Diagnosis) -> Vec<Left> {
    let serious = now.findings.iter().filter(|finding| finding.severity > Severity::Info);
    let of = |finding: &Finding| Left {
        check: finding.check.clone(),
        title: finding.title.clone(),
        severity: finding.severity,
        whose: finding.whose,
    };
    serious.map(of).collect()
}
