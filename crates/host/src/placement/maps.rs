//! `/proc/PID/numa_maps` by kind of memory (fs/proc/task_mmu.c, `show_numa_map`), in one pass over its lines.
//!
//! ```text
//! 55d0c8a00000 default heap anon=12 dirty=12 N0=12 kernelpagesize_kB=4
//! 7f2a40000000 bind:0 file=/dev/hugepages/rtemap_0 huge dirty=4 N0=3 N1=1 kernelpagesize_kB=2048
//! 7f2b00000000 default file=/usr/lib/libc.so.6 anon=2 dirty=2 mapped=380 mapmax=40 N0=380 kernelpagesize_kB=4
//! ```
//! `N0=3` counts pages of `kernelpagesize_kB` (in a transparent hugepage its small pages), `anon` those of them that are
//! anonymous: in a mapping of a file private copies, which may be on another node than the file's pages.

use crate::cpu_table::{Malformed, number, printable};
use crate::memory::{MAX_DEVICES, is_device};
use nearpath_model::memory::NodeBytes;
use nearpath_model::{MAX_CPUS, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of policies distinguished; the others count as `other`.
const MAX_POLICIES: usize = 32;
/// Maximum length of a policy; the kernel's buffer has 64 bytes (`show_numa_map`).
const MAX_POLICY: usize = 64;

/// The mapped memory of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryMaps {
    /// Bytes by node and kind.
    pub nodes: BTreeMap<NodeId, NodeBytes>,
    /// hugetlb pages by page size in bytes and node; part of `nodes`.
    pub hugetlb: BTreeMap<u64, BTreeMap<NodeId, u64>>,
    /// Bytes whose kind by node is estimated: of mappings with anonymous and other pages on several nodes.
    pub estimated: u64,
    /// Bytes by policy.
    pub policies: BTreeMap<String, u64>,
    /// Policy of the main thread's stack: that of the process, unless the stack has one of its own.
    pub policy: Option<String>,
    /// Number of mappings.
    pub mappings: u64,
    /// Devices among the mapped files that may write to memory.
    pub devices: BTreeSet<String>,
    /// A mapped socket: the rings of AF_XDP or of a packet socket.
    pub socket: Option<String>,
}

/// A mapping: a line of `numa_maps`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mapping<'a> {
    /// Its first address.
    pub start: u64,
    /// Its memory policy, in the kernel's spelling.
    pub policy: &'a [u8],
    /// The file that is mapped.
    pub file: Option<&'a [u8]>,
    /// Whether it is the stack of the main thread.
    pub is_stack: bool,
    /// Whether it is of hugetlb pages.
    pub is_huge: bool,
    /// Anonymous pages.
    pub anon: u64,
    /// The size of a page in bytes; `None` if it has none.
    pub page_bytes: Option<u64>,
    /// Pages by node.
    pub pages: Vec<(NodeId, u64)>,
}

/// Parses `/proc/PID/numa_maps`.
///
/// # Errors
/// Pages on a node without their size, a malformed number, or more bytes than fit.
pub fn parse_memory_maps(bytes: &[u8]) -> Result<MemoryMaps, Malformed> {
    let mut maps = MemoryMaps::default();
    each_mapping(bytes, |mapping| maps.add(mapping))?;
    Ok(maps)
}

/// Calls with each mapping of `/proc/PID/numa_maps`; `None` from it means that the line is malformed.
///
/// # Errors
/// As [`parse_memory_maps`].
pub fn each_mapping<'a>(
    bytes: &'a [u8],
    mut with: impl FnMut(&Mapping<'a>) -> Option<()>,
) -> Result<(), Malformed> {
    let mut pages = Vec::new();
    for line in bytes.split(|&b| b == b'\n').filter(|line| !line.is_empty()) {
        let mapping = Mapping::parse(line, std::mem::take(&mut pages));
        let mapping = mapping.filter(|mapping| with(mapping).is_some()).ok_or_else(|| {
            let start: String = printable(line).chars().take(80).collect();
            Malformed(format!("not a mapping: {start:?}"))
        })?;
        pages = mapping.pages;
    }
    Ok(())
}

impl MemoryMaps {
    /// Adds a mapping; `None` if it is malformed.
    fn add(&mut self, mapping: &Mapping<'_>) -> Option<()> {
        self.mappings += 1;
        if mapping.is_stack {
            self.policy = Some(policy_name(mapping.policy));
        }
        if let Some(file) = mapping.file {
            self.note_file(file);
        }
        let count =
            mapping.pages.iter().try_fold(0u64, |sum, (_, count)| sum.checked_add(*count))?;
        if count == 0 {
            return Some(());
        }
        let page_bytes = mapping.page_bytes?;
        let total = count.checked_mul(page_bytes)?;
        self.add_policy(mapping.policy, total)?;
        self.add_pages(mapping, count, page_bytes)
    }

    fn add_pages(&mut self, mapping: &Mapping<'_>, count: u64, page_bytes: u64) -> Option<()> {
        let anon = mapping.anon.min(count);
        let is_shared = mapping.file.is_some_and(is_shared_memory);
        let is_mixed = mapping.file.is_some() && anon > 0 && anon < count && !mapping.is_huge;
        if is_mixed && mapping.pages.len() > 1 {
            self.estimated = self.estimated.checked_add(count.checked_mul(page_bytes)?)?;
        }
        let mut anon_left = anon;
        let mut pages_left = count;
        for &(node, of_node) in &mapping.pages {
            let bytes = of_node.checked_mul(page_bytes)?;
            // In proportion, rounded so that the sum is exact.
            let anon_here = if is_mixed {
                let share =
                    u128::from(anon_left) * u128::from(of_node) / u128::from(pages_left.max(1));
                u64::try_from(share).ok()?
            } else if anon == count {
                of_node
            } else {
                0
            };
            anon_left = anon_left.saturating_sub(anon_here);
            pages_left = pages_left.saturating_sub(of_node);
            let anon_bytes = anon_here.checked_mul(page_bytes)?;
            let others = bytes.checked_sub(anon_bytes)?;
            let sums = self.nodes.entry(node).or_default();
            if mapping.is_huge {
                add(&mut sums.hugetlb_bytes, bytes)?;
                let sizes = self.hugetlb.entry(page_bytes).or_default();
                add(sizes.entry(node).or_default(), bytes)?;
                continue;
            }
            add(&mut sums.anon_bytes, anon_bytes)?;
            match mapping.file {
                Some(_) if is_shared => add(&mut sums.shared_bytes, others)?,
                Some(_) => add(&mut sums.file_bytes, others)?,
                // Without a file and not anonymous: the kernel's own pages, as the vDSO.
                None => add(&mut sums.anon_bytes, others)?,
            }
        }
        Some(())
    }

    fn add_policy(&mut self, policy: &[u8], bytes: u64) -> Option<()> {
        let name = policy_name(policy);
        let full = self.policies.len() >= MAX_POLICIES && !self.policies.contains_key(&name);
        let sum = self.policies.entry(if full { "other".to_owned() } else { name }).or_default();
        *sum = sum.checked_add(bytes)?;
        Some(())
    }

    fn note_file(&mut self, file: &[u8]) {
        if file.starts_with(b"socket:[") {
            self.socket.get_or_insert_with(|| printable(file));
        }
        if file.starts_with(b"/dev/")
            || file.starts_with(b"/sys/")
            || file.starts_with(b"anon_inode:")
        {
            let file = printable(file);
            if is_device(&file) && self.devices.len() < MAX_DEVICES {
                self.devices.insert(file);
            }
        }
    }
}

impl<'a> Mapping<'a> {
    /// Parses a line; `None` if it is malformed. `pages` is a buffer to reuse.
    fn parse(line: &'a [u8], mut pages: Vec<(NodeId, u64)>) -> Option<Self> {
        pages.clear();
        let mut words = line.split(|&b| b == b' ').filter(|word| !word.is_empty());
        let start = std::str::from_utf8(words.next()?).ok()?;
        let start = u64::from_str_radix(start, 16).ok()?;
        let mut mapping = Self { start, policy: words.next()?, pages, ..Self::default() };
        for word in words {
            match word {
                b"stack" => mapping.is_stack = true,
                b"huge" => mapping.is_huge = true,
                b"heap" => {}
                _ => mapping.word(word)?,
            }
        }
        Some(mapping)
    }

    /// Its bytes by node; `None` if their size is unknown, or there are more than fit.
    pub fn bytes(&self) -> Option<Vec<(NodeId, u64)>> {
        let bytes = |&(node, count): &(NodeId, u64)| match count {
            0 => Some((node, 0)),
            _ => Some((node, count.checked_mul(self.page_bytes?)?)),
        };
        self.pages.iter().map(bytes).collect()
    }

    fn word(&mut self, word: &'a [u8]) -> Option<()> {
        let Some(at) = word.iter().position(|&b| b == b'=') else { return Some(()) };
        let (name, value) = (word.get(..at)?, word.get(at + 1..)?);
        match name {
            b"file" => self.file = Some(value),
            b"anon" => self.anon = number(value)?,
            b"kernelpagesize_kB" => self.page_bytes = Some(number(value)?.checked_mul(1024)?),
            [b'N', node @ ..] => {
                // Other words may begin with it in a later kernel.
                let Some(node) = number(node) else { return Some(()) };
                let node = u32::try_from(node).ok().filter(|&node| node < MAX_CPUS)?;
                self.pages.push((NodeId(node), number(value)?));
            }
            _ => {}
        }
        Some(())
    }
}

/// `None` if there are more bytes than fit.
fn add(sum: &mut u64, bytes: u64) -> Option<()> {
    *sum = sum.checked_add(bytes)?;
    Some(())
}

fn policy_name(policy: &[u8]) -> String {
    printable(policy.get(..MAX_POLICY).unwrap_or(policy))
}

/// Whether a mapped file is shared memory: tmpfs on /dev/shm, memfd, System V, and shared anonymous mappings, which are
/// of `/dev/zero` (mm/shmem.c, `shmem_zero_setup`).
fn is_shared_memory(file: &[u8]) -> bool {
    [b"/dev/shm/".as_slice(), b"/memfd:", b"/SYSV", b"/dev/zero"]
        .iter()
        .any(|prefix| file.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HUGE: u64 = 2 << 20;

    fn parse(text: &str) -> MemoryMaps {
        parse_memory_maps(text.as_bytes()).unwrap()
    }

    #[test]
    fn each_page_has_one_kind() {
        let maps = parse(
            "55d0c8a00000 default file=/usr/bin/N0=7\\040x anon=2 dirty=2 mapped=6 N0=6 kernelpagesize_kB=4\n\
             55d0c9000000 default heap anon=10 dirty=10 N0=4 N1=6 kernelpagesize_kB=4\n\
             7f2a40000000 bind:0 file=/dev/hugepages/rtemap_0 huge dirty=4 N0=3 N1=1 kernelpagesize_kB=2048\n\
             7f2a50000000 bind:0 file=/anon_hugepage\\040(deleted) huge anon=1 dirty=1 N1=1 kernelpagesize_kB=1048576\n\
             7f2b00000000 interleave:0-1 file=/dev/zero\\040(deleted) dirty=8 active=0 N0=4 N1=4 kernelpagesize_kB=4\n\
             7f2b10000000 default file=/memfd:x\\040(deleted) dirty=1 N1=1 kernelpagesize_kB=4\n\
             7f2b20000000 default\n\
             7ffd3a1b2000 prefer:1 stack anon=3 dirty=3 N1=3 kernelpagesize_kB=4\n\
             7ffd3a1ff000 default\n",
        );
        let node = |node| maps.nodes[&NodeId(node)];
        assert_eq!(
            node(0),
            NodeBytes {
                anon_bytes: (2 + 4) * 4096,
                file_bytes: 4 * 4096,
                shared_bytes: 4 * 4096,
                hugetlb_bytes: 3 * HUGE,
            }
        );
        assert_eq!(
            node(1),
            NodeBytes {
                anon_bytes: (6 + 3) * 4096,
                file_bytes: 0,
                shared_bytes: 5 * 4096,
                hugetlb_bytes: HUGE + (1 << 30),
            }
        );
        assert_eq!(maps.hugetlb[&HUGE][&NodeId(0)], 3 * HUGE);
        assert_eq!(maps.hugetlb[&(1 << 30)][&NodeId(1)], 1 << 30);
        assert_eq!((maps.mappings, maps.estimated), (9, 0));
        assert_eq!(maps.policy.as_deref(), Some("prefer:1"));
        assert_eq!(maps.policies["interleave:0-1"], 8 * 4096);
        assert_eq!(maps.policies["bind:0"], 4 * HUGE + (1 << 30));
    }

    #[test]
    fn private_copies_on_several_nodes_are_estimated_and_their_sum_is_exact() {
        let maps = parse("7f0 default file=/lib/x anon=5 mapped=9 N0=4 N1=5 kernelpagesize_kB=4\n");
        let (zero, one) = (maps.nodes[&NodeId(0)], maps.nodes[&NodeId(1)]);
        assert_eq!(zero.anon_bytes + one.anon_bytes, 5 * 4096);
        assert_eq!((zero.total(), one.total()), (4 * 4096, 5 * 4096));
        assert_eq!(maps.estimated, 9 * 4096);
    }

    #[test]
    fn devices_and_sockets_are_noted() {
        let maps = parse(
            "7f0 default file=/dev/uio0\n7f1 default file=socket:[77]\n\
             7f2 default file=/sys/devices/pci0000:00/0000:00:02.0/resource0\n7f3 default file=/dev/null\n",
        );
        let devices: Vec<&str> = maps.devices.iter().map(String::as_str).collect();
        assert_eq!(devices, ["/dev/uio0", "/sys/devices/pci0000:00/0000:00:02.0/resource0"]);
        assert_eq!(maps.socket.as_deref(), Some("socket:[77]"));
    }

    #[test]
    fn inconsistent_lines_are_rejected() {
        for bad in [
            "0",
            "x default",
            "0 default N0=1",
            "0 default N0=x kernelpagesize_kB=4",
            "0 default anon=x N0=1 kernelpagesize_kB=4",
            "0 default N0=1 kernelpagesize_kB=18446744073709551615",
            "0 default N0=18446744073709551615 kernelpagesize_kB=4",
            "0 default N99999=1 kernelpagesize_kB=4",
            "0 d N0=4503599627370495 kernelpagesize_kB=4\n1 d N0=4503599627370495 kernelpagesize_kB=4",
        ] {
            assert!(parse_memory_maps(bad.as_bytes()).is_err(), "{bad}");
        }
        // More anonymous pages than pages, and words of a later kernel.
        assert!(parse_memory_maps(b"0 d anon=9 Nx=7 new N0=1 kernelpagesize_kB=4\n").is_ok());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse_memory_maps(&bytes);
            let _ = parse_memory_maps(&[b"0 default N0=", &bytes[..]].concat());
        }

        #[test]
        fn kinds_add_up(pages in proptest::collection::vec(0u64..1000, 1..5), anon in 0u64..2000, file: bool) {
            let nodes: String =
                pages.iter().enumerate().map(|(node, n)| format!(" N{node}={n}")).collect();
            let file = if file { " file=/x" } else { "" };
            let maps = parse(&format!("0 default{file} anon={anon}{nodes} kernelpagesize_kB=4\n"));
            for (node, n) in pages.iter().enumerate() {
                let bytes = maps.nodes.get(&NodeId(node as u32)).map_or(0, NodeBytes::total);
                prop_assert_eq!(bytes, n * 4096);
            }
            let sum: u64 = pages.iter().sum();
            if !file.is_empty() {
                let all: u64 = maps.nodes.values().map(|b| b.anon_bytes).sum();
                prop_assert_eq!(all, anon.min(sum) * 4096);
            }
        }
    }
}
