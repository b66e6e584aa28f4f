//! The sysctls that may be written.

use super::Form;
use super::file_of::files;
use std::fmt;

files! {
    /// A sysctl (Documentation/admin-guide/sysctl, Documentation/networking/ip-sysctl.rst).
    Sysctl {
        RpsSockFlowEntries = "net.core.rps_sock_flow_entries": Form::PowerOfTwo,
        NetdevBudget = "net.core.netdev_budget": Form::Numbers(1),
        NetdevBudgetUsecs = "net.core.netdev_budget_usecs": Form::Numbers(1),
        NetdevMaxBacklog = "net.core.netdev_max_backlog": Form::Numbers(1),
        DevWeight = "net.core.dev_weight": Form::Numbers(1),
        BusyPoll = "net.core.busy_poll": Form::Numbers(1),
        BusyRead = "net.core.busy_read": Form::Numbers(1),
        RmemMax = "net.core.rmem_max": Form::Numbers(1),
        WmemMax = "net.core.wmem_max": Form::Numbers(1),
        RmemDefault = "net.core.rmem_default": Form::Numbers(1),
        WmemDefault = "net.core.wmem_default": Form::Numbers(1),
        Somaxconn = "net.core.somaxconn": Form::Numbers(1),
        TcpRmem = "net.ipv4.tcp_rmem": Form::Numbers(3),
        TcpWmem = "net.ipv4.tcp_wmem": Form::Numbers(3),
        TcpModerateRcvbuf = "net.ipv4.tcp_moderate_rcvbuf": Form::Numbers(1),
        TcpNotsentLowat = "net.ipv4.tcp_notsent_lowat": Form::Numbers(1),
        TcpCongestionControl = "net.ipv4.tcp_congestion_control": Form::Choice,
        TcpMaxSynBacklog = "net.ipv4.tcp_max_syn_backlog": Form::Numbers(1),
        TcpWindowScaling = "net.ipv4.tcp_window_scaling": Form::Numbers(1),
        TcpSack = "net.ipv4.tcp_sack": Form::Numbers(1),
        TcpTimestamps = "net.ipv4.tcp_timestamps": Form::Numbers(1),
        NeighGcThresh1 = "net.ipv4.neigh.default.gc_thresh1": Form::Numbers(1),
        NeighGcThresh2 = "net.ipv4.neigh.default.gc_thresh2": Form::Numbers(1),
        NeighGcThresh3 = "net.ipv4.neigh.default.gc_thresh3": Form::Numbers(1),
        Neigh6GcThresh1 = "net.ipv6.neigh.default.gc_thresh1": Form::Numbers(1),
        Neigh6GcThresh2 = "net.ipv6.neigh.default.gc_thresh2": Form::Numbers(1),
        Neigh6GcThresh3 = "net.ipv6.neigh.default.gc_thresh3": Form::Numbers(1),
        TcpMem = "net.ipv4.tcp_mem": Form::Numbers(3),
        UdpMem = "net.ipv4.udp_mem": Form::Numbers(3),
        NfConntrackMax = "net.netfilter.nf_conntrack_max": Form::Numbers(1),
        NumaBalancing = "kernel.numa_balancing": Form::Numbers(1),
        NumaScanDelayMs = "kernel.numa_balancing_scan_delay_ms": Form::Numbers(1),
        NumaScanPeriodMinMs = "kernel.numa_balancing_scan_period_min_ms": Form::Numbers(1),
        NumaScanPeriodMaxMs = "kernel.numa_balancing_scan_period_max_ms": Form::Numbers(1),
        NumaScanSizeMb = "kernel.numa_balancing_scan_size_mb": Form::Numbers(1),
        SchedMigrationCostNs = "kernel.sched_migration_cost_ns": Form::Numbers(1),
        AutogroupEnabled = "kernel.sched_autogroup_enabled": Form::Numbers(1),
        TimerMigration = "kernel.timer_migration": Form::Numbers(1),
        ZoneReclaimMode = "vm.zone_reclaim_mode": Form::Numbers(1),
        StatInterval = "vm.stat_interval": Form::Numbers(1),
    }
}

impl Sysctl {
    /// Whether it is one for the whole kernel although it is below `net`: other network namespaces do not show it
    /// (`net_core_table` of net/core/sysctl_net_core.c), or show it read-only (`netns_core_table`
    /// there, `nf_conntrack_standalone_init_sysctl`, `neigh_sysctl_register`).
    pub fn is_of_initial_namespace(self) -> bool {
        matches!(
            self,
            Self::RpsSockFlowEntries
                | Self::NetdevBudget
                | Self::NetdevBudgetUsecs
                | Self::NetdevMaxBacklog
                | Self::DevWeight
                | Self::BusyPoll
                | Self::BusyRead
                | Self::RmemMax
                | Self::WmemMax
                | Self::RmemDefault
                | Self::WmemDefault
                | Self::TcpMem
                | Self::UdpMem
                | Self::NfConntrackMax
                | Self::NeighGcThresh1
                | Self::NeighGcThresh2
                | Self::NeighGcThresh3
                | Self::Neigh6GcThresh1
                | Self::Neigh6GcThresh2
                | Self::Neigh6GcThresh3
        )
    }

    /// Why a trial applies a change of it only once although no traffic is interrupted; `None` if it is toggled.
    pub fn carries_over(self) -> Option<CarriesOver> {
        match self {
            Self::TcpRmem | Self::TcpWmem | Self::TcpModerateRcvbuf => Some(CarriesOver::Buffers),
            Self::NeighGcThresh1
            | Self::NeighGcThresh2
            | Self::NeighGcThresh3
            | Self::Neigh6GcThresh1
            | Self::Neigh6GcThresh2
            | Self::Neigh6GcThresh3 => Some(CarriesOver::Neighbours),
            _ => None,
        }
    }

    /// The default of current kernels, for those whose default does not depend on the machine. A smaller value was
    /// configured. (`sysctl_rmem_default` and others of net/core/sock.c, SOMAXCONN of include/linux/socket.h,
    /// net/core/dev.c; `arp_tbl` of net/ipv4/arp.c; `tcp_max_syn_backlog` is 4096 from some gigabytes of memory, `tcp_init` of net/ipv4/tcp.c.)
    pub fn kernel_default(self) -> Option<u64> {
        Some(match self {
            Self::RmemDefault | Self::WmemDefault | Self::RmemMax | Self::WmemMax => 212_992,
            Self::NetdevMaxBacklog => 1_000,
            Self::NetdevBudget => 300,
            Self::NetdevBudgetUsecs => 2_000,
            Self::Somaxconn | Self::TcpMaxSynBacklog => 4_096,
            Self::NeighGcThresh1 | Self::Neigh6GcThresh1 => 128,
            Self::NeighGcThresh2 | Self::Neigh6GcThresh2 => 512,
            Self::NeighGcThresh3 | Self::Neigh6GcThresh3 => 1_024,
            _ => return None,
        })
    }
}

/// What the undo of a change leaves in effect for a while, so that blocks with and without it cannot alternate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CarriesOver {
    /// The buffers of TCP connections.
    Buffers,
    /// The entries of the neighbour table.
    Neighbours,
}

impl fmt::Display for CarriesOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Buffers => "open connections keep the buffers that they have grown to",
            Self::Neighbours => "neighbours that were found stay for a minute",
        })
    }
}
