//! Inspects the kernel: its tracepoints and functions, and how each probe can therefore be attached.

use super::percpu::{self, SoftirqWords};
use super::probe::{At, Point, Probe};
use super::refusal;
use crate::InstrumentError;
use libbpf_rs::btf::types::{FuncProto, Typedef};
use libbpf_rs::btf::{Btf, BtfKind, BtfType, TypeId};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The kernel's own BTF.
const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// Path of a module's BTF, by its name.
const MODULE_BTF: &str = "/sys/kernel/btf";
/// Path of the list of loaded modules.
const MODULES: &str = "/sys/module";
/// Exists if perf can create kprobes.
const KPROBES: &str = "/sys/bus/event_source/devices/kprobe";

/// What programs can be attached to. If the kernel refuses one mode, the next is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttachMode {
    /// To tracepoints with typed arguments (tp_btf), which needs BTF in the kernel; else raw tracepoints, whose
    /// fields are copied by a helper.
    pub typed: bool,
    /// To functions.
    pub functions: Functions,
}

/// How functions are attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Functions {
    /// By fentry and fexit, and by kprobe if the kernel has no types.
    Fentry,
    /// By kprobe.
    Kprobe,
    /// Not at all.
    Refused,
}

/// A program and its attach point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachTarget {
    /// Its name.
    pub program: String,
    /// The attach point, as in `--list-stages`: `tp_btf/net_dev_queue`.
    pub target: String,
}

impl AttachTarget {
    /// Whether it is attached to a tracepoint, as opposed to a function.
    pub fn is_tracepoint(&self) -> bool {
        self.target.starts_with("tp_btf/") || self.target.starts_with("raw_tp/")
    }
}

/// What is known of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Known {
    /// Its type.
    Typed,
    /// Unknown; it may exist.
    Untyped,
    /// It does not exist, with the reason.
    Missing(String),
}

/// The kernel into which the programs are loaded.
#[derive(Debug)]
pub struct Kernel {
    /// BTF file given by the user for a kernel without BTF.
    pub btf_file: Option<PathBuf>,
    /// The probes of the instrument.
    pub probes: &'static [Probe],
    /// Where each CPU keeps its current and pending softirqs, if known.
    pub softirq_words: Option<SoftirqWords>,
    /// For each probe the number of its tracepoint's arguments, if the kernel has the tracepoint.
    tracepoints: Vec<Option<usize>>,
    /// What is known of the probes' functions.
    points: Vec<Vec<Known>>,
}

/// Whether the kernel has BTF.
pub fn has_btf() -> bool {
    Path::new(KERNEL_BTF).exists()
}

impl Kernel {
    /// Looks up the probes in the BTF of the running kernel, or in the given file.
    ///
    /// # Errors
    /// There is no BTF, or the file is invalid.
    pub fn inspect(
        probes: &'static [Probe],
        btf_file: Option<&Path>,
    ) -> Result<Self, InstrumentError> {
        let path = btf_file.unwrap_or(Path::new(KERNEL_BTF));
        if btf_file.is_none() && !path.exists() {
            return Err(InstrumentError::Unsupported(format!(
                "this kernel has no BTF ({KERNEL_BTF}): packets cannot be measured unless it is \
                 given with --btf FILE"
            )));
        }
        // libbpf would otherwise print its own message as well.
        let btf = refusal::listening(|| Btf::from_path(path));
        let btf = btf.map_err(|error| {
            let why = why_no_btf(path, &error);
            InstrumentError::Unsupported(format!("{}: {why}", path.display()))
        })?;
        let mut modules = Modules::default();
        let names = Names::find(&btf, probes);
        let tracepoint = |p: &Probe| names.tracepoints.get(p.tracepoint?).copied().flatten();
        let mut known = |point: &Point| {
            if names.functions.get(point.function) == Some(&true) {
                return Known::Typed;
            }
            match point.module {
                Some(module) => modules.knows(module, point.function),
                None => Known::Missing(format!(
                    "this kernel has no function {} that programs can be attached to",
                    point.function
                )),
            }
        };
        Ok(Self {
            btf_file: btf_file.map(Path::to_owned),
            probes,
            softirq_words: percpu::softirq_words(&btf),
            tracepoints: probes.iter().map(tracepoint).collect(),
            points: probes.iter().map(|p| p.points.iter().map(&mut known).collect()).collect(),
        })
    }

    /// The modes worth trying here, best first.
    pub fn modes(&self) -> Vec<AttachMode> {
        let own_btf = self.btf_file.is_none() && has_btf();
        let kprobes = Path::new(KPROBES).exists();
        let mut modes = Vec::new();
        for (typed, functions) in [
            (true, Functions::Fentry),
            (true, Functions::Kprobe),
            (true, Functions::Refused),
            (false, Functions::Kprobe),
            (false, Functions::Refused),
        ] {
            let here = (own_btf || !typed) && (kprobes || functions != Functions::Kprobe);
            if here {
                modes.push(AttachMode { typed, functions });
            }
        }
        modes
    }

    fn row(&self, probe: &Probe) -> usize {
        self.probes.iter().position(|p| p == probe).unwrap_or(usize::MAX)
    }

    /// The number of arguments of its tracepoint, if the kernel has it.
    pub fn arguments(&self, probe: &Probe) -> Option<usize> {
        self.tracepoints.get(self.row(probe)).copied().flatten()
    }

    /// The best mode that the kernel is expected to accept.
    pub fn best_mode(&self) -> AttachMode {
        let raw = AttachMode { typed: false, functions: Functions::Refused };
        self.modes().first().copied().unwrap_or(raw)
    }

    /// The function at which the first of these probes that is usable observes, and the targets; or that of the first,
    /// and why it is not usable. (Empty without a probe.)
    pub fn observes<'a>(
        &self,
        probes: impl Iterator<Item = &'a Probe> + Clone,
        mode: AttachMode,
    ) -> (&'static str, Result<String, String>) {
        let joined = |targets: Vec<AttachTarget>| {
            targets.into_iter().map(|target| target.target).collect::<Vec<_>>().join(", ")
        };
        let usable = |probe: &Probe| Some((probe.function, self.targets(probe, mode).ok()?));
        if let Some((function, targets)) = probes.clone().find_map(usable) {
            return (function, Ok(joined(targets)));
        }
        let mut probes = probes;
        let Some(first) = probes.next() else { return ("", Err(String::new())) };
        (first.function, self.targets(first, mode).map(joined))
    }

    /// The programs that observe a probe in this mode.
    ///
    /// # Errors
    /// Why there are none: what the kernel lacks.
    pub fn targets(&self, probe: &Probe, mode: AttachMode) -> Result<Vec<AttachTarget>, String> {
        if probe.prefers_functions
            && mode.functions == Functions::Fentry
            && let Ok(targets) = self.targets_at_functions(probe, mode)
            && targets.iter().all(|target| target.target.starts_with('f'))
        {
            return Ok(targets);
        }
        if let Some(tracepoint) = probe.tracepoint {
            if self.arguments(probe).is_some() {
                let (suffix, kind) = if mode.typed { ("btf", "tp_btf") } else { ("raw", "raw_tp") };
                return Ok(vec![AttachTarget {
                    program: format!("{}_{suffix}", probe.program),
                    target: format!("{kind}/{tracepoint}"),
                }]);
            }
            if probe.points.is_empty() {
                return Err(format!("this kernel has no tracepoint {tracepoint}"));
            }
        }
        self.targets_at_functions(probe, mode)
    }

    /// The programs at its functions.
    fn targets_at_functions(
        &self,
        probe: &Probe,
        mode: AttachMode,
    ) -> Result<Vec<AttachTarget>, String> {
        let known = self.points.get(self.row(probe)).map_or(&[][..], Vec::as_slice);
        probe
            .points
            .iter()
            .zip(known)
            .map(|(point, known)| target(probe, point, known, mode))
            .collect()
    }
}

/// Probe names found in the kernel's BTF, in one pass over its hundred thousand types: libbpf would search all
/// of them for each name.
struct Names {
    /// For tracepoints the number of their programs' arguments.
    tracepoints: HashMap<&'static str, Option<usize>>,
    /// Whether it has the functions.
    functions: HashMap<&'static str, bool>,
}

impl Names {
    fn find(btf: &Btf<'_>, probes: &'static [Probe]) -> Self {
        let points = probes.iter().flat_map(|probe| probe.points);
        let mut names = Self {
            tracepoints: probes.iter().filter_map(|p| Some((p.tracepoint?, None))).collect(),
            functions: points.map(|point| (point.function, false)).collect(),
        };
        let sought = Endings::of(names.tracepoints.keys().chain(names.functions.keys()));
        for id in 1..u32::try_from(btf.len()).unwrap_or(u32::MAX) {
            let Some(found) = btf.type_by_id::<BtfType<'_>>(TypeId::from(id)) else { continue };
            let kind = found.kind();
            if !matches!(kind, BtfKind::Func | BtfKind::Typedef) {
                continue;
            }
            let name = found.name().filter(|name| sought.may_have(name.as_bytes()));
            let Some(name) = name.and_then(OsStr::to_str) else { continue };
            if kind == BtfKind::Func {
                if let Some(there) = names.functions.get_mut(name) {
                    *there = true;
                }
            } else if let Some(tracepoint) = name.strip_prefix("btf_trace_")
                && let Some(its) = names.tracepoints.get_mut(tracepoint)
                && let Ok(typedef) = Typedef::try_from(found)
            {
                *its = Some(arguments(&typedef));
            }
        }
        names
    }
}

/// Endings of names: these rule out most of a kernel's names at a fraction of the cost of a lookup.
struct Endings([[bool; 256]; 256]);

impl Endings {
    fn of<'a>(names: impl Iterator<Item = &'a &'static str>) -> Self {
        let mut endings = Self([[false; 256]; 256]);
        for name in names {
            if let [.., before, last] = name.as_bytes() {
                endings.0[usize::from(*before)][usize::from(*last)] = true;
            }
        }
        endings
    }

    /// No match if it is none of the names.
    fn may_have(&self, name: &[u8]) -> bool {
        match name {
            [.., before, last] => self.0[usize::from(*before)][usize::from(*last)],
            _ => false,
        }
    }
}

/// The number of arguments of a tracepoint's programs: all of `btf_trace_NAME` (a pointer to a function) except
/// the first, which is internal to tracing.
fn arguments(typedef: &Typedef<'_>) -> usize {
    let function = typedef.next_type().and_then(|pointer| pointer.next_type());
    let function = function.and_then(|function| FuncProto::try_from(function).ok());
    function.map_or(0, |function| function.len().saturating_sub(1))
}

/// The program at a function.
fn target(
    probe: &Probe,
    point: &Point,
    known: &Known,
    mode: AttachMode,
) -> Result<AttachTarget, String> {
    let function = point.function;
    if let Known::Missing(reason) = known {
        return Err(match probe.tracepoint {
            Some(tracepoint) => format!("this kernel has no tracepoint {tracepoint}"),
            None => reason.clone(),
        });
    }
    let (suffix, kind) = match (mode.functions, known, point.at) {
        (Functions::Fentry, Known::Typed, At::Entry) if !point.needs_kprobe => {
            (point.suffix, "fentry")
        }
        (Functions::Fentry, Known::Typed, At::Exit) => (point.suffix, "fexit"),
        (Functions::Fentry | Functions::Kprobe, _, At::Entry) => ("kprobe", "kprobe"),
        (Functions::Fentry | Functions::Kprobe, _, At::Exit) if point.result_only => {
            return Ok(AttachTarget {
                program: format!("{}_{}_ret", probe.program, point.suffix),
                target: format!("kretprobe/{function}"),
            });
        }
        _ => return Err(format!("this kernel does not allow attaching to {function}")),
    };
    Ok(AttachTarget {
        program: format!("{}_{suffix}", probe.program),
        target: format!("{kind}/{function}"),
    })
}

/// The BTF of modules, read on demand.
#[derive(Debug, Default)]
struct Modules {
    read: BTreeMap<&'static str, Option<Vec<u8>>>,
}

impl Modules {
    /// What is known of a function of a module.
    fn knows(&mut self, module: &'static str, function: &str) -> Known {
        if !Path::new(MODULES).join(module).exists() {
            return Known::Missing(format!("{module} is not loaded"));
        }
        let read = || std::fs::read(Path::new(MODULE_BTF).join(module)).ok();
        match self.read.entry(module).or_insert_with(read) {
            // The names are zero-terminated, one after the other.
            Some(btf) => {
                let name = [b"\0", function.as_bytes(), b"\0"].concat();
                if btf.windows(name.len()).any(|window| window == name) {
                    Known::Typed
                } else {
                    Known::Missing(format!("{module} has no function {function}"))
                }
            }
            None => Known::Untyped,
        }
    }
}

/// Why a file has no valid BTF. libbpf returns the same error for every file, even for a missing one.
fn why_no_btf(path: &Path, error: &libbpf_rs::Error) -> String {
    match std::fs::metadata(path) {
        Err(refused) if refused.kind() == ErrorKind::NotFound => "not found".to_owned(),
        Ok(found) if found.is_dir() => "is a directory, not a file".to_owned(),
        _ => match File::open(path) {
            Err(refused) => refused.to_string(),
            Ok(_) => format!("no valid BTF: {error}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_btf_has_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let (missing, text) = (dir.path().join("missing"), dir.path().join("text"));
        std::fs::write(&text, "no BTF at all").unwrap();
        let reason = |path: &Path| Kernel::inspect(&[], Some(path)).unwrap_err().to_string();
        assert_eq!(reason(&missing), format!("{}: not found", missing.display()));
        assert_eq!(
            reason(dir.path()),
            format!("{}: is a directory, not a file", dir.path().display())
        );
        let expected = format!("{}: no valid BTF: ", text.display());
        assert!(reason(&text).starts_with(&expected), "{}", reason(&text));
    }
}
