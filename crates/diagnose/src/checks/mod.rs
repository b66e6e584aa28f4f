//! The registry of checks: one file each, two lines here (the module and the entry), a folder of
//! fixtures, and a section of docs/checks.md.

use crate::Check;

mod accepts_off_cpu;
mod answer_time;
mod autonuma_pinning;
mod bond_hash;
mod byte_queue_limit;
mod cgroup_throttling;
mod coalescing;
mod compaction_stalls;
mod conntrack;
mod cpu_power;
mod cpu_steal;
mod dpvs_limits;
mod driver_discards;
mod etf_delta;
mod gro_flush;
mod hugepages_node;
mod idle_wakeups;
mod irqbalance_conflict;
mod isolated_housekeeping;
mod isolcpus_boot_cpu;
mod ksoftirqd_starved;
mod late_packets;
mod latency_tail;
mod listen_overflows;
mod memory_policy;
mod mtu_mismatch;
mod neighbour_table;
mod net_rx_concentration;
mod net_threads_off_node;
mod nfqueue;
mod nic_drops;
mod nic_irq_node;
mod node_memory;
mod offloads_off;
mod ovs_masks;
mod ovs_port_rps;
mod ovs_rxq_affinity;
mod packet_drops;
mod pause_frames;
mod pcie_link;
mod process_memory;
mod protocol_drops;
mod qdisc_drops;
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
mod stack_time;
mod tap_queues;
mod taprio_gates;
mod tcp_congestion_control;
pub(crate) mod tcp_memory;
mod tcp_mss_mismatch;
mod tcp_options_off;
mod tcp_path_mtu;
mod tcp_reader;
mod tcp_receive_buffer;
mod tcp_retransmissions;
mod tcp_rtt_variance;
mod tcp_send_buffer;
mod tcp_timeouts;
mod tcp_unaccepted;
mod tcp_unanswered;
mod tcp_unsent_data;
mod tx_freed_elsewhere;
mod txtime_clock;
mod vm_device_irqs;
mod vm_halt_polling;
mod vm_queues;
mod vm_slow_packets;
mod vm_vcpus;
mod vm_vhost;
mod vm_zero_copy;
mod worker_disturbed;
mod worker_floating;
mod worker_isolation;
mod worker_kni;
mod worker_missed;
mod worker_node;
mod worker_saturated;
mod worker_smt;
mod xdp_generic;
mod xps_mismatch;
mod zone_reclaim;

/// All checks, by name.
pub const CHECKS: &[Check] = &[
    accepts_off_cpu::CHECK,
    answer_time::CHECK,
    autonuma_pinning::CHECK,
    bond_hash::CHECK,
    byte_queue_limit::CHECK,
    cgroup_throttling::CHECK,
    coalescing::CHECK,
    compaction_stalls::CHECK,
    conntrack::CHECK,
    cpu_power::CHECK,
    cpu_steal::CHECK,
    dpvs_limits::CHECK,
    driver_discards::CHECK,
    etf_delta::CHECK,
    gro_flush::CHECK,
    hugepages_node::CHECK,
    idle_wakeups::CHECK,
    irqbalance_conflict::CHECK,
    isolated_housekeeping::CHECK,
    isolcpus_boot_cpu::CHECK,
    ksoftirqd_starved::CHECK,
    late_packets::CHECK,
    latency_tail::CHECK,
    listen_overflows::CHECK,
    memory_policy::CHECK,
    mtu_mismatch::CHECK,
    neighbour_table::CHECK,
    net_rx_concentration::CHECK,
    net_threads_off_node::CHECK,
    nfqueue::CHECK,
    nic_drops::CHECK,
    nic_irq_node::CHECK,
    node_memory::CHECK,
    offloads_off::CHECK,
    ovs_masks::CHECK,
    ovs_port_rps::CHECK,
    ovs_rxq_affinity::CHECK,
    packet_drops::CHECK,
    pause_frames::CHECK,
    pcie_link::CHECK,
    process_memory::CHECK,
    protocol_drops::CHECK,
    qdisc_drops::CHECK,
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
    stack_time::CHECK,
    tap_queues::CHECK,
    taprio_gates::CHECK,
    tcp_congestion_control::CHECK,
    tcp_memory::CHECK,
    tcp_mss_mismatch::CHECK,
    tcp_options_off::CHECK,
    tcp_path_mtu::CHECK,
    tcp_reader::CHECK,
    tcp_receive_buffer::CHECK,
    tcp_retransmissions::CHECK,
    tcp_rtt_variance::CHECK,
    tcp_send_buffer::CHECK,
    tcp_timeouts::CHECK,
    tcp_unaccepted::CHECK,
    tcp_unanswered::CHECK,
    tcp_unsent_data::CHECK,
    tx_freed_elsewhere::CHECK,
    txtime_clock::CHECK,
    vm_device_irqs::CHECK,
    vm_halt_polling::CHECK,
    vm_queues::CHECK,
    vm_slow_packets::CHECK,
    vm_vcpus::CHECK,
    vm_vhost::CHECK,
    vm_zero_copy::CHECK,
    worker_disturbed::CHECK,
    worker_floating::CHECK,
    worker_isolation::CHECK,
    worker_kni::CHECK,
    worker_missed::CHECK,
    worker_node::CHECK,
    worker_saturated::CHECK,
    worker_smt::CHECK,
    xdp_generic::CHECK,
    xps_mismatch::CHECK,
    zone_reclaim::CHECK,
];
