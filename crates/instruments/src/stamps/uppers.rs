//! Upper devices of one NIC alone, whose packets are the NIC's: VLANs, macvlans and macvtaps, and bonds with
//! one port. A packet that has passed them is known by the last of them (`skb_iif`, net/core/dev.c).

use nearpath_model::{IfIndex, Nic, NicKind, StampingNic};

/// Maximum number of devices above each other.
const MAX_DEPTH: usize = 8;
/// Maximum number of such devices: their map has room for 1,024 with the NICs.
const MAX_UPPERS: usize =
    (crate::constants::NICS_AND_UPPERS_MAX - crate::constants::NICS_MAX) as usize;

/// A device, and the NIC below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upper {
    /// Inode of the network namespace of both.
    pub netns: Option<u32>,
    /// Its index.
    pub ifindex: IfIndex,
    /// That of the NIC.
    nic: IfIndex,
}

impl Upper {
    /// Whether it is above this NIC.
    pub fn is_above(&self, nic: &StampingNic) -> bool {
        (self.netns, self.nic) == (nic.netns, nic.ifindex)
    }
}

/// Those of interfaces with exactly one lower device each.
pub fn uppers(nics: &[Nic]) -> Vec<Upper> {
    let upper = |one: &Nic| {
        let mut lower = below(nics, one)?;
        for _ in 0..MAX_DEPTH {
            match below(nics, lower) {
                Some(next) => lower = next,
                None => break,
            }
        }
        let netns = one.netns.inode.and_then(|inode| u32::try_from(inode).ok());
        Some(Upper { netns, ifindex: one.ifindex, nic: lower.ifindex })
    };
    nics.iter().filter_map(upper).take(MAX_UPPERS).collect()
}

/// The only lower device of another.
fn below<'a>(nics: &'a [Nic], one: &Nic) -> Option<&'a Nic> {
    let here = || nics.iter().filter(|other| other.netns == one.netns);
    match one.kind {
        NicKind::Vlan | NicKind::Macvlan | NicKind::Macvtap => {
            let link = one.link.as_ref()?;
            here().find(|other| other.name == *link)
        }
        NicKind::Bond => {
            let mut ports = here().filter(|other| other.master.as_ref() == Some(&one.name));
            let port = ports.next()?;
            ports.next().is_none().then_some(port)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nic(ifindex: u32, name: &str, kind: NicKind) -> Nic {
        let nic = serde_json::json!({
            "name": name, "ifindex": ifindex, "kind": kind, "netns": { "inode": 7 },
            "rx_queues": [], "tx_queues": [], "statistics": {},
        });
        serde_json::from_value(nic).unwrap()
    }

    fn on(ifindex: u32, name: &str, kind: NicKind, link: &str) -> Nic {
        Nic { link: Some(link.to_owned()), ..nic(ifindex, name, kind) }
    }

    fn port(ifindex: u32, name: &str, master: &str) -> Nic {
        Nic { master: Some(master.to_owned()), ..nic(ifindex, name, NicKind::Physical) }
    }

    #[test]
    fn devices_on_one_nic_have_it() {
        let nics = [
            port(1, "nic0", "bond0"),
            nic(2, "bond0", NicKind::Bond),
            on(3, "bond0.5", NicKind::Vlan, "bond0"),
            on(4, "macvtap0", NicKind::Macvtap, "bond0.5"),
            port(5, "nic1", "bond1"),
            port(6, "nic2", "bond1"),
            nic(7, "bond1", NicKind::Bond),
            on(8, "bond1.5", NicKind::Vlan, "bond1"),
            nic(9, "br0", NicKind::Bridge),
            on(10, "veth0", NicKind::Veth, "veth1"),
            on(11, "gone.5", NicKind::Vlan, "gone"),
        ];
        let found = uppers(&nics);
        let pairs: Vec<_> = found.iter().map(|one| (one.ifindex.0, one.nic.0)).collect();
        // Of a bond with two ports it is not known which one a packet came by: what is on it ends there, without a clock.
        assert_eq!(pairs, [(2, 1), (3, 1), (4, 1), (8, 7)]);
        assert!(found.iter().all(|one| one.netns == Some(7)));
    }

    #[test]
    fn devices_on_themselves_end() {
        let nics = [on(1, "a", NicKind::Vlan, "b"), on(2, "b", NicKind::Vlan, "a")];
        assert_eq!(uppers(&nics).len(), 2);
    }
}
