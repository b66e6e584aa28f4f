//! What this kernel offers: which tracepoints it has and how a program can be attached to them.

use super::table::{PROBES, Probe};
use crate::InstrumentError;
use libbpf_rs::btf::{Btf, types::Typedef};
use std::path::{Path, PathBuf};

/// The kernel's own type information.
const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// How a probe is attached, cheapest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attach {
    /// A raw tracepoint with typed arguments; needs BTF in the kernel itself.
    TpBtf,
    /// A raw tracepoint; fields are copied out by a helper.
    RawTp,
}

impl Attach {
    /// The suffix of the programs that are attached so.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::TpBtf => "_btf",
            Self::RawTp => "_raw",
        }
    }

    /// The word for it in `--list-stages`.
    pub fn name(self) -> &'static str {
        match self {
            Self::TpBtf => "tp_btf",
            Self::RawTp => "raw_tp",
        }
    }
}

/// The kernel that the programs are loaded into.
#[derive(Debug)]
pub struct Kernel {
    /// BTF given by the user for a kernel without its own.
    pub btf_file: Option<PathBuf>,
    /// For each row of [`PROBES`] whether the kernel has its tracepoint.
    tracepoints: Vec<bool>,
}

impl Kernel {
    /// Looks at the running kernel, or at the BTF file given for it.
    ///
    /// # Errors
    /// There is no BTF, or the file is none.
    pub fn inspect(btf_file: Option<&Path>) -> Result<Self, InstrumentError> {
        let path = btf_file.unwrap_or(Path::new(KERNEL_BTF));
        if btf_file.is_none() && !path.exists() {
            return Err(InstrumentError::Unsupported(format!(
                "this kernel has no BTF ({KERNEL_BTF}): packets cannot be measured unless it is \
                 given with --btf FILE"
            )));
        }
        // libbpf would print its own words beside ours.
        let printer = libbpf_rs::set_print(None);
        let btf = Btf::from_path(path);
        libbpf_rs::set_print(printer);
        let btf = btf.map_err(|error| {
            InstrumentError::Unsupported(format!("{}: no BTF to be read: {error}", path.display()))
        })?;
        let tracepoints = PROBES
            .iter()
            .map(|p| btf.type_by_name::<Typedef<'_>>(&format!("btf_trace_{}", p.tracepoint)))
            .map(|found| found.is_some())
            .collect();
        Ok(Self { btf_file: btf_file.map(Path::to_owned), tracepoints })
    }

    /// The cheapest way to attach programs here.
    pub fn cheapest(&self) -> Attach {
        if self.btf_file.is_none() && Path::new(KERNEL_BTF).exists() {
            Attach::TpBtf
        } else {
            Attach::RawTp
        }
    }

    /// Why a probe cannot be attached, if so.
    pub fn lacks(&self, probe: &Probe) -> Option<String> {
        let row = PROBES.iter().position(|p| p == probe)?;
        let has = self.tracepoints.get(row).copied().unwrap_or(false);
        (!has).then(|| format!("this kernel has no tracepoint {}", probe.tracepoint))
    }
}
