//! Grouping of packets, and the names of groups. Input: the bytes of a `struct group` (`bpf/group_names.h`).
//! Output: its name, as in the kernel's tools.

use nearpath_model::Per;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

/// Maximum number of groups (`GROUPS_MAX`).
pub const GROUPS_MAX: u32 = constants::GROUPS_MAX as u32;

/// Offsets of the fields of a `struct group`, by kind.
const NAME: usize = 8;
/// Used instead of the name of a cgroup that was removed before its name was read (`bpf/cgroups.h`).
const CGROUP_REMOVED: u8 = 1;
const CGROUP_LEVELS: usize = constants::CGROUP_LEVELS as usize;
const CGROUP_NAME: usize = constants::CGROUP_NAME as usize;
/// The group of packets without a process.
use crate::constants::{self, NO_PROCESS};
/// Separates a queue and its namespace.
const NETNS: &str = " netns ";
/// Name of the group of all others.
pub const OTHERS: &str = "others";

/// How the result is grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grouping {
    /// The grouping.
    pub per: Per,
    /// Number of groups shown.
    pub top: usize,
    /// Order of the groups.
    pub sort: Sort,
}

/// Selects the groups shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sort {
    /// Those with most packets.
    #[default]
    Packets,
    /// Those with the highest end-to-end 99th percentile, or maximum if there are few samples.
    P99,
}

/// The number of a grouping in the programs (`enum per`).
pub fn number(per: Per) -> u32 {
    match per {
        Per::Cpu => 1,
        Per::Node => 2,
        Per::Queue => 3,
        Per::Flow => 4,
        Per::Process => 5,
        Per::Cgroup => 6,
    }
}

/// Whether the group is known only at the end of a path, so that the path must be recorded.
pub fn is_known_late(per: Per) -> bool {
    matches!(per, Per::Process | Per::Cgroup)
}

/// The 64-bit number at an offset; 0 beyond the end.
pub fn word(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u64::from_ne_bytes).unwrap_or_default()
}

/// Display name of a group.
pub fn name(per: Per, id: u64, value: &[u8]) -> String {
    let half = |at: usize| u32::try_from(word(value, NAME + at) & 0xffff_ffff).unwrap_or_default();
    let name = value.get(NAME..).unwrap_or_default();
    match per {
        _ if id == NO_PROCESS => "no process".to_owned(),
        Per::Cpu => format!("cpu {}", id.saturating_sub(1)),
        Per::Node if id > u64::from(u32::MAX) => "node unknown".to_owned(),
        Per::Node => format!("node {}", id.saturating_sub(1)),
        Per::Queue => {
            let device = comm(name.get(16..32).unwrap_or_default());
            let direction = if half(8) == 0 { "rx" } else { "tx" };
            let queue = half(12).checked_sub(1);
            let queue = queue.map_or_else(|| "unknown".to_owned(), |queue| queue.to_string());
            format!("{device} {direction}-{queue}{NETNS}{}", half(0))
        }
        Per::Flow => flow(name.get(..40).unwrap_or_default()).unwrap_or_default(),
        Per::Process => {
            let comm = comm(name.get(8..24).unwrap_or_default());
            match half(0) {
                0 => format!("{comm} (other PID namespace)"),
                pid => format!("{comm}/{pid}"),
            }
        }
        Per::Cgroup => cgroup(name),
    }
}

/// The path from its names, the leaf first; the root of a hierarchy has no name.
pub fn cgroup(names: &[u8]) -> String {
    if names.first() == Some(&CGROUP_REMOVED) {
        return "removed".to_owned();
    }
    let names: Vec<String> =
        names.chunks_exact(CGROUP_NAME).take(CGROUP_LEVELS).map(comm).collect();
    let deep = names.iter().all(|name| !name.is_empty());
    let path: Vec<&str> =
        names.iter().rev().map(String::as_str).filter(|name| !name.is_empty()).collect();
    format!("{}/{}", if deep { "…" } else { "" }, path.join("/"))
}

/// The short name of each group if that is unique, else its full name.
pub fn short_names(names: &[&str]) -> Vec<String> {
    let short = |name: &str| name.split(NETNS).next().unwrap_or_default().to_owned();
    let mut uses: BTreeMap<String, usize> = BTreeMap::new();
    for name in names {
        *uses.entry(short(name)).or_default() += 1;
    }
    let unique = |name: &&str| match short(name) {
        short if uses.get(&short) == Some(&1) => short,
        _ => (*name).to_owned(),
    };
    names.iter().map(unique).collect()
}

/// A zero-terminated name.
pub fn comm(bytes: &[u8]) -> String {
    let name = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

/// `struct tuple` of `bpf/filter.h` as text.
pub fn flow(bytes: &[u8]) -> Option<String> {
    let address = |at: usize| {
        let bytes: [u8; 16] = bytes.get(at..at + 16)?.try_into().ok()?;
        let address = Ipv6Addr::from(bytes);
        Some(address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4))
    };
    let port = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    if *bytes.get(37)? == 0 {
        return None;
    }
    let (src, dst) = (address(0)?, address(16)?);
    let end = |address: IpAddr, port: u16| match (address, port) {
        (_, 0) => address.to_string(),
        (IpAddr::V4(_), port) => format!("{address}:{port}"),
        (IpAddr::V6(_), port) => format!("[{address}]:{port}"),
    };
    let protocol = match *bytes.get(36)? {
        1 | 58 => "ICMP".to_owned(),
        6 => "TCP".to_owned(),
        17 => "UDP".to_owned(),
        other => format!("protocol {other}"),
    };
    Some(format!("{protocol} {} > {}", end(src, port(32)?), end(dst, port(34)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn groups_have_their_usual_names() {
        let mut value = vec![0; 8 + 512];
        assert_eq!(name(Per::Cpu, 4, &value), "cpu 3");
        assert_eq!(name(Per::Node, 1, &value), "node 0");
        assert_eq!(name(Per::Node, 1 << 32, &value), "node unknown");
        assert_eq!(name(Per::Cgroup, 5, &value), "/");
        assert_eq!(name(Per::Process, NO_PROCESS, &value), "no process");
        value[8..12].copy_from_slice(&42u32.to_ne_bytes());
        value[16..21].copy_from_slice(b"nginx");
        assert_eq!(name(Per::Process, 42, &value), "nginx/42");
        let mut queue = vec![0; 8 + 512];
        queue[24..28].copy_from_slice(b"eth0");
        assert_eq!(name(Per::Queue, 9, &queue), "eth0 rx-unknown netns 0");
        queue[16..20].copy_from_slice(&1u32.to_ne_bytes());
        queue[20..24].copy_from_slice(&3u32.to_ne_bytes());
        assert_eq!(name(Per::Queue, 9, &queue), "eth0 tx-2 netns 0");
        let mut cgroup = vec![0; 8 + 512];
        cgroup[8..13].copy_from_slice(b"inner");
        cgroup[72..77].copy_from_slice(b"outer");
        assert_eq!(name(Per::Cgroup, 9, &cgroup), "/outer/inner");
        (0..8).for_each(|level| cgroup[8 + level * 64] = b'x');
        assert!(
            name(Per::Cgroup, 9, &cgroup).starts_with("…/x/"),
            "{}",
            name(Per::Cgroup, 9, &cgroup)
        );
    }

    #[test]
    fn flows_have_their_usual_format() {
        let mut tuple = [0; 40];
        tuple[10..12].copy_from_slice(&[0xff; 2]);
        tuple[12..16].copy_from_slice(&[10, 0, 0, 1]);
        tuple[26..28].copy_from_slice(&[0xff; 2]);
        tuple[28..32].copy_from_slice(&[10, 0, 0, 2]);
        tuple[32..34].copy_from_slice(&5000u16.to_ne_bytes());
        tuple[34..36].copy_from_slice(&80u16.to_ne_bytes());
        tuple[36..38].copy_from_slice(&[6, 4]);
        assert_eq!(flow(&tuple).as_deref(), Some("TCP 10.0.0.1:5000 > 10.0.0.2:80"));
        tuple[..32].fill(0);
        tuple[15] = 1;
        tuple[36..38].copy_from_slice(&[17, 6]);
        assert_eq!(flow(&tuple).as_deref(), Some("UDP [::1]:5000 > [::]:80"));
        tuple[37] = 0;
        assert_eq!(flow(&tuple), None);
    }

    proptest! {
        #[test]
        fn any_bytes_have_a_name(bytes in prop::collection::vec(any::<u8>(), 0..600), id in any::<u64>()) {
            for per in [Per::Node, Per::Queue, Per::Flow, Per::Process, Per::Cgroup] {
                let _ = name(per, id.max(1), &bytes);
            }
        }
    }
}
