//! The registry of tables: one row each, with its columns. Files, readers and docs/recordings.md follow it.

/// Version of the tables, in each file's footer as `nearpath.schema`. A new column does not change it; a column with
/// another meaning does.
pub const SCHEMA: u32 = 1;

/// What a column holds. All columns of a table's own may be null: unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A whole number: INT64.
    Count,
    /// A number: DOUBLE.
    Real,
    /// Text: UTF8.
    Text,
}

/// A column.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// A few words.
    pub help: &'static str,
}

/// A table with its own columns; those of [`COMMON`] come first.
#[derive(Debug, Clone, Copy)]
pub struct TableSpec {
    /// Which one.
    pub table: Table,
    /// The name, and the folder of its files.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// Its columns.
    pub columns: &'static [Column],
}

/// Columns that each table begins with, never null: name, type and description.
pub const COMMON: [(&str, &str, &str); 4] = [
    ("time", "timestamp", "end of the interval, in UTC, to the microsecond"),
    ("interval_s", "real", "length of the interval; 0 of a still picture"),
    ("host", "text", "name of the host"),
    ("boot", "text", "the kernel's boot id"),
];

macro_rules! tables {
    ($($id:ident $name:literal $help:literal { $($column:ident $kind:ident $about:literal)* })*) => {
        /// A table: its place in [`TABLES`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Table {
            $(#[doc = $help] $id,)*
        }

        /// All tables.
        pub const TABLES: &[TableSpec] = &[$(TableSpec {
            table: Table::$id,
            name: $name,
            help: $help,
            columns: &[$(Column { name: stringify!($column), kind: Kind::$kind, help: $about }),*],
        }),*];
    };
}

tables! {
    Paths "paths" "Whole packet paths that ended in the interval." {
        path Text "`receive`, `transmit`, `forward`, `receive_from_nic`, …"
        packets Count "packets"
        total_ns Count "sum of their latencies"
        max_ns Count "the longest, if it is the longest since the instrument started"
        other_cpu Count "packets that changed the CPU"
        other_llc Count "of these, those that changed the last-level cache"
        other_node Count "of these, those that changed the NUMA node"
    }
    PathBuckets "path_buckets" "Latencies of whole paths: the buckets of the histogram that are not empty." {
        path Text "as in `paths`"
        upper_ns Count "longest latency of the bucket; each is 2^(1/16) times the one before"
        packets Count "packets"
    }
    Spans "spans" "Packets that passed two adjacent stages in the interval." {
        direction Text "`rx`, `tx`"
        from_stage Text "the first stage"
        to_stage Text "the second"
        packets Count "packets"
        total_ns Count "sum of their latencies"
        max_ns Count "the longest, if it is the longest since the instrument started"
        other_cpu Count "packets that changed the CPU"
        other_llc Count "of these, those that changed the last-level cache"
        other_node Count "of these, those that changed the NUMA node"
    }
    SpanBuckets "span_buckets" "Latencies of spans: the buckets of the histogram that are not empty." {
        direction Text "`rx`, `tx`"
        from_stage Text "the first stage"
        to_stage Text "the second"
        upper_ns Count "longest latency of the bucket"
        packets Count "packets"
    }
    Packets "packets" "The fate of the packets that stages observed, and what the watch over every received packet counted." {
        outcome Text "`started`, `completed`, `dropped`, `abandoned`, `collided`, `sampled_out`; `watched`, `unstamped`, `late`, `explained`"
        packets Count "packets"
    }
    Causes "causes" "Why slow packets (1 in 10,000 of a span, or 20 per second above 1 ms) were late." {
        cause Text "`runqueue`, `softirq`, `asleep`, …"
        culprit Text "a task, an interrupt, a queueing discipline; null if there is none"
        ns Count "time that they waited for this"
    }
    Outliers "outliers" "Single slow packets." {
        packet Count "the same number for all spans of one packet"
        direction Text "`rx`, `tx`"
        from_stage Text "start of the slow span"
        to_stage Text "its end"
        span_ns Count "its length"
        from_cpu Count "CPU of the first stage"
        cpu Count "CPU of the second: the budget is about this one"
        node Count "its node"
        flow Text "protocol, addresses and ports"
        at_ns Count "end of the span on CLOCK_MONOTONIC"
        document Text "all of it, with budget and stages, as in the JSON of `measure stages`"
    }
    OutlierBudgets "outlier_budgets" "Where the time of each slow packet went." {
        packet Count "as in `outliers`"
        at_ns Count "as in `outliers`"
        cause Text "as in `causes`"
        culprit Text "as in `causes`"
        ns Count "time"
    }
    Locality "locality" "Packets by the distance between the CPU that allocated and the one that freed them." {
        direction Text "`rx`, `tx`"
        distance Text "`same_cpu`, `same_core`, `same_llc`, `same_node`, `other_node`, `unknown`"
        packets Count "packets"
    }
    LocalityCpus "locality_cpus" "The same by pair of CPUs." {
        direction Text "`rx`, `tx`"
        from_cpu Count "the CPU that allocated them"
        to_cpu Count "the CPU that freed them"
        from_node Count "its node"
        to_node Count "its node"
        packets Count "packets"
    }
    Accepts "accepts" "Connections accepted by the distance between the receiving and the accepting CPU." {
        listener Text "address and port"
        netns Count "inode of the network namespace"
        distance Text "`same_cpu`, `same_llc`, `same_node`, `other_node`, `unknown`"
        accepts Count "connections"
    }
    Drops "drops" "Packets that the kernel dropped." {
        reason Text "the kernel's name; null before Linux 5.17"
        function Text "the kernel function that dropped them"
        device Text "the interface; null if unknown"
        protocol Text "`UDP`, `TCP`, …"
        packets Count "packets"
        bytes Count "their bytes"
    }
    Softnet "softnet" "Counters of /proc/net/softnet_stat by CPU; CPUs on which none changed are left out." {
        cpu Count "the CPU"
        node Count "its node"
        processed Count "packets from backlogs and by NAPI"
        dropped Count "packets dropped as a backlog was full"
        squeezed Count "times that NET_RX used up its budget or time"
        received_rps Count "interrupts received for RPS"
        flow_limited Count "packets dropped by the flow limit"
    }
    Irqs "irqs" "Interrupts of NICs' queues by CPU." {
        device Text "the interface"
        queue Text "number of the queue; `rx0`, `tx0` where interrupts are separate"
        irq Count "number of the interrupt"
        cpu Count "the CPU that took them"
        interrupts Count "interrupts"
    }
    Numa "numa" "Counters of each node's numastat." {
        node Count "the node"
        event Text "`numa_hit`, `numa_miss`, `other_node`, …"
        pages Count "pages"
    }
    Memory "memory" "Where the memory of the largest processes is: a picture, not an increase." {
        pid Count "process id"
        comm Text "its name"
        node Count "the node"
        bytes Count "bytes there"
    }
    Tcp "tcp" "Connections with traffic in the interval, those with the most bytes." {
        local Text "address and port"
        peer Text "address and port"
        comm Text "name of the process"
        rtt_ns Count "smoothed round-trip time at the end"
        rttvar_ns Count "its mean deviation"
        min_rtt_ns Count "the kernel's minimum"
        bytes_out Count "bytes acknowledged"
        bytes_in Count "bytes received"
        segments_out Count "segments sent"
        segments_in Count "segments received"
        retransmitted Count "segments sent again"
    }
    TcpLimits "tcp_limits" "Time that connections were limited, summed over all with traffic." {
        limited_by Text "`application`, `reader`, `receive_window`, …"
        seconds Real "time"
    }
    Workers "workers" "Threads that poll, as their processes report: totals since they started, or were reset." {
        app Text "name of the process"
        pid Count "its id"
        lcore Count "number of the worker"
        tid Count "thread id"
        busy_cycles Count "cycles spent on packets"
        total_cycles Count "all cycles"
        polls Count "polls of its queues"
        empty_polls Count "those without a packet"
        packets Count "packets received"
        run_ns Count "time that its thread ran"
        delay_ns Count "time that it could have run and did not"
    }
    Ports "ports" "Ports of processes that poll: totals since the process started." {
        app Text "name of the process"
        pid Count "its id"
        port Text "a bus address or a name"
        rx_packets Count "packets received"
        imissed Count "packets dropped by the NIC as its queue was full"
        rx_nombuf Count "packets dropped as no buffer was free"
    }
    Vms "vms" "Packets into virtual machines in the interval."  {
        vm Text "its name, or that of its program"
        pid Count "its process; null if unknown"
        span Text "`interrupt_to_handler`, `handler_to_vhost`, `vhost_to_kvm`, `vhost_wakeup`, `interrupt_to_kvm`, `write_to_kvm`, `kvm_to_guest`, `whole`"
        packets Count "packets"
        max_ns Count "the longest, if it is the longest since the instrument started"
    }
    VmBuckets "vm_buckets" "Latencies of packets into virtual machines: the buckets of the histogram that are not empty." {
        vm Text "as in `vms`"
        span Text "as in `vms`"
        upper_ns Count "longest latency of the bucket"
        packets Count "packets"
    }
    Settings "settings" "Changes in nearpath's journal: a picture." {
        id Count "number in the journal"
        target Text "what was changed"
        state Text "`applied`, `drifted`, `lost`, `undone`; null if it cannot be seen"
    }
    Findings "findings" "What was wrong." {
        check_name Text "name of the check"
        severity Text "`critical`, `warning`, `info`"
        subject Text "what it is about"
        title Text "one line"
        cost_s Real "seconds that packets waited for it per second"
        share_percent Real "share that is affected"
        document Text "all of it, as in the JSON of `diagnose`"
    }
    Cost "cost" "What each instrument observed, and what that cost." {
        instrument Text "name of the instrument"
        observed_s Real "time that it observed; the divisor of its rates"
        cpu_s Real "CPU time of its programs in the kernel"
        events_lost Count "events that the kernel dropped"
    }
}

impl Table {
    /// Its row of the registry.
    pub fn spec(self) -> &'static TableSpec {
        &TABLES[self as usize]
    }

    /// The table of a name.
    pub fn by_name(name: &str) -> Option<Self> {
        TABLES.iter().find(|spec| spec.name == name).map(|spec| spec.table)
    }
}

impl TableSpec {
    /// Place of a column among its own.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_plain_in_every_engine() {
        // Words that SQL reserves in one of the engines would have to be quoted there.
        let reserved = [
            "from", "to", "limit", "group", "order", "time_s", "user", "table", "interval", "check",
        ];
        let mut tables = BTreeSet::new();
        for (at, spec) in TABLES.iter().enumerate() {
            assert_eq!(spec.table as usize, at);
            assert_eq!(Table::by_name(spec.name), Some(spec.table));
            assert!(tables.insert(spec.name));
            assert!(spec.help.ends_with('.'), "{}", spec.name);
            let common = COMMON.iter().map(|(name, ..)| *name);
            let mut columns = BTreeSet::new();
            for name in common.chain(spec.columns.iter().map(|column| column.name)) {
                assert!(columns.insert(name), "{name} twice in {}", spec.name);
                assert!(!reserved.contains(&name), "{name}");
                assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
            }
        }
    }
}
