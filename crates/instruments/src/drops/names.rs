//! Names of drop reasons and functions on the running kernel.

use super::reasons::Reasons;
use crate::kernel::Symbols;
use nearpath_host::Root;
use std::path::Path;
use std::sync::Arc;

/// The names of reasons and functions. Reading them takes some 50ms.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    reasons: Reasons,
    symbols: Arc<Symbols>,
}

impl Names {
    /// The names of the running kernel, behind a root; reasons from the given BTF file, if any.
    pub fn read(root: &Root, btf_file: Option<&Path>) -> Self {
        let symbols = match root.is_live() {
            true => Symbols::of_this_kernel(),
            false => Arc::new(Symbols::read(root)),
        };
        Self { reasons: Reasons::read(root, btf_file), symbols }
    }

    /// The name of a reason; its number if it has none.
    pub fn reason(&self, reason: u32) -> String {
        self.reasons.name(reason)
    }

    /// The function that contains an address.
    pub fn function(&self, address: u64) -> Option<&str> {
        self.symbols.name(address)
    }

    /// The same, or the address if no function is known.
    pub fn function_or_address(&self, address: u64) -> String {
        self.function(address).map_or_else(|| format!("{address:#x}"), str::to_owned)
    }

    /// Whether the kernel hides addresses.
    pub fn has_no_functions(&self) -> bool {
        self.symbols.is_empty()
    }
}
