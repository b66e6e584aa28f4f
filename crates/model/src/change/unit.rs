//! Settings of a running systemd unit.

use super::{Persistence, TargetKind, is_service, is_slice};
use crate::CpuSet;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The only service that nearpath starts and stops.
const IRQBALANCE: &str = "irqbalance.service";

/// A setting of a unit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UnitSetting {
    /// The unit: `nginx.service`.
    pub unit: String,
    /// Which of its settings.
    pub property: UnitProperty,
    /// Set once it was changed: whether systemd had no drop-in for it before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drop_in_is_new: bool,
}

/// A setting of a unit, by systemd's name for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnitProperty {
    /// Whether it runs: `active` or `inactive`. Only irqbalance is stopped.
    ActiveState,
    /// The CPUs that it may use, empty if not limited (systemd.resource-control(5)).
    AllowedCpus,
    /// The nodes that it may allocate memory on, empty if not limited.
    AllowedMemoryNodes,
}

impl UnitProperty {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::ActiveState, Self::AllowedCpus, Self::AllowedMemoryNodes];

    /// systemd's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::ActiveState => "ActiveState",
            Self::AllowedCpus => "AllowedCPUs",
            Self::AllowedMemoryNodes => "AllowedMemoryNodes",
        }
    }
}

impl fmt::Display for UnitSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unit {} {}", self.unit, self.property.name())
    }
}

impl UnitSetting {
    /// A setting of a unit.
    pub fn new(unit: &str, property: UnitProperty) -> Self {
        Self { unit: unit.to_owned(), property, drop_in_is_new: false }
    }

    /// Whether another one is the same setting.
    pub fn same_place(&self, other: &Self) -> bool {
        (&self.unit, self.property) == (&other.unit, other.property)
    }

    /// Whether irqbalance runs.
    pub fn irqbalance() -> Self {
        Self::new(IRQBALANCE, UnitProperty::ActiveState)
    }

    /// Parses its text in a plan: `unit nginx.service AllowedCPUs`; `None` if it is not a setting that may be
    /// changed.
    pub fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let ["unit", unit, name] = words[..] else { return None };
        let property = UnitProperty::ALL.into_iter().find(|property| property.name() == name)?;
        let allowed = match property {
            UnitProperty::ActiveState => unit == IRQBALANCE,
            UnitProperty::AllowedCpus => is_service(unit),
            // A slice has no NUMAPolicy= (systemd.exec(5)), but has this one.
            UnitProperty::AllowedMemoryNodes => is_service(unit) || is_slice(unit),
        };
        allowed.then(|| Self::new(unit, property))
    }
}

impl TargetKind for UnitSetting {
    fn of_plan(text: &str, _: Option<u64>) -> Option<Self> {
        Self::parse(text)
    }

    fn kind(&self) -> &'static str {
        match self.property {
            UnitProperty::ActiveState => "unit_state",
            UnitProperty::AllowedCpus | UnitProperty::AllowedMemoryNodes => "unit_cpuset",
        }
    }

    fn persistence(&self) -> Persistence {
        Persistence::UntilReboot
    }

    fn set_of(&self, value: &str) -> Option<CpuSet> {
        let is_set = self.property != UnitProperty::ActiveState;
        is_set.then(|| CpuSet::from_list(value).ok())?
    }

    fn is_same_place(&self, other: &Self) -> bool {
        self.same_place(other)
    }
}
