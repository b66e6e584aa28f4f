//! Numbers that must not be mixed up: one type per kind.

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = std::num::ParseIntError;
            fn from_str(s: &str) -> Result<Self, Self::Err> {
                s.trim().parse().map($name)
            }
        }
    };
}

id!(
    /// A logical CPU, as numbered in `/sys/devices/system/cpu/cpuN`.
    CpuId
);
id!(
    /// A NUMA node, as numbered in `/sys/devices/system/node/nodeN`.
    NodeId
);
id!(
    /// A last-level cache, unique on the host.
    LlcId
);
id!(
    /// A Linux interrupt number, as in `/proc/irq/N`.
    IrqNumber
);
id!(
    /// A receive or transmit queue of a NIC, counted from 0.
    QueueId
);
id!(
    /// A network interface's index within its namespace.
    IfIndex
);
