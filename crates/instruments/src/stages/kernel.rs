//! What this kernel offers: which tracepoints and functions it has, and so how each probe can be
//! attached.

use super::table::{PROBES, Point, Probe};
use crate::InstrumentError;
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{Func, Typedef};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The kernel's own type information.
const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// What programs can be attached to, most first. A kernel that refuses one is tried with the
/// next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Typed raw tracepoints (tp_btf), and functions (fentry, fexit) where one is missing; both
    /// need BTF in the kernel itself.
    Functions,
    /// Typed raw tracepoints alone.
    Typed,
    /// Raw tracepoints, from which fields are copied out by a helper.
    Raw,
}

/// One program and what it is attached to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// Its name.
    pub program: String,
    /// What it is attached to, as in `--list-stages`: `tp_btf/net_dev_queue`.
    pub target: String,
}

/// The kernel that the programs are loaded into.
#[derive(Debug)]
pub struct Kernel {
    /// BTF given by the user for a kernel without its own.
    pub btf_file: Option<PathBuf>,
    /// For each row of [`PROBES`] whether the kernel has its tracepoint.
    tracepoints: Vec<bool>,
    /// And whether it has all functions that stand in for it (and there are any).
    functions: Vec<bool>,
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
            InstrumentError::Unsupported(format!(
                "{}: {}",
                path.display(),
                why_no_btf(path, &error)
            ))
        })?;
        let tracepoints = PROBES
            .iter()
            .map(|p| btf.type_by_name::<Typedef<'_>>(&format!("btf_trace_{}", p.tracepoint)))
            .map(|found| found.is_some())
            .collect();
        let has = |point: &Point| btf.type_by_name::<Func<'_>>(point.function).is_some();
        let functions =
            PROBES.iter().map(|p| !p.instead.is_empty() && p.instead.iter().all(has)).collect();
        Ok(Self { btf_file: btf_file.map(Path::to_owned), tracepoints, functions })
    }

    /// What is worth trying here, best first.
    pub fn reaches(&self) -> &'static [Reach] {
        let own_btf = self.btf_file.is_none() && Path::new(KERNEL_BTF).exists();
        if own_btf { &[Reach::Functions, Reach::Typed, Reach::Raw] } else { &[Reach::Raw] }
    }

    /// The programs that observe a probe within this reach.
    ///
    /// # Errors
    /// Why none can: what the kernel lacks.
    pub fn ways(&self, probe: &Probe, reach: Reach) -> Result<Vec<Way>, String> {
        let row = PROBES.iter().position(|p| p == probe).unwrap_or(usize::MAX);
        let has = |list: &[bool]| list.get(row).copied().unwrap_or(false);
        if has(&self.tracepoints) {
            let (suffix, kind) = match reach {
                Reach::Functions | Reach::Typed => ("btf", "tp_btf"),
                Reach::Raw => ("raw", "raw_tp"),
            };
            return Ok(vec![Way {
                program: format!("{}_{suffix}", probe.program),
                target: format!("{kind}/{}", probe.tracepoint),
            }]);
        }
        let lacks = format!("this kernel has no tracepoint {}", probe.tracepoint);
        if reach != Reach::Functions || !has(&self.functions) {
            return Err(lacks);
        }
        let way = |point: &Point| Way {
            program: format!("{}_{}", probe.program, point.suffix),
            target: format!("{}/{}", point.at, point.function),
        };
        Ok(probe.instead.iter().map(way).collect())
    }

    /// Whether a function stands in for some tracepoint here.
    pub fn needs_functions(&self) -> bool {
        self.tracepoints.iter().zip(&self.functions).any(|(tracepoint, f)| !tracepoint && *f)
    }
}

/// Why a file gave no BTF. libbpf says the same of every file, also of one that is not there.
fn why_no_btf(path: &Path, error: &libbpf_rs::Error) -> String {
    match std::fs::metadata(path) {
        Err(refused) if refused.kind() == ErrorKind::NotFound => "is not there".to_owned(),
        Ok(found) if found.is_dir() => "is a folder, not a file".to_owned(),
        _ => match File::open(path) {
            Err(refused) => refused.to_string(),
            Ok(_) => format!("no BTF to be read: {error}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_btf_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let (missing, text) = (dir.path().join("missing"), dir.path().join("text"));
        std::fs::write(&text, "no BTF at all").unwrap();
        let reason = |path: &Path| Kernel::inspect(Some(path)).unwrap_err().to_string();
        assert_eq!(reason(&missing), format!("{}: is not there", missing.display()));
        assert_eq!(
            reason(dir.path()),
            format!("{}: is a folder, not a file", dir.path().display())
        );
        let expected = format!("{}: no BTF to be read: ", text.display());
        assert!(reason(&text).starts_with(&expected), "{}", reason(&text));
    }
}
