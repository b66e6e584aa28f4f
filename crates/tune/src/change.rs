//! One reversible write to the host, as plain data.

use crate::ethtool::NicSetting;
use crate::files::SettingFile;
use crate::steering::{Group, Program};
use crate::threads::Thread;
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
}

impl Target {
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
    /// As long as the thread runs.
    WhileRunning,
    /// Until the next boot, or until the driver or the interface is set up anew.
    UntilReboot,
}
