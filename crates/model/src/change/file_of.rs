//! Which files of `/sys` and `/proc` may be written, as types with their path and the format of their value.
//!
//! The enums here and [`Sysctl`] are the complete list, one line for each. Plans and journals may have been edited: a
//! path is parsed once, when they are read, and one that is not in the list is never opened.

use super::{Form, Sysctl};
use crate::{CpuId, Direction, IrqNumber, QueueId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What the file of a setting configures.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum FileOf {
    /// The affinity of this interrupt (Documentation/core-api/irq/irq-affinity.rst).
    Irq(IrqNumber),
    /// A queue of an interface.
    Queue {
        /// The interface.
        nic: String,
        /// The queue, of the direction of the file.
        queue: QueueId,
        /// The setting.
        file: QueueFile,
    },
    /// An interface.
    Interface {
        /// The interface.
        nic: String,
        /// The setting.
        file: InterfaceFile,
    },
    /// A sysctl.
    Sysctl(Sysctl),
    /// `kernel.sched_migration_cost_ns` since Linux 5.13, in debugfs (commit 8a99b6833c88).
    MigrationCost,
    /// How AutoNUMA scans memory, since Linux 5.13 (the same commit).
    NumaScan(NumaScan),
    /// Transparent huge pages.
    HugePages(HugePages),
    /// The CPUs of unbound workqueues (Documentation/core-api/workqueue.rst).
    WorkqueueCpumask,
    /// The CPUs of interrupts that are requested from now on (Documentation/core-api/irq/irq-affinity.rst).
    DefaultAffinity,
    /// How long vCPUs of KVM poll before they sleep, in ns (Documentation/virt/kvm/halt-polling.rst).
    HaltPolling,
    /// The power management of a CPU.
    Cpu {
        /// The CPU.
        cpu: CpuId,
        /// The setting.
        file: CpuFile,
    },
    /// A frequency policy: of a CPU, or of those that share a clock.
    Frequency {
        /// Its number, that of its first CPU.
        policy: u32,
        /// The setting.
        file: FrequencyFile,
    },
}

/// Defines an enum of files with their names and the formats of their values.
macro_rules! files {
    ($(#[$doc:meta])* $enum:ident { $($variant:ident = $name:literal: $form:expr,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $enum {
            $(#[doc = concat!("`", $name, "`.")] $variant,)*
        }

        impl $enum {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// The format of its value.
            pub const fn form(self) -> Form {
                match self {
                    $(Self::$variant => $form,)*
                }
            }

            /// The one with this name.
            pub fn parse(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|its| its.name() == name)
            }
        }

        impl std::fmt::Display for $enum {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
pub(super) use files;

files! {
    /// Settings of a queue (Documentation/networking/scaling.rst).
    QueueFile {
        RpsCpus = "rps_cpus": Form::CpuMask,
        RpsFlowCnt = "rps_flow_cnt": Form::PowerOfTwo,
        XpsCpus = "xps_cpus": Form::CpuMask,
        XpsRxqs = "xps_rxqs": Form::Mask,
        ByteLimitMax = "byte_queue_limits/limit_max": Form::Numbers(1),
    }
}

files! {
    /// Settings of an interface (Documentation/networking/napi.rst, Documentation/ABI/testing/sysfs-class-net).
    InterfaceFile {
        GroFlushTimeout = "gro_flush_timeout": Form::Numbers(1),
        NapiDeferHardIrqs = "napi_defer_hard_irqs": Form::Numbers(1),
        Threaded = "threaded": Form::Numbers(1),
        TxQueueLen = "tx_queue_len": Form::Numbers(1),
    }
}

files! {
    /// Power management of a CPU (Documentation/ABI/testing/sysfs-devices-power).
    CpuFile {
        ResumeLatency = "pm_qos_resume_latency_us": Form::Choice,
    }
}

files! {
    /// Settings of a frequency policy (Documentation/admin-guide/pm/cpufreq.rst, intel_pstate.rst).
    FrequencyFile {
        Governor = "scaling_governor": Form::Choice,
        Preference = "energy_performance_preference": Form::Choice,
    }
}

files! {
    /// Settings of transparent huge pages (Documentation/admin-guide/mm/transhuge.rst).
    HugePages {
        Enabled = "enabled": Form::Choice,
        Defrag = "defrag": Form::Choice,
    }
}

files! {
    /// How AutoNUMA scans memory (kernel/sched/debug.c); before Linux 5.13 these are sysctls.
    NumaScan {
        DelayMs = "scan_delay_ms": Form::Numbers(1),
        PeriodMinMs = "scan_period_min_ms": Form::Numbers(1),
        PeriodMaxMs = "scan_period_max_ms": Form::Numbers(1),
        SizeMb = "scan_size_mb": Form::Numbers(1),
    }
}

impl NumaScan {
    /// The sysctl that it was before.
    pub const fn sysctl(self) -> Sysctl {
        match self {
            Self::DelayMs => Sysctl::NumaScanDelayMs,
            Self::PeriodMinMs => Sysctl::NumaScanPeriodMinMs,
            Self::PeriodMaxMs => Sysctl::NumaScanPeriodMaxMs,
            Self::SizeMb => Sysctl::NumaScanSizeMb,
        }
    }
}

impl QueueFile {
    /// The direction of its queues.
    pub const fn direction(self) -> Direction {
        match self {
            Self::RpsCpus | Self::RpsFlowCnt => Direction::Rx,
            Self::XpsCpus | Self::XpsRxqs | Self::ByteLimitMax => Direction::Tx,
        }
    }

    /// The directory of a queue that has it: `rx-0`.
    pub fn queue(self, queue: QueueId) -> String {
        self.direction().queue(queue)
    }
}

impl Direction {
    /// The directory of a queue in sysfs: `rx-0`.
    pub fn queue(self, queue: QueueId) -> String {
        format!("{}{queue}", self.queue_prefix())
    }

    /// What the names of these directories begin with.
    pub const fn queue_prefix(self) -> &'static str {
        match self {
            Self::Rx => "rx-",
            Self::Tx => "tx-",
        }
    }
}

const IRQS: &str = "/proc/irq";
const AFFINITY: &str = "smp_affinity_list";
const NICS: &str = "/sys/class/net";
const MIGRATION_COST: &str = "/sys/kernel/debug/sched/migration_cost_ns";
const NUMA_SCAN: &str = "/sys/kernel/debug/sched/numa_balancing";
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage";
const SYSCTLS: &str = "/proc/sys";
const WORKQUEUES: &str = "/sys/devices/virtual/workqueue/cpumask";
const DEFAULT_AFFINITY: &str = "/proc/irq/default_smp_affinity";
const HALT_POLLING: &str = "/sys/module/kvm/parameters/halt_poll_ns";
const CPUS: &str = "/sys/devices/system/cpu";

impl FileOf {
    /// Parses a path; `None` if it may not be written.
    pub fn parse(path: &str) -> Option<Self> {
        let of = match path.split('/').collect::<Vec<_>>()[..] {
            ["", "sys", "class", "net", nic, "queues", queue, ref file @ ..] => {
                let file = QueueFile::parse(&file.join("/"))?;
                let queue = QueueId(number(queue.strip_prefix(file.direction().queue_prefix())?)?);
                Self::Queue { nic: nic.to_owned(), queue, file }
            }
            ["", "sys", "class", "net", nic, file] => {
                Self::Interface { nic: nic.to_owned(), file: InterfaceFile::parse(file)? }
            }
            ["", "proc", "irq", irq, AFFINITY] => Self::Irq(IrqNumber(number(irq)?)),
            ["", "proc", "sys", ref parts @ ..] => Self::Sysctl(Sysctl::parse(&parts.join("."))?),
            ["", "sys", "kernel", "mm", "transparent_hugepage", file] => {
                Self::HugePages(HugePages::parse(file)?)
            }
            ["", "sys", "kernel", "debug", "sched", "numa_balancing", file] => {
                Self::NumaScan(NumaScan::parse(file)?)
            }
            ["", "sys", "devices", "system", "cpu", cpu, "power", file] => {
                let cpu = CpuId(number(cpu.strip_prefix("cpu")?)?);
                Self::Cpu { cpu, file: CpuFile::parse(file)? }
            }
            ["", "sys", "devices", "system", "cpu", "cpufreq", policy, file] => {
                let policy = number(policy.strip_prefix("policy")?)?;
                Self::Frequency { policy, file: FrequencyFile::parse(file)? }
            }
            _ if path == MIGRATION_COST => Self::MigrationCost,
            _ if path == WORKQUEUES => Self::WorkqueueCpumask,
            _ if path == DEFAULT_AFFINITY => Self::DefaultAffinity,
            _ if path == HALT_POLLING => Self::HaltPolling,
            _ => return None,
        };
        // One path per setting, and none that leaves its directory.
        (of.has_valid_name() && of.to_string() == path).then_some(of)
    }

    /// Whether the name of its interface is one that the kernel accepts.
    pub fn has_valid_name(&self) -> bool {
        self.nic().is_none_or(is_interface_name)
    }

    /// The paths of all of them, where `{nic}` stands for the name of an interface and `{n}` for a number.
    pub fn patterns() -> Vec<String> {
        let queue = |file: &QueueFile| {
            format!("{NICS}/{{nic}}/queues/{}{{n}}/{file}", file.direction().queue_prefix())
        };
        let interface = |file: &InterfaceFile| format!("{NICS}/{{nic}}/{file}");
        let others = Sysctl::ALL.iter().map(|&sysctl| Self::Sysctl(sysctl));
        let others =
            others.chain([Self::MigrationCost, Self::WorkqueueCpumask, Self::DefaultAffinity]);
        let others = others.chain([Self::HaltPolling]);
        let of_cpu = |file: &CpuFile| format!("{CPUS}/cpu{{n}}/power/{file}");
        let of_policy = |file: &FrequencyFile| format!("{CPUS}/cpufreq/policy{{n}}/{file}");
        let others = others.chain(NumaScan::ALL.iter().map(|&file| Self::NumaScan(file)));
        let others = others.chain(HugePages::ALL.iter().map(|&file| Self::HugePages(file)));
        [format!("{IRQS}/{{n}}/{AFFINITY}")]
            .into_iter()
            .chain(QueueFile::ALL.iter().map(queue))
            .chain(InterfaceFile::ALL.iter().map(interface))
            .chain(CpuFile::ALL.iter().map(of_cpu))
            .chain(FrequencyFile::ALL.iter().map(of_policy))
            .chain(others.map(|file| file.to_string()))
            .collect()
    }

    /// Its name in plans: `rps_cpus`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Irq(_) => "irq_affinity",
            Self::Queue { file: QueueFile::ByteLimitMax, .. } => "byte_queue_limit",
            Self::Queue { file, .. } => file.name(),
            Self::Interface { file, .. } => file.name(),
            Self::Sysctl(_) | Self::MigrationCost | Self::NumaScan(_) => "sysctl",
            Self::HugePages(_) => "transparent_hugepage",
            Self::WorkqueueCpumask => "workqueue_cpumask",
            Self::DefaultAffinity => "default_smp_affinity",
            Self::HaltPolling => "halt_poll_ns",
            Self::Cpu { file, .. } => file.name(),
            Self::Frequency { file, .. } => file.name(),
        }
    }

    /// The format of its value.
    pub fn form(&self) -> Form {
        match self {
            Self::Irq(_) => Form::CpuList,
            Self::Queue { file, .. } => file.form(),
            Self::Interface { file, .. } => file.form(),
            Self::Sysctl(sysctl) => sysctl.form(),
            Self::MigrationCost | Self::HaltPolling => Form::Numbers(1),
            Self::NumaScan(file) => file.form(),
            Self::HugePages(file) => file.form(),
            Self::WorkqueueCpumask | Self::DefaultAffinity => Form::Mask,
            Self::Cpu { file, .. } => file.form(),
            Self::Frequency { file, .. } => file.form(),
        }
    }

    /// The interface that it belongs to.
    pub fn nic(&self) -> Option<&str> {
        match self {
            Self::Queue { nic, .. } | Self::Interface { nic, .. } => Some(nic),
            _ => None,
        }
    }

    /// Whether it belongs to a network namespace: the settings of interfaces do. So do some sysctls below `net`; the
    /// kernel shows each thread those of its own namespace.
    pub fn is_of_namespace(&self) -> bool {
        match self {
            Self::Queue { .. } | Self::Interface { .. } => true,
            Self::Sysctl(sysctl) => {
                sysctl.name().starts_with("net.") && !sysctl.is_of_initial_namespace()
            }
            _ => false,
        }
    }
}

impl fmt::Display for FileOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Irq(irq) => write!(f, "{IRQS}/{irq}/{AFFINITY}"),
            Self::Queue { nic, queue, file } => {
                write!(f, "{NICS}/{nic}/queues/{}/{file}", file.queue(*queue))
            }
            Self::Interface { nic, file } => write!(f, "{NICS}/{nic}/{file}"),
            // None of the writable ones contains the name of an interface, which may itself hold dots.
            Self::Sysctl(sysctl) => write!(f, "{SYSCTLS}/{}", sysctl.name().replace('.', "/")),
            Self::MigrationCost => f.write_str(MIGRATION_COST),
            Self::NumaScan(file) => write!(f, "{NUMA_SCAN}/{file}"),
            Self::HugePages(file) => write!(f, "{HUGE_PAGES}/{file}"),
            Self::WorkqueueCpumask => f.write_str(WORKQUEUES),
            Self::DefaultAffinity => f.write_str(DEFAULT_AFFINITY),
            Self::HaltPolling => f.write_str(HALT_POLLING),
            Self::Cpu { cpu, file } => write!(f, "{CPUS}/cpu{cpu}/power/{file}"),
            Self::Frequency { policy, file } => write!(f, "{CPUS}/cpufreq/policy{policy}/{file}"),
        }
    }
}

impl From<FileOf> for String {
    fn from(of: FileOf) -> Self {
        of.to_string()
    }
}

impl TryFrom<String> for FileOf {
    type Error = String;

    fn try_from(path: String) -> Result<Self, String> {
        Self::parse(&path).ok_or_else(|| format!("{path:?} is not a setting that nearpath changes"))
    }
}

/// A number as the kernel uses it in file names: digits without a leading zero.
fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.len() <= 9 && text.bytes().all(|b| b.is_ascii_digit());
    (digits && (text == "0" || !text.starts_with('0'))).then(|| text.parse().ok())?
}

/// As `dev_valid_name` of net/core/dev.c.
pub fn is_interface_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() < 16
        && text != "."
        && text != ".."
        && !text.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_round_trip() {
        for (path, kind) in [
            ("/proc/irq/40/smp_affinity_list", "irq_affinity"),
            ("/sys/class/net/enp94s0f0np0/queues/rx-10/rps_cpus", "rps_cpus"),
            ("/sys/class/net/eth0/queues/rx-0/rps_flow_cnt", "rps_flow_cnt"),
            ("/sys/class/net/veth-a.1/queues/tx-0/xps_cpus", "xps_cpus"),
            ("/sys/class/net/eth0/napi_defer_hard_irqs", "napi_defer_hard_irqs"),
            ("/sys/class/net/eth0/tx_queue_len", "tx_queue_len"),
            ("/proc/sys/net/core/rps_sock_flow_entries", "sysctl"),
            ("/sys/kernel/debug/sched/migration_cost_ns", "sysctl"),
            ("/sys/kernel/debug/sched/numa_balancing/scan_size_mb", "sysctl"),
            ("/sys/kernel/mm/transparent_hugepage/defrag", "transparent_hugepage"),
            ("/sys/devices/virtual/workqueue/cpumask", "workqueue_cpumask"),
            ("/proc/irq/default_smp_affinity", "default_smp_affinity"),
            ("/sys/module/kvm/parameters/halt_poll_ns", "halt_poll_ns"),
            (
                "/sys/devices/system/cpu/cpu12/power/pm_qos_resume_latency_us",
                "pm_qos_resume_latency_us",
            ),
            ("/sys/devices/system/cpu/cpufreq/policy3/scaling_governor", "scaling_governor"),
        ] {
            let of = FileOf::parse(path).unwrap_or_else(|| panic!("{path}"));
            assert_eq!((of.to_string().as_str(), of.kind()), (path, kind));
        }
    }

    #[test]
    fn patterns_are_of_files_that_may_be_written() {
        for pattern in FileOf::patterns() {
            let path = pattern.replace("{nic}", "eth0").replace("{n}", "7");
            assert!(FileOf::parse(&path).is_some(), "{path}");
        }
    }

    #[test]
    fn other_paths_are_refused() {
        for path in [
            "",
            "/",
            "/etc/passwd",
            "/proc/sysrq-trigger",
            "/proc/irq/default_smp_affinity_list",
            "/sys/devices/system/cpu/cpu01/power/pm_qos_resume_latency_us",
            "/sys/devices/system/cpu/cpu1/power/control",
            "/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor",
            "/sys/devices/system/cpu/cpu1/online",
            "/sys/devices/system/cpu/cpufreq/policy3/scaling_setspeed",
            "/sys/devices/virtual/workqueue/writeback/cpumask",
            "/sys/module/kvm/parameters/halt_poll_ns_grow",
            "/sys/module/kvm/parameters/../parameters/halt_poll_ns",
            "/proc/irq/040/smp_affinity_list",
            "/proc/irq//smp_affinity_list",
            "/proc/irq/4/../5/smp_affinity_list",
            "/sys/class/net/../queues/rx-0/rps_cpus",
            "/sys/class/net/a/b/queues/rx-0/rps_cpus",
            "/sys/class/net/eth0/queues/rx-/rps_cpus",
            "/sys/class/net/eth0/queues/rx--1/rps_cpus",
            "/sys/class/net/eth0/queues/rx-0/rps_cpus/",
            "/sys/class/net/eth0/queues/rx-0/rps_cpus\n",
            "/sys/class/net/eth0/queues/tx-0/rps_cpus",
            "/sys/class/net/eth0/queues/rx-0/xps_cpus",
            "sys/class/net/eth0/queues/rx-0/rps_cpus",
            "/proc/sys/kernel/core_pattern",
            "/proc/sys/net.core.somaxconn",
            "/proc/sys/net/core.somaxconn",
        ] {
            assert_eq!(FileOf::parse(path), None, "{path}");
        }
    }
}
