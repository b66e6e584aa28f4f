//! One reversible write to the host, as plain data.

use crate::cgroups::Cpuset;
use crate::configuration::{self, ConfigFile, Place};
use crate::ethtool::NicSetting;
use crate::files::{SettingFile, of_namespace, row_of};
use crate::irqbalance::Irqbalance;
use crate::steering::{Group, Program};
use crate::threads::Thread;
use crate::units::UnitSetting;
use serde::{Deserialize, Serialize};
use std::fmt;

/// One reversible write: what is written, what was there, what will be, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// What is written to.
    pub target: Target,
    /// What is there before, and again once it is undone.
    pub before: Value,
    /// What is there after.
    pub after: Value,
    /// Why, in one sentence with its evidence.
    pub why: String,
    /// How long it lasts by itself.
    pub persistence: Persistence,
}

/// What a change writes to; one variant for each kind of change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// Which socket of a REUSEPORT group a connection goes to.
    ReuseportGroup(Group),
    /// A file of `/sys` or `/proc` that holds a setting.
    File(SettingFile),
    /// The CPUs that a thread may run on.
    Thread(Thread),
    /// A setting of an interface that ethtool sets.
    Nic(NicSetting),
    /// A file of configuration below `/etc`, or a variable in one.
    ConfigFile(ConfigFile),
    /// The CPUs or nodes of a cgroup.
    Cpuset(Cpuset),
    /// The interrupts that a running irqbalance leaves alone.
    Irqbalance(Irqbalance),
    /// Whether a systemd unit runs, or the CPUs or nodes that it may use.
    Unit(UnitSetting),
}

/// What the text of a group in a plan begins with; its JSON follows.
const REUSEPORT: &str = "reuseport ";
/// What stands for the kernel's own way in a plan.
const DEFAULT: &str = "default";

impl Target {
    /// From the text of a plan that was made in this network namespace; `None` for what is not to be
    /// changed.
    pub(crate) fn parse(text: &str, netns: Option<u64>) -> Option<Self> {
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
        row_of(text)?;
        let netns = netns.filter(|_| of_namespace(text));
        Some(Self::File(SettingFile::new(text, netns)))
    }

    /// Its text in a plan: a group with all its sockets, so that it is told from another of the same
    /// port; others as they are shown.
    pub(crate) fn to_plan(&self) -> Option<String> {
        match self {
            Self::ReuseportGroup(group) => {
                serde_json::to_string(group).ok().map(|group| format!("{REUSEPORT}{group}"))
            }
            _ => Some(self.to_string()),
        }
    }

    /// What kind of setting it is, as plans call it.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::ReuseportGroup(_) => "reuseport",
            Self::File(file) => row_of(&file.path).map_or("unknown", |row| row.kind),
            Self::Thread(_) => "thread_affinity",
            Self::Nic(setting) => setting.what.kind(),
            Self::ConfigFile(file) => file.place().map_or("unknown", Place::kind),
            Self::Cpuset(_) => "cpuset",
            Self::Irqbalance(_) => "irqbalance",
            Self::Unit(unit) => unit.kind(),
        }
    }

    /// How long a change of it lasts by itself.
    pub(crate) fn persistence(&self) -> Persistence {
        match self {
            Self::ReuseportGroup(_) => Persistence::WhileOpen,
            Self::File(_) | Self::Nic(_) | Self::Unit(_) => Persistence::UntilReboot,
            Self::Thread(_) | Self::Cpuset(_) | Self::Irqbalance(_) => Persistence::WhileRunning,
            Self::ConfigFile(_) => Persistence::Kept,
        }
    }

    /// The REUSEPORT group, if it is one.
    pub fn group(&self) -> Option<&Group> {
        match self {
            Self::ReuseportGroup(group) => Some(group),
            _ => None,
        }
    }

    /// Whether another one is the same place to write to, whoever it belongs to by now.
    pub fn same_place(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(file), Self::File(other)) => file.same_place(other),
            (Self::Nic(setting), Self::Nic(other)) => setting.same_place(other),
            (Self::Unit(setting), Self::Unit(other)) => setting.same_place(other),
            _ => self == other,
        }
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

/// What is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    /// Nothing: the kernel's own way.
    Default,
    /// A program that chooses a socket.
    Program(Program),
    /// The text of a setting, as the kernel shows it or as it is to be written.
    Text(String),
}

impl Value {
    /// Its text in a plan.
    pub(crate) fn to_plan(&self) -> Option<String> {
        match self {
            Self::Default => Some(DEFAULT.to_owned()),
            Self::Program(program) => serde_json::to_string(program).ok(),
            Self::Text(text) => Some(text.clone()),
        }
    }

    /// From its text in a plan, as the target has it; `None` for what is none.
    pub(crate) fn parse(target: &Target, text: &str) -> Option<Self> {
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
            Self::Default => f.write_str("the kernel's own way"),
            Self::Program(Program::Nearest { .. }) => f.write_str("to the nearest worker"),
            Self::Program(Program::Classic { instructions }) => {
                write!(f, "a classic program of {} instructions", instructions.len())
            }
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// How long a change lasts by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Persistence {
    /// As long as its sockets: until the server restarts.
    WhileOpen,
    /// As long as the thread, the daemon, or what is in the cgroup runs.
    WhileRunning,
    /// Until the next boot, or until the driver or the interface is set up anew.
    UntilReboot,
    /// Until it is undone: a reboot does not undo it.
    Kept,
}

/// For fuzz targets: the first line as the target of a plan, the rest as a value and as a file. A
/// target that is understood must be understood again from what is shown of it, and a variable's line
/// that is set must be found again.
#[doc(hidden)]
pub fn fuzzing_targets(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    if let Some(target) = Target::parse(first, None) {
        let again = target.to_plan().and_then(|text| Target::parse(&text, None));
        assert_eq!(again.as_ref(), Some(&target));
        drop(Value::parse(&target, rest));
    }
    configuration::fuzzing(rest);
}
