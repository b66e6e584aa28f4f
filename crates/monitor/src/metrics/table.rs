//! The rows.

use super::{Kind, Label, Metric, Unit};

macro_rules! metrics {
    ($($id:ident $name:literal $kind:ident $unit:ident [$($label:ident)*] $source:literal $help:literal $alert:literal)*) => {
        /// A metric: its place in [`METRICS`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Id {
            $(#[doc = $help] $id,)*
        }

        /// All metrics, in the order of the exposition.
        pub const METRICS: &[Metric] = &[$(Metric {
            id: Id::$id,
            name: $name,
            kind: Kind::$kind,
            unit: Unit::$unit,
            labels: &[$($label),*],
            help: $help,
            source: $source,
            alert: $alert,
        }),*];
    };
}

const DIRECTION: Label = Label {
    name: "direction",
    values: "`rx`, `tx`; of paths `receive_from_nic`, `receive`, `forward_from_nic`, `forward`, `transmit`, `kernel_transmit`, `watch`",
};
const FROM: Label = Label { name: "from", values: "a stage" };
const TO: Label = Label { name: "to", values: "a stage" };
const OUTCOME: Label = Label {
    name: "outcome",
    values: "`completed`, `dropped`, `abandoned`, `collided`, `sampled_out`",
};
const REASON: Label = Label { name: "reason", values: "the kernel's drop reason, or the function" };
const DEVICE: Label = Label { name: "device", values: "an interface; empty if unknown" };
const DISTANCE: Label = Label {
    name: "distance",
    values: "`same_cpu`, `same_core` (of locality only), `same_llc`, `same_node`, `other_node`, `unknown`",
};
const LISTENER: Label = Label { name: "listener", values: "address and port; `others` beyond 32" };
const CAUSE: Label =
    Label { name: "cause", values: "a cause of a budget: `runqueue`, `softirq`, …" };
const NODE: Label = Label { name: "node", values: "a NUMA node; `unknown`" };
const QUEUE: Label = Label {
    name: "queue",
    values: "number of a queue; `rx0`, `tx0` where interrupts are separate",
};
const EVENT: Label = Label {
    name: "event",
    values: "`numa_hit`, `numa_miss`, `numa_foreign`, `interleave_hit`, `local_node`, `other_node`",
};
const COMM: Label = Label { name: "comm", values: "name of a process; `others` beyond 16" };
const LIMIT: Label =
    Label { name: "limit", values: "`application`, `reader`, `receive_window`, …" };
const APP: Label = Label { name: "app", values: "name of a polling process" };
const LCORE: Label = Label { name: "lcore", values: "number of a worker" };
const PORT: Label =
    Label { name: "port", values: "a port of a polling process: a bus address or a name" };
const STATE: Label =
    Label { name: "state", values: "`applied`, `drifted`, `lost`, `undone`, `unknown`" };
const CHECK: Label = Label { name: "check", values: "name of a check" };
const SEVERITY: Label = Label { name: "severity", values: "`critical`, `warning`, `info`" };
const SUBJECT: Label = Label { name: "subject", values: "`nic eth0`, `cpu 3`, a span, or empty" };
const INSTRUMENT: Label = Label { name: "instrument", values: "name of an instrument" };
const VERSION: Label = Label { name: "version", values: "nearpath's version" };
const VM: Label = Label {
    name: "vm",
    values: "name of a virtual machine, or of its program if it has none; `others` beyond the 32 with most packets",
};
const SPAN: Label = Label {
    name: "span",
    values: "`interrupt_to_handler`, `handler_to_vhost`, `vhost_to_kvm`, `vhost_wakeup`, `interrupt_to_kvm`, `write_to_kvm`, `kvm_to_guest`, `whole`",
};
const EXPLAINED: Label = Label { name: "explained", values: "`yes`, `no`" };
const TIER: Label = Label { name: "tier", values: "`watch`, `causes`" };
const METRIC: Label = Label { name: "metric", values: "a metric" };

metrics! {
    PathLatency "nearpath_path_latency_seconds" Histogram Seconds [DIRECTION] "stages"
        "Latency of whole packet paths, from the first stage observed to the end."
        "p99 over three times yesterday's, above a floor of 100 µs"
    PathLatencyMax "nearpath_path_latency_max_seconds" Gauge Seconds [DIRECTION] "stages"
        "Longest path of the last minute."
        ""
    SpanLatency "nearpath_span_latency_seconds" Histogram Seconds [DIRECTION FROM TO] "stages"
        "Latency between two adjacent stages of a packet."
        ""
    SpanLatencyMax "nearpath_span_latency_max_seconds" Gauge Seconds [DIRECTION FROM TO] "stages"
        "Longest latency between the two stages in the last minute."
        ""
    Packets "nearpath_packets_total" Counter None [DIRECTION OUTCOME] "stages"
        "Packets observed by stages, by their fate; the kernel does not count fates by direction, so it is 'all'."
        ""
    SpanHops "nearpath_span_hops_total" Counter None [DIRECTION FROM TO DISTANCE] "stages"
        "Packets by the distance between the CPUs of two adjacent stages."
        ""
    LateSeconds "nearpath_late_seconds_total" Counter Seconds [CAUSE] "stages"
        "Time that slow packets (1 in 10,000 of a span, or 20 per second above 1 ms) waited, by cause."
        "more than half of the time has one cause, and it is more than 10 ms per second"
    WatchedPackets "nearpath_watched_packets_total" Counter None [] "stages"
        "Packets that readers received: the watch counts every one."
        ""
    LatePackets "nearpath_late_packets_total" Counter None [EXPLAINED] "stages"
        "Of these, packets later than 1 ms, by whether it is known why."
        "more than 20 in 5 minutes, and more than five times the rate of the hour before"
    WatchSeconds "nearpath_watch_seconds_total" Counter Seconds [TIER] "stages"
        "For how long packets were watched, and for how much of it what CPUs and readers did was recorded."
        ""
    Drops "nearpath_drops_total" Counter None [REASON DEVICE] "drops"
        "Packets that the kernel dropped."
        ""
    LocalityPackets "nearpath_locality_packets_total" Counter None [DIRECTION DISTANCE] "locality"
        "Packets by the distance between the CPU that allocated them and the one that freed them."
        "less than half of the packets stay on their CPU, and the share fell by 20 points in an hour"
    Accepts "nearpath_accepts_total" Counter None [LISTENER DISTANCE] "accepts"
        "Connections accepted, by the distance between the receiving and the accepting CPU."
        ""
    SoftnetProcessed "nearpath_softnet_processed_total" Counter None [NODE] "facts"
        "Packets taken from backlogs or by NAPI."
        ""
    SoftnetDropped "nearpath_softnet_dropped_total" Counter None [NODE] "facts"
        "Packets dropped as a backlog was full."
        "any in 5 minutes"
    SoftnetSqueezed "nearpath_softnet_squeezed_total" Counter None [NODE] "facts"
        "Times that NET_RX stopped because its budget or time was used up."
        "none: it is no sign of loss"
    SoftnetReceivedRps "nearpath_softnet_received_rps_total" Counter None [NODE] "facts"
        "Inter-processor interrupts received for RPS."
        ""
    SoftnetFlowLimited "nearpath_softnet_flow_limited_total" Counter None [NODE] "facts"
        "Packets dropped by the flow limit."
        ""
    QueueInterrupts "nearpath_queue_interrupts_total" Counter None [DEVICE QUEUE] "facts"
        "Interrupts of a queue."
        ""
    QueueIrqLocal "nearpath_queue_irq_local" Gauge None [DEVICE QUEUE] "facts"
        "1 if the interrupt of a queue is handled on the node of its device, 0 if on another."
        "0 for 5 minutes while it has interrupts"
    NumaPages "nearpath_numa_pages_total" Counter None [NODE EVENT] "facts"
        "Pages allocated on a node, from its numastat."
        ""
    ProcessMemory "nearpath_process_memory_bytes" Gauge Bytes [COMM NODE] "memory"
        "Memory of the largest processes by node."
        ""
    ProcessRemoteMemory "nearpath_process_remote_memory_bytes" Gauge Bytes [COMM] "memory"
        "Memory of the largest processes on nodes on which they do not run."
        "over 100 MB, or over 5 % of the process's memory, for 5 minutes"
    TcpRtt "nearpath_tcp_rtt_seconds" Histogram Seconds [] "tcp"
        "Smoothed round-trip time of connections, each connection with traffic once per collection."
        ""
    TcpRttvar "nearpath_tcp_rttvar_seconds" Histogram Seconds [] "tcp"
        "Mean deviation of the round-trip time, each connection with traffic once per collection."
        "its 99th percentile is over 2 ms for 1 minute"
    TcpLimited "nearpath_tcp_limited_seconds_total" Counter Seconds [LIMIT] "tcp"
        "Time that connections were limited, by what limited them."
        ""
    WorkerBusy "nearpath_worker_busy_ratio" Gauge Ratio [APP LCORE] "workers"
        "Share of its cycles that a polling worker spent on packets."
        ""
    Imissed "nearpath_imissed_total" Counter None [PORT] "workers"
        "Packets that a NIC dropped as a worker did not poll its queue in time."
        "any in 5 minutes"
    VmLatency "nearpath_vm_latency_seconds" Histogram Seconds [VM SPAN] "vms"
        "Latency of packets into virtual machines by vhost-net; the sum is estimated from the buckets, within 2.2 %."
        ""
    SteeringSettings "nearpath_steering_settings" Gauge None [STATE] "steering"
        "Changes in nearpath's journal, by their current state."
        "any drifted or lost for 5 minutes"
    FindingActive "nearpath_finding_active" Gauge None [CHECK SEVERITY SUBJECT] "findings"
        "1 while a finding holds; 0 for 10 minutes after it ended."
        "critical for 5 minutes"
    FindingCost "nearpath_finding_cost_seconds" Gauge Seconds [CHECK SUBJECT] "findings"
        "Seconds that packets wait per second because of a finding."
        ""
    ObservingCpu "nearpath_observing_cpu_seconds_total" Counter Seconds [] "daemon"
        "CPU time of the daemon and of its programs in the kernel."
        "over 2 % of a CPU for 10 minutes"
    Observed "nearpath_observed_seconds_total" Counter Seconds [INSTRUMENT] "daemon"
        "Time that an instrument observed: the divisor of rates of what it counts."
        ""
    EventsLost "nearpath_events_lost_total" Counter None [INSTRUMENT] "daemon"
        "Events that the kernel dropped: counts are too low by them."
        "over 1 % of the packets for 10 minutes"
    InstrumentUp "nearpath_instrument_up" Gauge None [INSTRUMENT] "daemon"
        "1 if an instrument can observe here, 0 if the kernel refuses; the log has the reason."
        ""
    WebConfigCurrent "nearpath_web_config_last_reload_successful" Gauge None [] "daemon"
        "1 if the file of --web-config and its certificate and key are in use as they are, 0 if they have changed and cannot be used; the log has the reason."
        ""
    LeftOut "nearpath_series_left_out_total" Counter None [METRIC] "daemon"
        "Values counted in the series 'others', or left out, as there are too many series."
        ""
    CollectionSeconds "nearpath_collection_seconds" Gauge Seconds [] "daemon"
        "Time that the last collection of facts took."
        ""
    BuildInfo "nearpath_build_info" Info None [VERSION] "daemon"
        "The program that exports this."
        ""
}
