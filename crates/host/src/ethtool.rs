//! Ethtool's requests about one interface, for whoever changes it: how to ask, and the layouts of
//! `include/uapi/linux/ethtool.h` and `ethtool_netlink.h` that requests are made of.
//!
//! Nothing here composes a request that changes something.

pub use crate::nics::device::{Device, Feature, coalesce_attribute};
pub use crate::nics::ioctl::{Ioctl, Rxfh, Rxnfc, rxnfc};
pub use crate::nics::netlink::attributes::{attribute, nested};
pub use crate::nics::ntuple::{FlowSpec, rule as rule_of, spec as spec_of};
