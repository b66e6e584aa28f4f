//! ethtool requests about one interface, for code that changes it: the transport, and the layouts of
//! `include/uapi/linux/ethtool.h` and `ethtool_netlink.h` used by requests.
//!
//! No request that changes something is built here.

pub use crate::nics::device::{Device, Feature, coalesce_attribute};
pub use crate::nics::ioctl::{Ioctl, Rxfh, Rxnfc, rxnfc};
pub use crate::nics::netlink::attributes::{attribute, nested};
pub use crate::nics::ntuple::{FlowSpec, rule as rule_of, spec as spec_of};
