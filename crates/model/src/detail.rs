//! How much of the path is observed, and which stages there are.

use crate::Direction;
use serde::{Deserialize, Serialize};

/// How much of the path is observed: fewer hooks cost less.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Detail {
    /// Device, stack, socket and reader; queue and driver: what separates the parts of the path.
    Coarse,
    /// Also the main stages between them.
    Path,
    /// All stages.
    #[default]
    Full,
}

impl Detail {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Coarse => "coarse",
            Self::Path => "path",
            Self::Full => "full",
        }
    }
}

/// One line of `--list-stages`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StageListing {
    /// Receive or transmit.
    pub direction: Direction,
    /// Name of the stage.
    pub stage: &'static str,
    /// The lowest detail that includes it.
    pub detail: Detail,
    /// The kernel function that it observes.
    pub function: &'static str,
    /// The tracepoint and how it is attached; `None` if the stage cannot be observed.
    pub attach: Option<String>,
    /// Why it cannot be observed.
    pub reason: Option<String>,
}
