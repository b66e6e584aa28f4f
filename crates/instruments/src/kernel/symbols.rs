//! Kernel functions by address, from `/proc/kallsyms`.
//!
//! Input: the text of the file. Output: functions by address. Readers without permission see zeros
//! (`kernel.kptr_restrict`): then no function is known.

use nearpath_host::Root;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Path of the symbols of the kernel and its modules.
const KALLSYMS: &str = "/proc/kallsyms";
/// Path of the list of modules: name, size, users, by whom, state, address.
const MODULES: &str = "/proc/modules";

/// The functions of a kernel by their addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Symbols {
    /// Address, and start and end of the name; ascending, one name per address.
    functions: Vec<(u64, u32, u32)>,
    names: String,
}

impl Symbols {
    /// Those of a kernel behind a root; none if addresses are hidden. Takes some 50ms and 6 MB.
    pub fn read(root: &Root) -> Self {
        Self::parse(&root.read(KALLSYMS).unwrap_or_default())
    }

    /// Those of the running kernel: the instruments of a process share them, as long as its modules are the same.
    pub fn of_this_kernel() -> Arc<Self> {
        static SHARED: Mutex<(Weak<Symbols>, Vec<String>)> = Mutex::new((Weak::new(), Vec::new()));
        let root = Root::live();
        let modules = modules(&root.text(MODULES).unwrap_or_default());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(known), true) = (shared.0.upgrade(), shared.1 == modules) {
            return known;
        }
        let read = Arc::new(Self::read(&root));
        *shared = (Arc::downgrade(&read), modules);
        read
    }

    /// Parses `/proc/kallsyms`; lines other than function symbols are skipped.
    fn parse(kallsyms: &[u8]) -> Self {
        let mut symbols = Self::default();
        for (address, name) in kallsyms.split(|&byte| byte == b'\n').filter_map(symbol) {
            let begin = u32::try_from(symbols.names.len());
            symbols.names.push_str(name);
            if let (Ok(begin), Ok(end)) = (begin, u32::try_from(symbols.names.len())) {
                symbols.functions.push((address, begin, end));
            }
        }
        // If an address has several names, the first, as in the kernel.
        symbols.functions.sort_by_key(|&(address, ..)| address);
        symbols.functions.dedup_by_key(|&mut (address, ..)| address);
        symbols
    }

    /// The function that contains an address, without compiler suffixes (`.isra.0`).
    pub fn name(&self, address: u64) -> Option<&str> {
        let after = self.functions.partition_point(|&(begin, ..)| begin <= address);
        let &(function, begin, end) = self.functions.get(after.checked_sub(1)?)?;
        // Beyond the maximum size of a function: after the last symbol, or between modules.
        if address - function >= LONGEST {
            return None;
        }
        let name = self.names.get(usize::try_from(begin).ok()?..usize::try_from(end).ok()?)?;
        Some(name.split_once('.').map_or(name, |(name, _)| name)).filter(|name| !name.is_empty())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }
}

/// The modules by name and address; their users come and go.
fn modules(text: &str) -> Vec<String> {
    let named = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        Some(format!("{} {}", words.first()?, words.get(5)?))
    };
    text.lines().filter_map(named).collect()
}

/// Maximum size of a kernel function.
const LONGEST: u64 = 1 << 20;

/// A function of the kernel or of a module: `ffffffff81000000 T _text`.
fn symbol(line: &[u8]) -> Option<(u64, &str)> {
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let address = std::str::from_utf8(words.next()?).ok()?;
    let address = u64::from_str_radix(address, 16).ok().filter(|&address| address > 0)?;
    let kind = words.next()?;
    let name = std::str::from_utf8(words.next()?).ok()?;
    matches!(kind, b"t" | b"T" | b"w" | b"W").then_some((address, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &[u8] = b"ffffffff81000000 T udp_rcv\nffffffff81000000 T alias\n\
        ffffffff81000100 t tcp_v4_rcv.constprop.0\nffffffff81000180 d data\n\
        ffffffffc0000000 t ovs_vport_receive\t[openvswitch]\nbad\n\xff\xff T x\n";

    #[test]
    fn addresses_belong_to_the_preceding_function() {
        let symbols = Symbols::parse(TEXT);
        let at = |address: u64| symbols.name(address);
        assert_eq!(at(0xffff_ffff_8100_0000), Some("udp_rcv"));
        assert_eq!(at(0xffff_ffff_8100_00ff), Some("udp_rcv"));
        assert_eq!(at(0xffff_ffff_8100_01ff), Some("tcp_v4_rcv"));
        assert_eq!(at(0xffff_ffff_c000_0010), Some("ovs_vport_receive"));
        assert_eq!(at(0xffff_ffff_b000_0000), None, "too far behind the last one");
        assert_eq!(at(5), None);
        let hidden = Symbols::parse(b"0000000000000000 T udp_rcv\n");
        assert_eq!(hidden, Symbols::default());
        assert_eq!(hidden.name(0xffff_ffff_8100_0000), None);
    }

    #[test]
    fn instruments_share_them() {
        let (first, second) = (Symbols::of_this_kernel(), Symbols::of_this_kernel());
        assert_eq!(first, second);
        assert!(Arc::ptr_eq(&first, &second));
        let of = |users| modules(&format!("veth 40960 {users} - Live 0xffffffffc0000000\nbad\n"));
        assert_eq!((of(0), of(0).len()), (of(2), 1));
    }

    proptest! {
        #[test]
        fn nearest_is_what_a_search_finds(
            begins in prop::collection::vec(1u64..2000, 1..40),
            asked in prop::collection::vec(0u64..2500, 1..40),
        ) {
            let text: String = begins.iter().map(|b| format!("{b:x} T f{b}\n")).collect();
            let symbols = Symbols::parse(text.as_bytes());
            for address in asked {
                let nearest = begins.iter().filter(|&&begin| begin <= address).max();
                let nearest = nearest.map(|begin| format!("f{begin}"));
                prop_assert_eq!(symbols.name(address), nearest.as_deref());
            }
        }

        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let symbols = Symbols::parse(&bytes);
            for address in [0, 1, u64::MAX] {
                symbols.name(address);
            }
        }
    }
}
