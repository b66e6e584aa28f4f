//! The sysctls that may be written.

use super::Form;
use super::file_of::files;

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
