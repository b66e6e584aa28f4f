//! Interrupt coalescing: the names of its settings, and the shortest delay that a driver accepts.

use super::Nic;

/// Whether the driver adapts the receive delay (`ETHTOOL_A_COALESCE_USE_ADAPTIVE_RX`).
pub const ADAPTIVE_RX: &str = "use-adaptive-rx";

/// The receive delay in µs (`ETHTOOL_A_COALESCE_RX_USECS`).
pub const RX_USECS: &str = "rx-usecs";

/// The delay in µs for low latency. Without a delay nearly every packet would raise an interrupt.
const LATENCY_USECS: u64 = 8;

/// Drivers with a shortest fixed delay of their own, in µs. Here an `rx-usecs` of 1 to 4 selects an adaptive mode, and
/// another one below 10 is refused with EINVAL (`igb_set_coalesce` of igb_ethtool.c, `igc_ethtool_set_coalesce` of
/// igc_ethtool.c, `igbvf_set_coalesce`, `e1000_set_coalesce` of e1000 and e1000e). 0 is no delay at all.
const SHORTEST_USECS: [(&str, u64); 5] =
    [("e1000", 10), ("e1000e", 10), ("igb", 10), ("igbvf", 10), ("igc", 10)];

impl Nic {
    /// Whether the driver adapts the receive delay; `None` if it does not report that.
    pub fn adaptive_rx(&self) -> Option<bool> {
        self.coalesce.as_ref()?.get(ADAPTIVE_RX).map(|on| *on != 0)
    }

    /// The receive delay in µs.
    pub fn rx_usecs(&self) -> Option<u64> {
        self.coalesce.as_ref()?.get(RX_USECS).copied()
    }

    /// The receive delay in µs to choose for low latency, which the driver accepts.
    pub fn latency_usecs(&self) -> u64 {
        self.shortest_usecs().unwrap_or(LATENCY_USECS)
    }

    /// The adaptive mode that the receive delay selects, for drivers with such modes.
    pub fn rx_usecs_mode(&self) -> Option<u64> {
        let shortest = self.shortest_usecs()?;
        self.rx_usecs().filter(|usecs| (1..shortest).contains(usecs))
    }

    fn shortest_usecs(&self) -> Option<u64> {
        let driver = self.driver.as_deref()?;
        SHORTEST_USECS.iter().find(|(name, _)| *name == driver).map(|(_, usecs)| *usecs)
    }
}
