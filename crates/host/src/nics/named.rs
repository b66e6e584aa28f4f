//! An interface by its name, in the thread's network namespace, for code that changes it.

use super::netlink::{Connection, rtnetlink};
use nearpath_model::{IfIndex, Qdisc};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;

/// The index of an interface; `None` if there is none with this name.
pub fn interface_index(name: &str) -> Option<IfIndex> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name ends with a zero.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => None,
        index => Some(IfIndex(index)),
    }
}

/// The qdiscs of an interface, as in [`nearpath_model::Nic::qdiscs`]; `None` if there is none with this name.
///
/// # Errors
/// The kernel does not list them.
pub fn interface_qdiscs(name: &str) -> io::Result<Option<Vec<Qdisc>>> {
    let Some(index) = interface_index(name) else { return Ok(None) };
    let mut all = rtnetlink::qdiscs(&mut Connection::open(libc::NETLINK_ROUTE)?)?;
    // It may have gone meanwhile, and its qdiscs with it.
    Ok(interface_index(name).map(|_| all.remove(&index).unwrap_or_default()))
}

/// The `egress-qos-map` of a VLAN, as in [`nearpath_model::Nic::vlan_egress`]; `None` if there is no VLAN with this name.
///
/// # Errors
/// The kernel does not list the links.
pub fn interface_vlan_egress(name: &str) -> io::Result<Option<BTreeMap<u32, u8>>> {
    let Some(index) = interface_index(name) else { return Ok(None) };
    let mut all = rtnetlink::links(&mut Connection::open(libc::NETLINK_ROUTE)?)?;
    Ok(all.remove(&index).and_then(|link| link.vlan_egress))
}
