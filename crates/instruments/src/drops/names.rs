//! What the numbers of reasons and the addresses of functions are called on the running kernel.

use super::reasons::Reasons;
use crate::kernel::Symbols;
use nearpath_host::Root;
use std::path::Path;

/// The names of reasons and functions. To read them takes some 50 ms.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    reasons: Reasons,
    symbols: Symbols,
}

impl Names {
    /// Those of the running kernel, behind a root; of its reasons those of the BTF file that was given for it.
    pub fn read(root: &Root, btf_file: Option<&Path>) -> Self {
        Self { reasons: Reasons::read(root, btf_file), symbols: Symbols::read(root) }
    }

    /// The name of a reason; its number where it has none.
    pub fn reason(&self, reason: u32) -> String {
        self.reasons.name(reason)
    }

    /// The function that an address is in.
    pub fn function(&self, address: u64) -> Option<&str> {
        self.symbols.name(address)
    }

    /// The same, or the address where it is in none that is known.
    pub fn function_or_address(&self, address: u64) -> String {
        self.function(address).map_or_else(|| format!("{address:#x}"), str::to_owned)
    }

    /// Whether the kernel shows no addresses.
    pub fn has_no_functions(&self) -> bool {
        self.symbols.is_empty()
    }
}
