//! RPS off on a NIC whose few queues keep few CPUs busy while others of its node could help.
//!
//! Input: the NIC's queues, its interrupts' CPUs, how busy these are, and its node's CPUs.
//! Output: one finding for each such NIC: more queues where the NIC has them, else RPS.
//!
//! Rule: Documentation/networking/scaling.rst (RPS on a single-queue device, or when there are
//! fewer queues than CPUs in the interrupt's memory domain); not for OVS internal ports, see
//! `ovs_port_rps`.

use crate::context::irq_cpus;
use crate::counters::ratio;
use crate::steering::rps_change;
use crate::{Check, CheckOutcome, Context, nearest_cpus, severity, text};
use nearpath_model::{CpuSet, Ethtool, Finding, Nic, NicSetting, ProposedChange};

pub(super) const CHECK: Check = Check::new(
    "rps_off",
    "RPS off where a busy NIC has fewer queues than CPUs that would help",
    run,
);

/// Share of its time in interrupts from which a CPU needs help.
const BUSY: f64 = 0.3;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    for nic in context.hardware_nics() {
        let helpers = nearest_cpus(context.host, nic.numa_node);
        let queues = nic.rx_queues.len();
        if queues == 0 || queues >= helpers.len() {
            continue;
        }
        let steered = |cpus: &CpuSet| !cpus.is_empty();
        if nic.rx_queues.iter().any(|queue| queue.rps_cpus.as_ref().is_some_and(steered)) {
            continue;
        }
        if nic.rx_queues.iter().any(|queue| queue.rps_cpus.is_none()) {
            let why = context.why_unknown(&format!("nic {}", nic.name), "rps_cpus");
            outcome.not_checked(format!("rps_cpus of {} is unknown{why}", nic.name));
            continue;
        }
        match busy_cpus(context, nic) {
            Err(reason) => outcome.not_checked(reason),
            Ok(busy) if busy.is_empty() => {}
            Ok(busy) => {
                outcome.findings.extend(finding(
                    context,
                    nic,
                    &busy,
                    &helpers.into_iter().collect(),
                ));
            }
        }
    }
    outcome
}

/// The CPUs of a NIC's interrupts that spend much of their time in interrupts, with the share.
fn busy_cpus(context: &Context<'_>, nic: &Nic) -> Result<Vec<(CpuSet, f64)>, String> {
    let irqs = context.rx_irqs(nic);
    if irqs.is_empty() {
        return Err(context.no_irqs(nic));
    }
    if context.earlier.is_none() {
        return Err(format!(
            "how busy the CPUs of {}'s interrupts are takes two readings in time",
            nic.name
        ));
    }
    let shares = context.time_shares();
    if shares.is_empty() {
        return Err("how CPUs spend their time is unknown (/proc/stat)".to_owned());
    }
    let cpus = irqs.iter().filter(|(_, irq)| context.irq_total(irq) > 0);
    let cpus = cpus.filter_map(|(_, irq)| irq_cpus(irq)).fold(CpuSet::new(), |all, c| all.union(c));
    let busy = cpus.iter().filter_map(|cpu| {
        let share = shares.get(&cpu)?.interrupts;
        (share >= BUSY).then(|| (CpuSet::from_iter([cpu]), share))
    });
    Ok(busy.collect())
}

fn finding(
    context: &Context<'_>,
    nic: &Nic,
    busy: &[(CpuSet, f64)],
    near: &CpuSet,
) -> Option<Finding> {
    // At a high interrupt rate the interrupted CPU is better left out (scaling.rst).
    let interrupted = busy.iter().fold(CpuSet::new(), |all, (cpu, _)| all.union(cpu));
    let helpers = near.difference(&interrupted);
    if helpers.is_empty() {
        return None;
    }
    let queues = text::count(nic.rx_queues.len() as u64, "receive queue");
    let helping = text::cpus_brief(&helpers);
    let title = format!("{} has {queues} and RPS off; {helping} could help", nic.name);
    let mut finding = Finding::new(
        severity::of_condition(
            context,
            true,
            busy.iter().map(|(_, share)| *share).max_by(f64::total_cmp),
            BUSY,
        ),
        title,
    );
    for (cpu, share) in busy {
        finding = finding.evidence(format!(
            "{}, which serves its interrupts, spent {} of the interval in them.",
            text::cpus(cpu),
            text::percent(*share)
        ));
    }
    finding = finding.share(ratio(busy.len() as u64, nic.rx_queues.len() as u64), "its queues");
    finding.changes.extend(more_queues(nic, near.len()));
    let more = !finding.changes.is_empty();
    let rps = nic.rx_queues.iter().map(|queue| {
        let why = "Other CPUs of the NIC's node take packets off the interrupted one.";
        let change = rps_change(nic, queue, &helpers, why);
        if more { change.instead() } else { change }
    });
    finding.changes.extend(rps);
    if context.host.kernel.virtualisation.as_deref().is_some_and(|v| v != "none") && !more {
        finding = finding
            .evidence("As this is a virtual machine, its host may give the NIC more queues.");
    }
    Some(finding)
}

/// More channels, where the NIC has them: hardware spreads packets at no cost.
pub(super) fn more_queues(nic: &Nic, useful: usize) -> Option<ProposedChange> {
    let channels = nic.channels?;
    let (now, most) = (channels.combined?, channels.combined_max?);
    let after = most.min(u32::try_from(useful).unwrap_or(u32::MAX));
    (after > now).then(|| {
        ProposedChange::new(
            NicSetting::new(&nic.name, Ethtool::Channels),
            Some(format!("combined {now}")),
            format!("combined {after}"),
            "The NIC can spread packets over more queues itself.",
        )
    })
}
