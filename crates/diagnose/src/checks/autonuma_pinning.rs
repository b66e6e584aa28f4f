//! AutoNUMA at work on readers that are pinned to nodes already.
//!
//! Input: `kernel.numa_balancing` and the affinities of the processes that hold receiving sockets.
//! Output: one finding: the balancer unmaps pages to see who touches them, which costs the
//! pinned reader page faults and can gain it nothing but late page moves.
//!
//! Rules: the chapter on NUMA for SR-IOV paths (tune AutoNUMA or bind explicitly), Documentation/admin-guide/sysctl/
//! kernel.rst (`numa_balancing`: bit 0 is the balancing, bit 1 memory tiering).

use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{Finding, ProposedChange, Severity, Sysctl};

pub(super) const CHECK: Check = Check::new(
    "autonuma_pinning",
    "AutoNUMA balancing together with readers pinned to a node",
    run,
);

const SYSCTL: Sysctl = Sysctl::NumaBalancing;
const FAULTS: &str = "vm.numa_hint_faults";
/// Page faults in an interval that are more than a hint.
const MANY: u64 = 1000;
/// What one costs, and what moving a page costs, in seconds (`do_numa_page` and `migrate_misplaced_folio`: a page
/// fault, and the copy of a page with its TLB flush).
const FAULT_S: f64 = 1e-6;
const MOVE_S: f64 = 10e-6;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    if context.nodes_with_cpus() < 2 {
        return outcome;
    }
    let mode =
        context.host.sysctls.get(SYSCTL.name()).and_then(|value| value.trim().parse::<u32>().ok());
    let Some(mode) = mode else {
        let why = context.why_unknown("sysctl", SYSCTL.name());
        outcome.not_checked(format!("{SYSCTL} is unknown{why}"));
        return outcome;
    };
    if mode & 1 == 0 {
        return outcome;
    }
    if context.host.owners.is_empty() {
        outcome.not_checked("no processes with sockets were read");
    }
    let topology = &context.host.topology;
    let pinned: Vec<_> = context
        .pinned_readers()
        .into_iter()
        .filter(|reader| topology.nodes_of(&reader.cpus).len() == 1)
        .collect();
    if pinned.is_empty() {
        return outcome;
    }
    let title = format!(
        "AutoNUMA is on while {} pinned to a node",
        if pinned.len() == 1 {
            "a reader is".to_owned()
        } else {
            format!("{} readers are", pinned.len())
        }
    );
    let mut finding = Finding::new(Severity::Info, title)
        .evidence(format!("{SYSCTL} is {mode}."))
        .change(ProposedChange::new(
            SYSCTL,
            Some(mode.to_string()),
            (mode & !1).to_string(),
            "Pinned processes have nothing to gain from it and pay its page faults.",
        ));
    // Faults of the whole host: the kernel does not report them per process.
    if let Some(faults) = context.counter(FAULTS).filter(|_| context.earlier.is_some())
        && faults >= MANY
    {
        let moved = context.counter("vm.numa_pages_migrated").unwrap_or(0);
        let spent = context.per_second(faults) * FAULT_S + context.per_second(moved) * MOVE_S;
        finding.severity = severity::of_cpu_time(context, spent);
        finding = finding.evidence(format!(
            "It took {faults} page faults in the interval, and moved {moved} pages: about {} of a CPU.",
            text::percent(spent)
        ));
    }
    for reader in pinned.iter().take(10) {
        let nodes = topology.nodes_of(&reader.cpus);
        finding = finding.evidence(format!("{}, node {}.", reader.words(), text::list(&nodes)));
    }
    outcome.findings.push(finding);
    outcome
}
