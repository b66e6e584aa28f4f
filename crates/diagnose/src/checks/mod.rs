//! The registry of checks: one file each, two lines here (the module and the entry), a folder of
//! fixtures, and a section of docs/checks.md.

use crate::Check;

mod accepts_off_cpu;
mod autonuma_pinning;
mod compaction_stalls;
mod cpu_steal;
mod idle_wakeups;
mod irqbalance_conflict;
mod isolated_housekeeping;
mod latency_tail;
mod net_rx_concentration;
mod nic_drops;
mod nic_irq_node;
mod ovs_port_rps;
mod reader_memory;
mod reader_migrations;
mod reader_placement;
mod rps_off;
mod rps_placement;
mod rss_uneven;
mod rx_freed_elsewhere;
mod slow_packets;
mod smt_siblings;
mod socket_buffers;
mod softnet;
mod tx_freed_elsewhere;
mod xps_mismatch;

/// All checks, by name.
pub const CHECKS: &[Check] = &[
    accepts_off_cpu::CHECK,
    autonuma_pinning::CHECK,
    compaction_stalls::CHECK,
    cpu_steal::CHECK,
    idle_wakeups::CHECK,
    irqbalance_conflict::CHECK,
    isolated_housekeeping::CHECK,
    latency_tail::CHECK,
    net_rx_concentration::CHECK,
    nic_drops::CHECK,
    nic_irq_node::CHECK,
    ovs_port_rps::CHECK,
    reader_memory::CHECK,
    reader_migrations::CHECK,
    reader_placement::CHECK,
    rps_off::CHECK,
    rps_placement::CHECK,
    rss_uneven::CHECK,
    rx_freed_elsewhere::CHECK,
    slow_packets::CHECK,
    smt_siblings::CHECK,
    socket_buffers::CHECK,
    softnet::CHECK,
    tx_freed_elsewhere::CHECK,
    xps_mismatch::CHECK,
];
