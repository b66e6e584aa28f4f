//! Tasks that wait while the kernel compacts memory for huge pages.
//!
//! Input: `compact_stall` of /proc/vmstat over the interval, and how transparent hugepages are set up.
//! Output: one finding when tasks waited in the interval: each such stall takes as long as many
//! packets. Without an earlier reading nothing is said: a host that booted with little memory free
//! has stalls of long ago.
//!
//! Rule: Documentation/admin-guide/mm/transhuge.rst (`defrag`: only `always` lets any page fault
//! stall).

use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{FileOf, Finding, HugePages, ProposedChange, SettingFile};

pub(super) const CHECK: Check = Check::new(
    "compaction_stalls",
    "tasks that wait while the kernel compacts memory for huge pages",
    run,
);

/// Stalls in each second from which tasks are late often.
const OFTEN_PER_S: f64 = 1.0;
const COUNTER: &str = "vm.compact_stall";
const DEFRAG: &str = "transparent_hugepage.defrag";
const ENABLED: &str = "transparent_hugepage.enabled";

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    if context.earlier.is_none() {
        return outcome;
    }
    let Some(stalls) = context.counter(COUNTER) else {
        let why = context.why_unknown("host", "counters");
        outcome.not_checked(format!("{COUNTER} is unknown{why}"));
        return outcome;
    };
    let sysctls = &context.host.sysctls;
    let Some(defrag) = sysctls.get(DEFRAG).and_then(|text| chosen(text)) else {
        let why = context.why_unknown("sysctl", DEFRAG);
        outcome.not_checked(format!("{DEFRAG} is unknown{why}"));
        return outcome;
    };
    if stalls == 0 {
        return outcome;
    }
    let title = format!("tasks waited {} for memory to be compacted", text::count(stalls, "time"));
    let rate = Some(context.per_second(stalls));
    let mut finding = Finding::new(severity::of_condition(context, true, rate, OFTEN_PER_S), title)
        .evidence(format!("Transparent hugepages are defragmented: {defrag}."));
    if let Some(taken) = context.counter("vm.thp_fault_alloc") {
        finding = finding.evidence(format!("Page faults took {taken} huge pages in the interval."));
    }
    // With any other setting only programs that request huge pages (madvise) wait for them.
    if defrag == "always" {
        finding = finding.change(ProposedChange::new(
            SettingFile::from(FileOf::HugePages(HugePages::Defrag)),
            Some(defrag.to_owned()),
            "defer+madvise",
            "Page faults take small pages at once, and the kernel compacts in the background.",
        ));
        if let Some("always") = sysctls.get(ENABLED).and_then(|text| chosen(text)) {
            finding = finding.change(
                ProposedChange::new(
                    SettingFile::from(FileOf::HugePages(HugePages::Enabled)),
                    Some("always".to_owned()),
                    "madvise",
                    "Huge pages only with madvise(2).",
                )
                .instead(),
            );
        }
    }
    outcome.findings.push(finding);
    outcome
}

/// The word in brackets of `always [madvise] never`.
fn chosen(text: &str) -> Option<&str> {
    let mut words = text.split_ascii_whitespace();
    words.find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}
