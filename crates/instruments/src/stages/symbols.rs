//! Names of kernel functions by address, from `/proc/kallsyms`.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// Where the kernel lists its symbols, with those of its modules.
const KALLSYMS: &str = "/proc/kallsyms";

/// The functions of the running kernel.
#[derive(Debug, Default)]
pub struct Symbols {
    /// Address, and where the name begins and ends; by address.
    functions: Vec<(u64, u32, u32)>,
    names: String,
}

impl Symbols {
    /// Reads them; none where the kernel does not show addresses (`kernel.kptr_restrict`).
    pub fn read() -> Self {
        Self::read_from(Path::new(KALLSYMS))
    }

    fn read_from(path: &Path) -> Self {
        let mut symbols = Self::default();
        let Ok(file) = File::open(path) else { return symbols };
        let mut reader = BufReader::with_capacity(1 << 16, file);
        let mut line = String::new();
        while let Ok(1..) = reader.read_line(&mut line) {
            symbols.add(&line);
            line.clear();
        }
        symbols.functions.sort_unstable();
        symbols
    }

    /// A line: address, type, name, and the module in brackets.
    fn add(&mut self, line: &str) {
        let mut words = line.split_ascii_whitespace();
        let (Some(address), Some(kind), Some(name)) = (words.next(), words.next(), words.next())
        else {
            return;
        };
        let address = u64::from_str_radix(address, 16).unwrap_or(0);
        if address == 0 || !matches!(kind, "t" | "T" | "w" | "W") {
            return;
        }
        let begin = self.names.len();
        let (Ok(begin), Ok(end)) = (u32::try_from(begin), u32::try_from(begin + name.len())) else {
            return;
        };
        self.names.push_str(name);
        self.functions.push((address, begin, end));
    }

    /// The function that an address is in, without what its compiler has added (`.isra.0`).
    pub fn name(&self, address: u64) -> Option<&str> {
        let after = self.functions.partition_point(|&(begin, ..)| begin <= address);
        let &(_, begin, end) = self.functions.get(after.checked_sub(1)?)?;
        let name = self.names.get(usize::try_from(begin).ok()?..usize::try_from(end).ok()?)?;
        Some(name.split_once('.').map_or(name, |(name, _)| name)).filter(|name| !name.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_in_the_function_that_begins_before_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "ffffffff81000000 T do_poll.constprop.0\nffffffff81000100 D a_variable\n\
                    ffffffff81000200 t pipe_read\t[fs]\n0000000000000000 T hidden\nnonsense\n";
        std::fs::write(file.path(), text).unwrap();
        let symbols = Symbols::read_from(file.path());
        let name = |address| symbols.name(address);
        assert_eq!(name(0xffff_ffff_8100_0123), Some("do_poll"));
        assert_eq!(name(0xffff_ffff_8100_0200), Some("pipe_read"));
        assert_eq!(name(0x1000), None);
        assert_eq!(Symbols::default().name(0x1000), None);
    }
}
