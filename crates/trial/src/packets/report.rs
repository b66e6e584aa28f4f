//! Results of a packet benchmark: plain data.

use super::kernel::{CpuCost, DeviceDrops, Kernel};
use super::plan::Offered;
use nearpath_model::{CpuId, Unknown};
use serde::{Deserialize, Serialize};

/// Version of the JSON form of [`PacketsReport`].
pub const PACKETS_SCHEMA: u32 = 1;
/// A sender below this share of the rate did not offer it.
const REACHED: f64 = 0.99;

/// Packets per second of a path, in one direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PacketsReport {
    /// Version of this form.
    pub schema: u32,
    /// Address and port of the sink.
    pub target: String,
    /// The offered rate.
    pub offered: Offered,
    /// Bytes of UDP payload.
    pub size_bytes: u32,
    /// Flows.
    pub flows: u16,
    /// Whether both sides are one host, whose CPUs then did the work of both.
    pub same_host: bool,
    /// The trial that counts: the only one, or the highest rate found by a search; `None` if it found none.
    pub result: Option<PacketsTrial>,
    /// For a search: its trials in order.
    pub trials: Vec<PacketsTrial>,
    /// Whether it was stopped early.
    pub ended_early: bool,
    /// What is unknown, with the reason.
    pub unknown: Vec<Unknown>,
}

/// One trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PacketsTrial {
    /// Requested packets per second; `None`: unlimited.
    pub asked_per_s: Option<f64>,
    /// From the start to the last packet.
    pub duration_s: f64,
    /// Packets accepted by the sender's kernel.
    pub sent: u64,
    /// The same per second.
    pub sent_per_s: f64,
    /// Whether the sender reached the requested rate.
    pub reached: bool,
    /// Packets received, without duplicates.
    pub received: u64,
    /// The same per second of sending.
    pub received_per_s: f64,
    /// Packets lost.
    pub lost: u64,
    /// Their share.
    pub loss_percent: f64,
    /// Packets that arrived after a later one of their flow.
    pub reordered: u64,
    /// Duplicates.
    pub duplicated: u64,
    /// Drops counted by the kernels of both sides in the meantime.
    pub drops: Drops,
    /// CPU time of the sending threads, per packet sent.
    pub sender_threads_ns: Option<f64>,
    /// CPU time of the receiving threads, per packet received.
    pub receiver_threads_ns: Option<f64>,
    /// CPU time by CPU.
    pub cpus: Vec<CpuShare>,
}

/// Counted drops. Except for those of the sockets they include all traffic, and one packet may be counted at
/// several places.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Drops {
    /// Send calls that the sender's kernel refused; their packets were sent later.
    pub refused_calls: u64,
    /// By the sender's interfaces.
    pub sender_devices: Vec<DeviceDrops>,
    /// At the sender host's backlogs.
    pub sender_backlog: Option<u64>,
    /// By the receiver's interfaces.
    pub receiver_devices: Vec<DeviceDrops>,
    /// At the receiver host's backlogs.
    pub receiver_backlog: Option<u64>,
    /// At the receiving sockets, whose buffers were full: exact.
    pub socket: Option<u64>,
}

/// Owner of a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CpuSide {
    /// The sending host.
    Sender,
    /// The receiving host.
    Receiver,
    /// The one host that does both.
    Both,
}

/// Activity of a CPU in a trial, including everything that ran there.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CpuShare {
    /// The owner.
    pub side: CpuSide,
    /// The CPU.
    pub cpu: CpuId,
    /// Busy share of the trial, 0 to 1.
    pub busy: f64,
    /// Per packet, of all CPUs together: packets sent on the sender's side, else packets received.
    pub user_ns: f64,
    /// As above.
    pub system_ns: f64,
    /// As above.
    pub irq_ns: f64,
    /// As above.
    pub softirq_ns: f64,
}

/// The counts of both sides.
#[derive(Debug, Default)]
pub(super) struct Sides {
    pub(super) asked_per_s: Option<f64>,
    pub(super) same_host: bool,
    pub(super) sent: u64,
    pub(super) duration_ns: u64,
    pub(super) refused: u64,
    pub(super) sender_used_ns: u64,
    pub(super) sender: Kernel,
    pub(super) counted: super::wire::Counted,
}

impl PacketsTrial {
    pub(super) fn of(sides: Sides) -> Self {
        let Sides { asked_per_s, same_host, sent, duration_ns, sender, counted, .. } = sides;
        let receiver = counted.kernel;
        let seconds = duration_ns as f64 / 1e9;
        let per_s = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        // The peer is another program: its values are bounded by what was sent.
        let received = counted.received.min(sent);
        let lost = sent - received;
        let each = |ns: u64, packets: u64| (packets > 0).then(|| ns as f64 / packets as f64);
        let share =
            |side, packets: u64| move |cpu: &CpuCost| CpuShare::of(side, cpu, packets, duration_ns);
        let cpus = if same_host {
            receiver.cpus.iter().map(share(CpuSide::Both, received)).collect()
        } else {
            let sending = sender.cpus.iter().map(share(CpuSide::Sender, sent));
            sending.chain(receiver.cpus.iter().map(share(CpuSide::Receiver, received))).collect()
        };
        Self {
            asked_per_s,
            duration_s: seconds,
            sent,
            sent_per_s: per_s(sent),
            reached: asked_per_s.is_none_or(|asked| per_s(sent) >= asked * REACHED),
            received,
            received_per_s: per_s(received),
            lost,
            loss_percent: if sent > 0 { lost as f64 * 100.0 / sent as f64 } else { 0.0 },
            reordered: counted.reordered,
            duplicated: counted.duplicated,
            drops: Drops {
                refused_calls: sides.refused,
                sender_devices: sender.devices,
                sender_backlog: sender.backlog_drops,
                receiver_devices: receiver.devices,
                receiver_backlog: receiver.backlog_drops,
                socket: counted.socket_drops,
            },
            sender_threads_ns: each(sides.sender_used_ns, sent),
            receiver_threads_ns: each(counted.threads_ns, received),
            cpus,
        }
    }

    /// Whether no more than this was lost, of a rate that was offered.
    pub(super) fn passes(&self, max_loss_percent: f64) -> bool {
        self.sent > 0 && self.loss_percent <= max_loss_percent
    }
}

impl CpuShare {
    fn of(side: CpuSide, cost: &CpuCost, packets: u64, duration_ns: u64) -> Self {
        let each = |ns: u64| if packets > 0 { ns as f64 / packets as f64 } else { 0.0 };
        let busy = cost.busy_ns() as f64 / duration_ns.max(1) as f64;
        Self {
            side,
            cpu: cost.cpu,
            busy: busy.min(1.0),
            user_ns: each(cost.user_ns),
            system_ns: each(cost.system_ns),
            irq_ns: each(cost.irq_ns),
            softirq_ns: each(cost.softirq_ns),
        }
    }
}
