//! One reversible write to the host, as plain data.

use crate::steering::{Group, Program};
use serde::{Deserialize, Serialize};

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
}

/// What is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    /// Nothing: the kernel's own way.
    Default,
    /// A program that chooses a socket.
    Program(Program),
}

/// How long a change lasts by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Persistence {
    /// As long as its sockets: until the server restarts.
    WhileOpen,
}
