//! Receive-side scaling: an indirection table that gives each CPU near the NIC an equal share, and a usable hash key.
//!
//! Input: the table, the planned CPU of each queue's interrupt, and the n-tuple rules. Output: a new table, if some CPU gets
//! a quarter more than its share, or if a queue with a distant interrupt or a reserved queue gets hash values. Queues on
//! the same CPU split its share: three queues on two CPUs get the weights 1, 2, 1.
//!
//! A table that excludes queues but is otherwise even may be intentional (n-tuple rules, AF_XDP) and is not changed. A key
//! of identical bytes hashes similar flows alike: it is replaced by the key of the specification.
//!
//! Rules: the check `rss_uneven`, ethtool(8) `-X`, Microsoft's "Verifying the RSS hash calculation".

use super::Planner;
use super::draft::{Draft, DraftChange};
use super::situation::Situation;
use crate::ethtool::{Table, key_bytes};
use nearpath_diagnose::cpus_near_node;
use nearpath_model::units::percent;
use nearpath_model::{CpuId, Ethtool, Nic, NicSetting, QueueId, Rss, Target};
use std::collections::{BTreeMap, BTreeSet};

pub(super) const PLANNER: Planner = Planner {
    name: "rss",
    plans: "an indirection table with equal shares for near CPUs, and a usable hash key",
    run,
};

/// A CPU with this factor of its share is overloaded.
const TOO_MUCH: f64 = 1.25;

/// The key of Microsoft's specification. Hashing addresses and ports uses at most 40 bytes of a key; the rest is
/// unused.
const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    for nic in situation.hardware() {
        match &nic.rss {
            Some(rss) => {
                table(situation, draft, nic, rss);
                key(draft, nic, rss);
            }
            None if draft.is_reserved(nic) => draft.note(format!(
                "the indirection table of {} is not available: other packets may hash to the queue \
                 of a priority",
                nic.name
            )),
            None => {}
        }
    }
}

fn table(situation: &Situation<'_>, draft: &mut Draft, nic: &Nic, rss: &Rss) {
    let entries: Vec<u32> = rss.indirection.iter().map(|queue| queue.0).collect();
    if entries.is_empty() || nic.rx_queues.len() < 2 {
        return;
    }
    let target = Target::from(NicSetting::new(&nic.name, Ethtool::Rss));
    let found = situation.proposed(&target).map(|(finding, _)| finding);
    // A table that only excludes queues overloads none.
    let uneven = found.is_some_and(|finding| finding.cost.share_percent.is_some());
    let Some(queues) = queues(situation, draft, nic, &entries, uneven) else { return };
    let why = match reason(situation, draft, nic, &entries, &queues) {
        Some(why) => why,
        None if uneven => found.map(|finding| finding.title.clone()).unwrap_or_default(),
        None => return,
    };
    let Some(after) = spread(&queues, entries.len()) else {
        return draft
            .note(format!("the indirection table of {} is too small for its queues", nic.name));
    };
    let before = Table::of(entries);
    if before == after {
        return;
    }
    draft.add(DraftChange {
        id: format!("{}/rss", nic.name),
        target,
        before: before.to_string().into(),
        after: after.to_string().into(),
        why,
        finding: found.filter(|_| uneven).map(|finding| finding.check.clone()),
    });
}

/// The queues that should receive hashed packets, with their CPUs; `None` if the table should not be changed.
fn queues(
    situation: &Situation<'_>,
    draft: &mut Draft,
    nic: &Nic,
    entries: &[u32],
    uneven: bool,
) -> Option<BTreeMap<QueueId, CpuId>> {
    let used: BTreeSet<u32> = entries.iter().copied().collect();
    let ruled: BTreeSet<QueueId> =
        nic.ntuple.iter().flatten().filter_map(|rule| rule.queue).collect();
    let mut left_out = Vec::new();
    let mut queues = BTreeMap::new();
    for queue in &nic.rx_queues {
        let number = queue.queue;
        let is_used = used.contains(&number.0);
        if draft.reserved(nic.ifindex, number) || (!is_used && ruled.contains(&number)) {
            continue;
        }
        if !is_used && !uneven {
            left_out.push(number.to_string());
            continue;
        }
        let irq = queue.irq.and_then(|number| situation.irq(number))?;
        let cpus = draft.irq_cpus(irq).filter(|cpus| cpus.len() == 1)?;
        queues.insert(number, cpus.first()?);
    }
    if !left_out.is_empty() {
        let (verb, which) = if left_out.len() == 1 { ("is", "queue") } else { ("are", "queues") };
        draft.note(format!(
            "{which} {} of {} {verb} excluded from its indirection table, possibly on purpose: not \
             changed",
            left_out.join(", "),
            nic.name
        ));
    }
    let near = cpus_near_node(&situation.host.topology, nic.numa_node);
    if queues.values().any(|cpu| near.contains(*cpu)) {
        queues.retain(|_, cpu| near.contains(*cpu));
    }
    (!queues.is_empty()).then_some(queues)
}

/// Why the table should be changed; `None` if it is good enough.
fn reason(
    situation: &Situation<'_>,
    draft: &Draft,
    nic: &Nic,
    entries: &[u32],
    queues: &BTreeMap<QueueId, CpuId>,
) -> Option<String> {
    let misplaced: BTreeSet<u32> =
        entries.iter().filter(|n| !queues.contains_key(&QueueId(**n))).copied().collect();
    if let Some(queue) = misplaced.first().map(|queue| QueueId(*queue)) {
        if draft.reserved(nic.ifindex, queue) {
            return Some(format!("queue {queue} of {} is reserved for a VLAN priority", nic.name));
        }
        let irq = nic.rx_queues.iter().find(|q| q.queue == queue).and_then(|q| q.irq);
        let cpu =
            irq.and_then(|irq| situation.irq(irq)).and_then(|irq| draft.irq_cpus(irq)?.first());
        let cpu = cpu.map_or_else(|| "elsewhere".to_owned(), |cpu| format!("to CPU {cpu}"));
        return Some(format!(
            "the interrupt of queue {queue} of {} goes {cpu}, which is not near it",
            nic.name
        ));
    }
    let mut by_cpu: BTreeMap<CpuId, usize> = queues.values().map(|cpu| (*cpu, 0)).collect();
    for cpu in entries.iter().filter_map(|queue| queues.get(&QueueId(*queue))) {
        *by_cpu.entry(*cpu).or_default() += 1;
    }
    let fair = entries.len() as f64 / by_cpu.len() as f64;
    let (cpu, most) = by_cpu.iter().max_by_key(|(_, n)| **n)?;
    // In a small table one extra entry is acceptable.
    (*most as f64 > (fair * TOO_MUCH).max(fair + 1.0)).then(|| {
        format!(
            "CPU {cpu} gets {} of the hash values of {}; an equal share is {}",
            percent(*most as f64 / entries.len() as f64),
            nic.name,
            percent(1.0 / by_cpu.len() as f64)
        )
    })
}

/// The table with equal shares per CPU; `None` if it has too few entries.
fn spread(queues: &BTreeMap<QueueId, CpuId>, size: usize) -> Option<Table> {
    let mut on_cpu: BTreeMap<CpuId, u32> = BTreeMap::new();
    queues.values().for_each(|cpu| *on_cpu.entry(*cpu).or_default() += 1);
    // The total is a common multiple of the numbers of queues per CPU.
    let whole = on_cpu.values().try_fold(1u32, |whole, n| {
        whole.checked_mul(n / gcd(whole, *n)).filter(|whole| *whole <= 1 << 16)
    });
    let last = queues.last_key_value()?.0.0;
    let weight = |number: u32, whole: u32| {
        let cpu = queues.get(&QueueId(number))?;
        whole.checked_div(*on_cpu.get(cpu)?)
    };
    let weights =
        |whole: u32| (0..=last).map(|n| weight(n, whole).unwrap_or(0)).collect::<Vec<_>>();
    let fits = |weights: &Vec<u32>| {
        weights.iter().map(|weight| u64::from(*weight)).sum::<u64>() <= size as u64
    };
    let each = || (0..=last).map(|n| u32::from(queues.contains_key(&QueueId(n)))).collect();
    // Equal shares per queue if the exact weights do not fit the table.
    let weights = whole.map(weights).filter(fits).or_else(|| Some(each()).filter(fits))?;
    if weights.windows(2).all(|pair| pair[0] == pair[1]) {
        return Some(Table::Equal(last.saturating_add(1)));
    }
    Some(Table::of(Table::Weight(weights).entries(size)?))
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Replaces a key of identical bytes.
fn key(draft: &mut Draft, nic: &Nic, rss: &Rss) {
    let Some(now) = &rss.key else { return };
    let Some(bytes) = key_bytes(now) else { return };
    if bytes.len() < 2 || bytes.windows(2).any(|pair| pair[0] != pair[1]) {
        return;
    }
    let after: Vec<String> =
        KEY.iter().cycle().take(bytes.len()).map(|byte| format!("{byte:02x}")).collect();
    draft.add(DraftChange {
        id: format!("{}/rss-key", nic.name),
        target: NicSetting::new(&nic.name, Ethtool::RssKey).into(),
        before: now.clone().into(),
        after: after.join(":").into(),
        why: format!(
            "all bytes of the hash key of {} are {:02x}: similar flows hash alike",
            nic.name,
            bytes.first().copied().unwrap_or(0)
        ),
        finding: None,
    });
}
