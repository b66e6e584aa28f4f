//! Drivers that hold more than their link sends in a few milliseconds.
//!
//! Input: the byte queue limit of each transmit queue, and the speed of the link. Output: one finding for each NIC whose
//! packets wait that long below all qdiscs, where nothing sorts them: an urgent packet waits behind what is there already.
//! The kernel raises the limit when the device runs dry between two interrupts, so segmented sends and moderated
//! interrupts on a slow link raise it far beyond what the link needs.
//!
//! Rules: lib/dynamic_queue_limits.c, Documentation/ABI/testing/sysfs-class-net-queues (`limit_max`); Corbet,
//! "Network transmit queue limits", <https://lwn.net/Articles/454390/>.

use crate::{Check, CheckOutcome, Context, severity};
use nearpath_model::units::{bytes, time};
use nearpath_model::{
    ByteLimit, Finding, Nic, NicKind, ProposedChange, QueueFile, QueueId, SettingFile, Subject,
};

pub(super) const CHECK: Check = Check::new(
    "byte_queue_limit",
    "drivers that hold more than their link sends in milliseconds",
    run,
);

/// What a driver of a healthy host holds is sent within this time, in ns.
const WAIT_NS: u64 = 2_000_000;
/// What is proposed to be sent within this time, in ns: longer than an interrupt is late.
const ENOUGH_NS: u64 = 1_000_000;
/// The header and check sequence of a frame, in bytes.
const HEADER_BYTES: u64 = 18;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    for nic in context.hardware_nics() {
        let Some((queue, limit)) = largest(nic) else { continue };
        match nic.speed_mbps {
            Some(mbps) if mbps > 0 => {
                outcome.findings.extend(finding(context, nic, queue, limit, mbps));
            }
            // What a hypervisor passes on has no speed of its own.
            _ if nic.kind == NicKind::Virtio => {}
            _ => outcome.not_checked(format!(
                "how long packets wait in the driver of {} is unknown: its speed is",
                nic.name
            )),
        }
    }
    outcome
}

/// The queue with the largest limit.
fn largest(nic: &Nic) -> Option<(QueueId, ByteLimit)> {
    let limits = nic.tx_queues.iter().filter_map(|queue| Some((queue.queue, queue.byte_limit?)));
    limits.max_by_key(|(_, limit)| limit.limit)
}

fn finding(
    context: &Context<'_>,
    nic: &Nic,
    queue: QueueId,
    limit: ByteLimit,
    mbps: u64,
) -> Option<Finding> {
    let wait_ns = limit.sent_in_ns(mbps);
    if wait_ns < WAIT_NS {
        return None;
    }
    let rate = context.statistic(nic, "tx_packets").and_then(|count| context.rate(count));
    let title = format!("{}: its driver holds up to {} of packets", nic.name, time(wait_ns));
    let mut finding = Finding::new(severity::of_traffic(rate), title)
        .about([Subject::Nic(nic.name.clone())])
        .evidence(format!(
            "The byte limit of tx-{queue} has grown to {} ({} bytes); the link sends {mbps} Mb/s.",
            bytes(limit.limit),
            limit.limit
        ))
        .evidence("Below the qdisc nothing sorts packets: an urgent one waits behind all of them.");
    finding.changes = changes(nic, mbps);
    Some(finding)
}

/// A bound for each queue that holds too much.
fn changes(nic: &Nic, mbps: u64) -> Vec<ProposedChange> {
    // At least two full frames, so that one is sent while the other is completed.
    let frames = 2 * (nic.mtu_bytes.map_or(1500, u64::from) + HEADER_BYTES);
    let enough = (ENOUGH_NS.saturating_mul(mbps) / 8_000).max(frames);
    let change = |queue: &nearpath_model::TxQueue| {
        let limit = queue.byte_limit?;
        (limit.sent_in_ns(mbps) >= WAIT_NS && limit.limit_max > enough).then(|| {
            ProposedChange::new(
                SettingFile::queue(&nic.name, queue.queue, QueueFile::ByteLimitMax),
                Some(limit.limit_max.to_string()),
                enough.to_string(),
                format!(
                    "{} is what the link sends in {}; the price: with rare interrupts the device may run dry.",
                    bytes(enough),
                    time(ENOUGH_NS)
                ),
            )
        })
    };
    nic.tx_queues.iter().filter_map(change).collect()
}
