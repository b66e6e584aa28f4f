//! The lower devices that receive the packets of an upper (stacked) device: a bond, a VLAN, a macvlan.
//!
//! The kernel traces a received packet once (`__netif_receive_skb_core` of net/core/dev.c), with the device that
//! received it; upper devices take it over inside that function. So `--dev bond0` looks for packets of the lower
//! devices, with the VLAN tags and the address that would lead them to `bond0`. A bridge, an internal port of
//! Open vSwitch and a tunnel receive packets again, and do not need this.

use anyhow::anyhow;
use nearpath_instruments::{LOWER_DEVICES_MAX, LowerDevice, VLANS_MAX};
use nearpath_model::{Host, Nic, NicKind};

/// Maximum depth of stacked devices.
const DEPTH_MAX: usize = 8;

/// The lower devices that packets reach this one through.
///
/// # Errors
/// There are more than the BPF programs can match.
pub fn lower_devices(host: &Host, upper: &Nic) -> anyhow::Result<Vec<LowerDevice>> {
    let mut found = Vec::new();
    descend(host, upper, &LowerDevice::default(), DEPTH_MAX, &mut found);
    if found.len() > LOWER_DEVICES_MAX {
        return Err(anyhow!(
            "{} has {} lower devices; the filter supports up to {LOWER_DEVICES_MAX}: name one of them",
            upper.name,
            found.len()
        ));
    }
    if let Some(lower) = found.iter().find(|lower| lower.vlans.len() > VLANS_MAX) {
        return Err(anyhow!(
            "{} has {} nested VLAN tags; the filter supports up to {VLANS_MAX}: name a lower device",
            upper.name,
            lower.vlans.len()
        ));
    }
    Ok(found)
}

/// Adds the lower devices of `nic`; `above` is what its packets must match.
fn descend(
    host: &Host,
    nic: &Nic,
    above: &LowerDevice,
    depth: usize,
    found: &mut Vec<LowerDevice>,
) {
    let here = |other: &&Nic| other.netns == nic.netns && other.ifindex != nic.ifindex;
    let mut above = above.clone();
    let below: Vec<&Nic> = match nic.kind {
        // Its ports. A VRF is of kind `Other`.
        NicKind::Bond | NicKind::Other => {
            let is_port = |other: &&Nic| other.master.as_deref() == Some(nic.name.as_str());
            host.nics.iter().filter(here).filter(is_port).collect()
        }
        NicKind::Vlan => {
            let Some(vlan) = nic.vlan else { return };
            // The tag of the lower device is the outer one.
            above.vlans.insert(0, vlan);
            link(host, nic).into_iter().collect()
        }
        // An ipvlan shares its lower device's address, and matches packets by IP address.
        NicKind::Macvlan | NicKind::Macvtap if nic.driver.as_deref() != Some("ipvlan") => {
            above.address = above.address.or(nic.address.as_deref().and_then(address));
            link(host, nic).into_iter().collect()
        }
        _ => Vec::new(),
    };
    if depth == 0 {
        return;
    }
    for lower in below {
        found.push(LowerDevice { ifindex: lower.ifindex.0, ..above.clone() });
        descend(host, lower, &above, depth - 1, found);
    }
}

/// The lower device, if it is in the same namespace.
fn link<'a>(host: &'a Host, nic: &Nic) -> Option<&'a Nic> {
    let name = nic.link.as_deref()?;
    host.nics.iter().find(|other| other.name == name && other.netns == nic.netns)
}

/// `52:54:00:00:00:0a`
fn address(text: &str) -> Option<[u8; 6]> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    parts.next().is_none().then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::IfIndex;

    fn nic(name: &str, ifindex: u32, kind: NicKind, more: serde_json::Value) -> Nic {
        let mut nic = serde_json::json!({
            "name": name, "ifindex": IfIndex(ifindex), "kind": kind, "netns": {},
            "rx_queues": [], "tx_queues": [], "statistics": {},
        });
        let fields = more.as_object().unwrap().clone();
        nic.as_object_mut().unwrap().extend(fields);
        serde_json::from_value(nic).unwrap()
    }

    fn host() -> Host {
        use NicKind::{Bond, Macvlan, Physical, Vlan};
        let nics = vec![
            nic("eth0", 2, Physical, serde_json::json!({ "master": "bond0" })),
            nic("eth1", 3, Physical, serde_json::json!({ "master": "bond0" })),
            nic("bond0", 4, Bond, serde_json::json!({})),
            nic("bond0.100", 5, Vlan, serde_json::json!({ "link": "bond0", "vlan": 100 })),
            nic("inner", 6, Vlan, serde_json::json!({ "link": "bond0.100", "vlan": 7 })),
            nic(
                "macvlan0",
                8,
                Macvlan,
                serde_json::json!({ "link": "inner", "address": "52:54:00:00:00:0a" }),
            ),
            nic("deep", 9, Vlan, serde_json::json!({ "link": "inner", "vlan": 8 })),
            nic(
                "ipvlan0",
                10,
                Macvlan,
                serde_json::json!({ "link": "bond0", "driver": "ipvlan", "address": "52:54:00:00:00:01" }),
            ),
        ];
        Host { nics, ..Host::default() }
    }

    /// Index, VLANs, address.
    type Below = (u32, Vec<u16>, Option<[u8; 6]>);

    fn below(name: &str) -> anyhow::Result<Vec<Below>> {
        let host = host();
        let upper = host.nics.iter().find(|nic| nic.name == name).unwrap();
        let lower = lower_devices(&host, upper)?;
        Ok(lower.into_iter().map(|lower| (lower.ifindex, lower.vlans, lower.address)).collect())
    }

    #[test]
    fn stacked_devices_are_resolved() {
        assert_eq!(below("eth0").unwrap(), []);
        assert_eq!(below("bond0").unwrap(), [(2, vec![], None), (3, vec![], None)]);
        let tagged = |ifindex, vlans: &[u16]| (ifindex, vlans.to_vec(), None);
        assert_eq!(
            below("bond0.100").unwrap(),
            [tagged(4, &[100]), tagged(2, &[100]), tagged(3, &[100])]
        );
        let address = Some([0x52, 0x54, 0, 0, 0, 0xa]);
        assert_eq!(
            below("macvlan0").unwrap(),
            [
                (6, vec![], address),
                (5, vec![7], address),
                (4, vec![100, 7], address),
                (2, vec![100, 7], address),
                (3, vec![100, 7], address)
            ]
        );
        assert_eq!(below("ipvlan0").unwrap(), [], "an ipvlan has no address of its own");
    }

    #[test]
    fn too_many_vlans_are_an_error() {
        let error = below("deep").unwrap_err().to_string();
        assert_eq!(
            error,
            "deep has 3 nested VLAN tags; the filter supports up to 2: name a lower device"
        );
    }

    #[test]
    fn an_address_is_six_bytes() {
        assert_eq!(address("52:54:00:00:00:0a"), Some([0x52, 0x54, 0, 0, 0, 0xa]));
        assert_eq!(address("52:54:00"), None);
        assert_eq!(address("52:54:00:00:00:0a:00"), None);
        assert_eq!(address("x"), None);
    }
}
