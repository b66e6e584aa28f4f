//! The kind of an interface: from rtnetlink if available, else from the driver, else from sysfs.

use super::sysfs::Interface;
use nearpath_model::NicKind;

/// `ARPHRD_LOOPBACK`, include/uapi/linux/if_arp.h.
const ARPHRD_LOOPBACK: u32 = 772;

/// Determines the kind of an interface. `rtnl` is `IFLA_INFO_KIND`, `driver` the driver in `ethtool -i`,
/// `mutual` whether its `iflink` is an interface whose `iflink` is this one.
pub(super) fn kind(
    interface: &Interface,
    rtnl: Option<&str>,
    driver: Option<&str>,
    mutual: bool,
) -> NicKind {
    if interface.hardware_type == Some(ARPHRD_LOOPBACK) {
        return NicKind::Loopback;
    }
    if let Some(kind) = rtnl.and_then(by_rtnl_kind) {
        return kind;
    }
    if let Some(device) = &interface.device {
        return if device.physical_function.is_some() {
            NicKind::Vf
        } else if device.is_virtio() || driver == Some("virtio_net") {
            NicKind::Virtio
        } else {
            NicKind::Physical
        };
    }
    let word =
        driver.and_then(by_rtnl_kind).or_else(|| by_rtnl_kind(interface.devtype.as_deref()?));
    match word {
        // ethtool's name for the driver of a macvtap is `macvlan`.
        Some(NicKind::Macvlan) if interface.macvtap => NicKind::Macvtap,
        Some(kind) => kind,
        // rtnetlink's answer is final; the kind is guessed only without it.
        None if rtnl.is_some() => NicKind::Other,
        None if interface.macvtap => NicKind::Macvtap,
        None if interface.tun => NicKind::Tap,
        // The name of every OVS kernel datapath (lib/dpif.c).
        None if interface.name == "ovs-system" => NicKind::OvsInternal,
        None if mutual => NicKind::Veth,
        None => NicKind::Other,
    }
}

/// The names in `rtnl_link_ops.kind`, mostly equal to those of the drivers and of DEVTYPE.
fn by_rtnl_kind(word: &str) -> Option<NicKind> {
    Some(match word {
        "veth" => NicKind::Veth,
        "tun" => NicKind::Tap,
        "macvtap" | "ipvtap" => NicKind::Macvtap,
        "macvlan" | "ipvlan" => NicKind::Macvlan,
        "bridge" => NicKind::Bridge,
        "bond" | "bonding" | "team" => NicKind::Bond,
        "vlan" => NicKind::Vlan,
        "openvswitch" => NicKind::OvsInternal,
        "vxlan" | "geneve" | "gre" | "gretap" | "ip6gre" | "ip6gretap" | "erspan" | "ip6erspan"
        | "ipip" | "ip6tnl" | "sit" | "vti" | "vti6" | "xfrm" | "wireguard" | "gtp" | "bareudp"
        | "fou" | "l2tpeth" | "ovpn" => NicKind::Tunnel,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::sysfs::Device;
    use super::*;

    fn software(name: &str) -> Interface {
        Interface { name: name.to_owned(), ..Interface::default() }
    }

    #[test]
    fn rtnetlink_has_the_kind() {
        for (word, expected) in [
            ("openvswitch", NicKind::OvsInternal),
            ("macvtap", NicKind::Macvtap),
            ("geneve", NicKind::Tunnel),
            ("team", NicKind::Bond),
            ("dummy", NicKind::Other),
        ] {
            assert_eq!(kind(&software("x"), Some(word), None, true), expected, "{word}");
        }
    }

    #[test]
    fn a_device_on_a_bus() {
        let on = |path: &str, pf: Option<&str>| Interface {
            device: Some(Device {
                path: path.to_owned(),
                physical_function: pf.map(str::to_owned),
                ..Device::default()
            }),
            ..software("eth0")
        };
        let pci = "/sys/devices/pci0000:00/0000:00:03.0";
        assert_eq!(kind(&on(pci, None), None, Some("mlx5_core"), false), NicKind::Physical);
        assert_eq!(kind(&on(pci, Some("eth1")), None, Some("iavf"), false), NicKind::Vf);
        let virtio = on(&format!("{pci}/virtio2"), None);
        assert_eq!(kind(&virtio, None, None, false), NicKind::Virtio);
    }

    #[test]
    fn sysfs_alone() {
        let with = |change: fn(&mut Interface)| {
            let mut interface = software("x");
            change(&mut interface);
            kind(&interface, None, None, false)
        };
        assert_eq!(with(|i| i.hardware_type = Some(772)), NicKind::Loopback);
        assert_eq!(with(|i| i.devtype = Some("bridge".to_owned())), NicKind::Bridge);
        assert_eq!(with(|i| i.tun = true), NicKind::Tap);
        assert_eq!(with(|i| i.macvtap = true), NicKind::Macvtap);
        assert_eq!(with(|i| i.name = "ovs-system".to_owned()), NicKind::OvsInternal);
        assert_eq!(with(|_| ()), NicKind::Other);
        assert_eq!(kind(&software("v0"), None, None, true), NicKind::Veth);
        assert_eq!(kind(&software("br0"), None, Some("openvswitch"), false), NicKind::OvsInternal);
    }
}
