//! Which function of the kernel an address is in, by `/proc/kallsyms`.
//!
//! In goes the text of the file, out come functions by address. Readers who may not know addresses see zeros
//! (`kernel.kptr_restrict`): then nothing is known.

/// The functions of a kernel by their addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Symbols {
    /// Ascending, one name for each address.
    functions: Vec<(u64, Box<str>)>,
}

impl Symbols {
    /// Reads the text of `/proc/kallsyms`; lines that are no symbols of functions are passed over.
    pub fn parse(kallsyms: &[u8]) -> Self {
        let lines = kallsyms.split(|&byte| byte == b'\n');
        let mut functions: Vec<(u64, Box<str>)> = lines.filter_map(symbol).collect();
        // Of several names of an address the first, as the kernel itself takes it.
        functions.sort_by_key(|(address, _)| *address);
        functions.dedup_by_key(|(address, _)| *address);
        Self { functions }
    }

    /// The function that an address is in.
    pub fn function(&self, address: u64) -> Option<&str> {
        let behind = self.functions.partition_point(|(begin, _)| *begin <= address);
        let (begin, name) = self.functions.get(behind.checked_sub(1)?)?;
        // Farther away than any function is long: beyond the last symbol, or between modules.
        (address - begin < LONGEST).then_some(name)
    }
}

/// No function of the kernel has so many bytes.
const LONGEST: u64 = 1 << 20;

/// A function of the kernel or of a module: `ffffffff81000000 T _text`.
fn symbol(line: &[u8]) -> Option<(u64, Box<str>)> {
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let address = std::str::from_utf8(words.next()?).ok()?;
    let address = u64::from_str_radix(address, 16).ok().filter(|&address| address > 0)?;
    let kind = words.next()?;
    let name = words.next()?;
    matches!(kind, b"t" | b"T" | b"w" | b"W").then(|| (address, function(name)))
}

/// Without what the compiler has put behind its name: `.constprop.0`, `.isra.0`.
fn function(name: &[u8]) -> Box<str> {
    let name = String::from_utf8_lossy(name);
    name.split('.').next().unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &[u8] = b"ffffffff81000000 T udp_rcv\nffffffff81000000 T alias\n\
        ffffffff81000100 t tcp_v4_rcv.constprop.0\nffffffff81000180 d data\n\
        ffffffffc0000000 t ovs_vport_receive\t[openvswitch]\nbad\n\xff\xff T x\n";

    #[test]
    fn addresses_are_in_the_function_before_them() {
        let symbols = Symbols::parse(TEXT);
        let at = |address: u64| symbols.function(address);
        assert_eq!(at(0xffff_ffff_8100_0000), Some("udp_rcv"));
        assert_eq!(at(0xffff_ffff_8100_00ff), Some("udp_rcv"));
        assert_eq!(at(0xffff_ffff_8100_01ff), Some("tcp_v4_rcv"));
        assert_eq!(at(0xffff_ffff_c000_0010), Some("ovs_vport_receive"));
        assert_eq!(at(0xffff_ffff_b000_0000), None, "too far behind the last one");
        assert_eq!(at(5), None);
        let hidden = Symbols::parse(b"0000000000000000 T udp_rcv\n");
        assert_eq!(hidden, Symbols::default());
        assert_eq!(hidden.function(0xffff_ffff_8100_0000), None);
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
                prop_assert_eq!(symbols.function(address), nearest.as_deref());
            }
        }

        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let symbols = Symbols::parse(&bytes);
            for address in [0, 1, u64::MAX] {
                symbols.function(address);
            }
        }
    }
}
