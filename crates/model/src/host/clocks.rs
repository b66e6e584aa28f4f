//! The clocks that transmission is scheduled by.

use serde::{Deserialize, Serialize};

/// The kernel's clock, and those of NICs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clocks {
    /// Seconds that CLOCK_TAI is ahead of the wall clock; 0: nobody has set it (`struct timex`, `tai`).
    pub tai_offset_s: i32,
    /// Whether a daemon keeps the wall clock synchronised (`STA_UNSYNC` is not set).
    pub synchronised: bool,
    /// Most error of the wall clock as far as that daemon knows, in microseconds (`maxerror`).
    pub max_error_us: u64,
    /// Clocks of the NICs that schedule transmission in hardware.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nic_clocks: Vec<NicClock>,
}

/// The clock of a NIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicClock {
    /// The NIC.
    pub nic: String,
    /// Its number: that of `/dev/ptp0`.
    pub phc: u32,
    /// How far it is ahead of CLOCK_TAI, in nanoseconds; `None` if it could not be read.
    pub ahead_of_tai_ns: Option<i64>,
}
