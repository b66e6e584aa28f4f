//! One reversible write to the host, as plain data: the target, with one file per kind, and the values before
//! and after.

mod cgroup;
mod config_file;
mod depends;
mod file;
mod file_of;
mod form;
mod irqbalance;
mod nic;
mod reuseport;
mod snapshot;
mod sysctl;
mod thread;
mod unit;

pub use cgroup::{Cpuset, CpusetFile};
pub use config_file::*;
pub use file::{OnlineCpus, SettingFile};
pub use file_of::{FileOf, HugePages, InterfaceFile, QueueFile, is_interface_name};
pub use form::Form;
pub use irqbalance::Irqbalance;
pub use nic::{Ethtool, NicSetting};
pub use reuseport::{Choice, Group as ReuseportGroup, GroupSocket, Program};
pub use snapshot::{Saved, SavedFile, SavedPart};
pub use sysctl::Sysctl;
pub use thread::Thread;
pub use unit::{UnitProperty, UnitSetting};

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

/// What a change writes to; one variant for each kind of change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
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
}

/// Prefix of a group's text in a plan; its JSON follows.
const REUSEPORT: &str = "reuseport ";
/// Text of the kernel's default in a plan.
const DEFAULT: &str = "default";

impl Target {
    /// Parses the text of a plan made in this network namespace; `None` if it is not a setting that may be
    /// changed.
    #[must_use]
    pub fn parse(text: &str, netns: Option<u64>) -> Option<Self> {
        if let Some(group) = text.strip_prefix(REUSEPORT) {
            return serde_json::from_str(group).ok().map(Self::ReuseportGroup);
        }
        if let Some(thread) = Thread::parse(text) {
            return Some(Self::Thread(thread));
        }
        if let Some(setting) = NicSetting::parse(text, netns) {
            return Some(Self::Nic(setting));
        }
        if let Some(file) = ConfigFile::parse(text) {
            return Some(Self::ConfigFile(file));
        }
        if let Some(cpuset) = Cpuset::parse(text) {
            return Some(Self::Cpuset(cpuset));
        }
        if let Some(irqbalance) = Irqbalance::parse(text) {
            return Some(Self::Irqbalance(irqbalance));
        }
        if let Some(unit) = UnitSetting::parse(text) {
            return Some(Self::Unit(unit));
        }
        SettingFile::parse(text, netns).map(Self::File)
    }

    /// Its text in a plan: a group with all its sockets, so that it differs from another group on the same
    /// port; others as displayed.
    pub fn to_plan(&self) -> String {
        match self {
            Self::ReuseportGroup(group) => format!("{REUSEPORT}{}", json(group)),
            _ => self.to_string(),
        }
    }

    /// The same target in a network namespace, if it belongs to one.
    #[must_use]
    pub fn in_netns(mut self, netns: Option<u64>) -> Self {
        match &mut self {
            Self::File(file) => *file = file.clone().in_netns(netns),
            Self::Nic(setting) => setting.netns = netns,
            _ => {}
        }
        self
    }

    /// The kind of numbers (CPUs, nodes or queues) if its value is a set; else `None`.
    pub fn set_of(&self, value: &Value) -> Option<CpuSet> {
        let Value::Text(text) = value else { return None };
        match self {
            Self::File(file) => match file.form() {
                Form::Mask | Form::CpuMask => CpuSet::from_mask(text).ok(),
                Form::CpuList => CpuSet::from_list(text).ok(),
                _ => None,
            },
            Self::Thread(_) | Self::Cpuset(_) => CpuSet::from_list(text).ok(),
            Self::Unit(unit) if unit.property != UnitProperty::ActiveState => {
                CpuSet::from_list(text).ok()
            }
            _ => None,
        }
    }

    /// Why a change of it cannot be re-applied after a reboot; `None` if it can.
    pub fn lost_for_good(&self) -> Option<&'static str> {
        match self {
            Self::Nic(_) | Self::Unit(_) => None,
            Self::File(file) if file.irq().is_some() && file.interrupt.is_none() => {
                Some("IRQ numbers change at reboot, and its queue is unknown")
            }
            Self::File(_) => None,
            Self::ConfigFile(_) => Some("it is a file, which persists across reboots"),
            Self::Thread(_) => Some("a thread's affinity ends with the thread"),
            Self::Cpuset(_) => Some("the cgroup is re-created at reboot"),
            Self::Irqbalance(_) => Some("irqbalance is a new process after a reboot"),
            Self::ReuseportGroup(_) => Some("a BPF program ends with its sockets"),
        }
    }

    /// Whether it takes effect immediately, not only when a service or the machine restarts.
    pub fn takes_effect_immediately(&self) -> bool {
        !matches!(self, Self::ConfigFile(_))
    }

    /// Whether only a write shows that the host accepts it: the kernel manages some interrupts itself, and
    /// drivers show settings that they do not support.
    pub fn may_be_refused(&self) -> bool {
        match self {
            Self::File(file) => file.irq().is_some(),
            Self::Nic(setting) => matches!(
                setting.what,
                Ethtool::Rings | Ethtool::Coalesce | Ethtool::Rss | Ethtool::RssKey
            ),
            _ => false,
        }
    }

    /// Whether a change of it takes a reboot.
    pub fn takes_reboot(&self) -> bool {
        matches!(self, Self::ConfigFile(file) if file.place() == Some(ConfigPlace::CommandLine))
    }

    /// The kind of setting, as named in plans.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::ReuseportGroup(_) => "reuseport",
            Self::File(file) => file.of.kind(),
            Self::Thread(_) => "thread_affinity",
            Self::Nic(setting) => setting.what.kind(),
            Self::ConfigFile(file) => file.place().map_or("unknown", ConfigPlace::kind),
            Self::Cpuset(_) => "cpuset",
            Self::Irqbalance(_) => "irqbalance",
            Self::Unit(unit) => unit.kind(),
        }
    }

    /// How long a change of it lasts without further action.
    pub fn persistence(&self) -> Persistence {
        match self {
            Self::ReuseportGroup(_) => Persistence::WhileOpen,
            Self::File(_) | Self::Nic(_) | Self::Unit(_) => Persistence::UntilReboot,
            Self::Thread(_) | Self::Cpuset(_) | Self::Irqbalance(_) => Persistence::WhileRunning,
            Self::ConfigFile(_) => Persistence::Kept,
        }
    }

    /// The REUSEPORT group, if it is one.
    pub fn group(&self) -> Option<&ReuseportGroup> {
        match self {
            Self::ReuseportGroup(group) => Some(group),
            _ => None,
        }
    }

    /// Whether another one is the same target, possibly of another owner since.
    pub fn same_place(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(file), Self::File(other)) => file.same_place(other),
            (Self::Nic(setting), Self::Nic(other)) => setting.same_place(other),
            (Self::Unit(setting), Self::Unit(other)) => setting.same_place(other),
            (Self::Thread(thread), Self::Thread(other)) => thread.same_place(other),
            _ => self == other,
        }
    }
}

impl From<SettingFile> for Target {
    fn from(file: SettingFile) -> Self {
        Self::File(file)
    }
}

impl From<Sysctl> for Target {
    fn from(sysctl: Sysctl) -> Self {
        SettingFile::from(sysctl).into()
    }
}

impl From<NicSetting> for Target {
    fn from(setting: NicSetting) -> Self {
        Self::Nic(setting)
    }
}

impl From<Thread> for Target {
    fn from(thread: Thread) -> Self {
        Self::Thread(thread)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReuseportGroup(group) => write!(f, "reuseport group {}", group.local),
            Self::File(file) => file.fmt(f),
            Self::Thread(thread) => thread.fmt(f),
            Self::Nic(setting) => setting.fmt(f),
            Self::ConfigFile(file) => file.fmt(f),
            Self::Cpuset(cpuset) => cpuset.fmt(f),
            Self::Irqbalance(irqbalance) => irqbalance.fmt(f),
            Self::Unit(unit) => unit.fmt(f),
        }
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
        match target {
            Target::ReuseportGroup(_) if text == DEFAULT => Some(Self::Default),
            Target::ReuseportGroup(_) => serde_json::from_str(text).ok().map(Self::Program),
            _ => Some(Self::Text(text.to_owned())),
        }
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
