//! One reversible write to the host, as plain data: the target, with one file per kind, and the values before
//! and after.

mod cgroup;
mod config_file;
mod depends;
mod file;
mod file_of;
mod form;
mod hugepages;
mod interface;
mod irqbalance;
mod nic;
mod ovs;
mod process_pages;
mod qdisc;
mod reuseport;
mod snapshot;
mod sysctl;
mod thread;
mod unit;
mod vlan_egress;
mod xdp;

pub use cgroup::{Cpuset, CpusetFile};
pub use config_file::*;
pub use file::{OnlineCpus, SettingFile};
pub use file_of::{
    CpuFile, FileOf, FrequencyFile, HugePages, InterfaceFile, NumaScan, QueueFile,
    is_interface_name,
};
pub use form::Form;
pub use hugepages::{HugepagePools, PoolCounts};
pub use interface::{InterfaceId, InterfaceOf};
pub use irqbalance::Irqbalance;
pub use nic::{Ethtool, NicSetting};
pub use ovs::{OVS_UNSET, OvsKey, OvsSetting};
pub use process_pages::{MemoryMoved, ProcessPages};
pub use qdisc::Qdiscs;
pub use reuseport::{Choice, Group as ReuseportGroup, GroupSocket, Program};
pub use snapshot::{Saved, SavedFile, SavedPart};
pub use sysctl::{CarriesOver, Sysctl};
pub use thread::Thread;
pub use unit::{UnitProperty, UnitSetting};
pub use vlan_egress::{EgressMap, VlanEgress};
pub use xdp::{ClassCpus, TrafficClass, XdpPriorities};

use crate::CpuSet;
use serde::{Deserialize, Serialize};
use std::fmt;

/// One reversible write: the target, the old value, the new value, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The target of the write.
    pub target: Target,
    /// The value before, restored by an undo: the set point, which is compared and shown.
    pub before: Value,
    /// The value after.
    pub after: Value,
    /// Why, in one sentence with its evidence.
    pub why: String,
    /// How long it lasts without further action.
    pub persistence: Persistence,
    /// Set once it was prepared: other values that the write resets, which must be restored with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshot: Vec<Saved>,
}

/// What a kind of target says about itself, in its own file.
trait TargetKind: fmt::Display {
    /// Parses the text of a plan made in this network namespace; `None` if it is not one that may be changed.
    fn of_plan(text: &str, netns: Option<u64>) -> Option<Self>
    where
        Self: Sized;

    /// Its text in a plan.
    fn plan_text(&self) -> String {
        self.to_string()
    }

    /// Parses the text of a value in a plan; `None` if it is invalid.
    fn value_of_plan(&self, text: &str) -> Option<Value> {
        Some(text.into())
    }

    /// The kind of setting, as named in plans.
    fn kind(&self) -> &'static str;

    /// How long a change of it lasts without further action.
    fn persistence(&self) -> Persistence;

    /// Why a change of it cannot be re-applied after a reboot; `None` if it can.
    fn lost_for_good(&self) -> Option<&'static str> {
        None
    }

    /// Why an undo leaves what a change of it did, if it cannot be undone.
    fn one_way(&self) -> Option<&'static str> {
        None
    }

    /// The CPUs, nodes or queues of a value that is a set.
    fn set_of(&self, _value: &str) -> Option<CpuSet> {
        None
    }

    /// Whether it takes effect immediately, not only when a service or the machine restarts.
    fn takes_effect_immediately(&self) -> bool {
        true
    }

    /// Whether a change of it takes a reboot.
    fn takes_reboot(&self) -> bool {
        false
    }

    /// Why it is not toggled under traffic; `None` if it may be.
    fn disrupts(&self) -> Option<&'static str> {
        None
    }

    /// What an undo of a change leaves in effect for a while: a reason to apply it only once in a trial.
    fn carries_over(&self) -> Option<CarriesOver> {
        None
    }

    /// What it belongs to: the interface, process or cgroup.
    fn owner(&self) -> String {
        String::new()
    }

    /// Whether only a write shows that the host accepts it.
    fn may_be_refused(&self) -> bool {
        false
    }

    /// The interface that it belongs to.
    fn interface_of(&mut self) -> Option<InterfaceOf<'_>> {
        None
    }

    /// Puts it into a network namespace, if it belongs to one.
    fn set_netns(&mut self, _netns: Option<u64>) {}

    /// Which CPUs were online when it was changed, if that is known and matters.
    fn cpus_then(&self) -> Option<&OnlineCpus> {
        None
    }

    /// Whether another one is the same target, possibly of another owner since.
    fn is_same_place(&self, other: &Self) -> bool
    where
        Self: Sized + PartialEq,
    {
        self == other
    }
}

/// Defines the targets: a variant for each type.
macro_rules! targets {
    ($($(#[$doc:meta])* $variant:ident($type:ty),)*) => {
        /// What a change writes to; one variant for each kind of change.
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Target {
            $($(#[$doc])* $variant($type),)*
        }

        impl Target {
            /// Parses the text of a plan made in this network namespace; `None` if it is not a setting that may be
            /// changed.
            #[must_use]
            pub fn parse(text: &str, netns: Option<u64>) -> Option<Self> {
                None$(.or_else(|| <$type>::of_plan(text, netns).map(Self::$variant)))*
            }

            /// Whether another one is the same target, possibly of another owner since.
            pub fn same_place(&self, other: &Self) -> bool {
                match (self, other) {
                    $((Self::$variant(its), Self::$variant(other)) => its.is_same_place(other),)*
                    _ => false,
                }
            }

            fn its(&self) -> &dyn TargetKind {
                match self {
                    $(Self::$variant(its) => its,)*
                }
            }

            fn its_mut(&mut self) -> &mut dyn TargetKind {
                match self {
                    $(Self::$variant(its) => its,)*
                }
            }
        }

        $(
            impl From<$type> for Target {
                fn from(its: $type) -> Self {
                    Self::$variant(its)
                }
            }
        )*
    };
}

targets! {
    /// The program that selects the socket of a REUSEPORT group.
    ReuseportGroup(ReuseportGroup),
    /// A file of `/sys` or `/proc` that holds a setting.
    File(SettingFile),
    /// The CPUs that a thread may run on.
    Thread(Thread),
    /// A setting of an interface that ethtool sets.
    Nic(NicSetting),
    /// A configuration file below `/etc`, or a variable in one.
    ConfigFile(ConfigFile),
    /// The CPUs or nodes of a cgroup.
    Cpuset(Cpuset),
    /// The interrupts banned from a running irqbalance.
    Irqbalance(Irqbalance),
    /// Whether a systemd unit runs, or the CPUs or nodes that it may use.
    Unit(UnitSetting),
    /// How many hugepages of a size the kernel keeps on each node.
    Hugepages(HugepagePools),
    /// The nodes that the memory of a process is on.
    Memory(ProcessPages),
    /// A setting in Open vSwitch's database.
    Ovs(OvsSetting),
    /// The CPUs that an XDP program moves received packets to, by their class.
    Xdp(XdpPriorities),
    /// The qdiscs of an interface.
    Qdiscs(Qdiscs),
    /// Which VLAN priority a VLAN gives to what it sends.
    VlanEgress(VlanEgress),
}

/// Text of the kernel's default in a plan.
const DEFAULT: &str = "default";

impl Target {
    /// Its text in a plan: a group with all its sockets, so that it differs from another group on the same
    /// port; others as displayed.
    pub fn to_plan(&self) -> String {
        self.its().plan_text()
    }

    /// The same target in a network namespace, if it belongs to one.
    #[must_use]
    pub fn in_netns(mut self, netns: Option<u64>) -> Self {
        self.its_mut().set_netns(netns);
        self
    }

    /// The kind of numbers (CPUs, nodes or queues) if its value is a set; else `None`.
    pub fn set_of(&self, value: &Value) -> Option<CpuSet> {
        self.its().set_of(value.text()?)
    }

    /// Why a change of it cannot be re-applied after a reboot; `None` if it can.
    pub fn lost_for_good(&self) -> Option<&'static str> {
        self.its().lost_for_good()
    }

    /// Why an undo leaves what a change of it did, if it cannot be undone.
    pub fn one_way(&self) -> Option<&'static str> {
        self.its().one_way()
    }

    /// Whether it takes effect immediately, not only when a service or the machine restarts.
    pub fn takes_effect_immediately(&self) -> bool {
        self.its().takes_effect_immediately()
    }

    /// Whether only a write shows that the host accepts it: the kernel manages some interrupts itself, and
    /// drivers show settings that they do not support.
    pub fn may_be_refused(&self) -> bool {
        self.its().may_be_refused()
    }

    /// Whether a change of it takes a reboot.
    pub fn takes_reboot(&self) -> bool {
        self.its().takes_reboot()
    }

    /// Why it is not toggled under traffic; `None` if it may be.
    pub fn disrupts(&self) -> Option<&'static str> {
        self.its().disrupts()
    }

    /// What an undo of a change leaves in effect for a while, so that blocks with and without it cannot alternate; `None` if
    /// nothing.
    pub fn carries_over(&self) -> Option<CarriesOver> {
        self.its().carries_over()
    }

    /// What it belongs to: the interface, process or cgroup; empty for the whole host.
    pub fn owner(&self) -> String {
        self.its().owner()
    }

    /// The kind of setting, as named in plans.
    pub fn kind(&self) -> &'static str {
        self.its().kind()
    }

    /// How long a change of it lasts without further action.
    pub fn persistence(&self) -> Persistence {
        self.its().persistence()
    }

    /// Which CPUs were online when it was changed, if that is known and matters.
    pub fn cpus_then(&self) -> Option<&OnlineCpus> {
        self.its().cpus_then()
    }

    /// Whether the object of another one is known to be a later one with the same name: an interface, queue or interrupt
    /// that was created again.
    pub fn is_re_created(&self, other: &Self) -> bool {
        let instance = |target: &Self| match target {
            Self::File(file) => file.instance,
            _ => target.clone().interface_of()?.id.instance,
        };
        instance(self).zip(instance(other)).is_some_and(|(was, now)| was != now)
    }

    /// The interface that it belongs to, or whose interrupt it is.
    pub fn interface_of(&mut self) -> Option<InterfaceOf<'_>> {
        self.its_mut().interface_of()
    }

    /// The REUSEPORT group, if it is one.
    pub fn group(&self) -> Option<&ReuseportGroup> {
        match self {
            Self::ReuseportGroup(group) => Some(group),
            _ => None,
        }
    }
}

impl From<Sysctl> for Target {
    fn from(sysctl: Sysctl) -> Self {
        SettingFile::from(sysctl).into()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.its().fmt(f)
    }
}

/// A value of a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    /// None: the kernel's default.
    Default,
    /// A program that selects a socket.
    Program(Program),
    /// The text of a setting, as the kernel shows it or as it is to be written.
    Text(String),
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl Value {
    /// Its text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Its text in a plan.
    pub fn to_plan(&self) -> String {
        match self {
            Self::Default => DEFAULT.to_owned(),
            Self::Program(program) => json(program),
            Self::Text(text) => text.clone(),
        }
    }

    /// Parses its text in a plan, for the given target; `None` if it is invalid.
    pub fn parse(target: &Target, text: &str) -> Option<Self> {
        target.its().value_of_plan(text)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("kernel default"),
            Self::Program(Program::Nearest { .. }) => f.write_str("to the nearest worker"),
            Self::Program(Program::Classic { instructions }) => {
                write!(f, "a classic program of {} instructions", instructions.len())
            }
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// How long a change lasts without further action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Persistence {
    /// As long as its sockets: until the server restarts.
    WhileOpen,
    /// Until the thread, the daemon, or the processes in the cgroup exit.
    WhileRunning,
    /// Until the next boot, or until the driver is reloaded or the interface re-created.
    UntilReboot,
    /// Until it is undone; it persists across reboots.
    Kept,
}

/// The JSON of plain data, which cannot fail: the keys are strings, and it is written to memory.
fn json(data: &impl Serialize) -> String {
    serde_json::to_string(data).unwrap_or_default()
}
