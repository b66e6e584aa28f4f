//! Selects an instrument's programs to load, and attaches them.

use super::attach_mode::{AttachMode, AttachTarget, Kernel};
use super::probe::Probe;
use super::refusal::{self, refused};
use crate::InstrumentError;
use libbpf_rs::skel::SkelBuilder;
use libbpf_rs::{Link, MapHandle, MapType, Object, OpenObject, ProgramMut};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A probe with the programs that observe it on this kernel.
pub type Chosen = (&'static Probe, Vec<AttachTarget>);

/// Attached programs; dropping it detaches them.
#[derive(Debug, Default)]
pub struct Attached {
    functions: Vec<Link>,
    /// In the order of attachment.
    tracepoints: Vec<AtTracepoint>,
    /// Probes that are attached.
    pub probes: Vec<&'static Probe>,
    /// Probes that are not, with the reason.
    pub refused: Vec<(&'static Probe, String)>,
}

/// A program that is or was attached to a tracepoint.
#[derive(Debug)]
struct AtTracepoint {
    probe: &'static Probe,
    program: String,
    link: Option<Link>,
}

impl Attached {
    /// Detaches programs at tracepoints, except of some probes, which takes some 30µs each. Those at functions stay
    /// attached, as the kernel takes some 100ms to detach each of them (`ftrace_shutdown` in kernel/trace/ftrace.c).
    pub fn detach_tracepoints(&mut self, keeps: impl Fn(&Probe) -> bool) {
        for at in self.tracepoints.iter_mut().filter(|at| !keeps(at.probe)) {
            at.link = None;
        }
    }

    /// Attaches them again; refusals of the kernel are noted, and the rest continues.
    pub fn attach_tracepoints(&mut self, object: &Object) {
        for at in self.tracepoints.iter_mut().filter(|at| at.link.is_none()) {
            match program(object, &at.program).map(|program| program.attach()) {
                Some(Ok(link)) => at.link = Some(link),
                Some(Err(error)) => {
                    self.probes.retain(|&probe| probe != at.probe);
                    let known = self.refused.iter().any(|&(probe, _)| probe == at.probe);
                    if !known {
                        self.refused.push((at.probe, format!("could not be re-attached: {error}")));
                    }
                }
                None => {}
            }
        }
    }
}

/// The program with that name.
fn program<'a>(object: &'a Object, name: &str) -> Option<ProgramMut<'a>> {
    object.progs_mut().find(|program| program.name().as_bytes() == name.as_bytes())
}

/// Whether the process may use BPF, determined by a minimal operation that needs the privilege.
///
/// # Errors
/// It may not, or the kernel has no BPF.
pub fn may_load() -> Result<(), InstrumentError> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    refusal::listening(|| MapHandle::create(MapType::Array, Some("nearpath"), 4, 8, 1, &options))
        .map(drop)
        .map_err(|e| refused("using BPF", &e))
}

impl Kernel {
    /// What the running kernel has for the probes, if the process may load programs.
    ///
    /// # Errors
    /// As [`may_load`] and [`Kernel::inspect`].
    pub fn to_load_into(
        probes: &'static [Probe],
        btf_file: Option<&Path>,
    ) -> Result<Self, InstrumentError> {
        may_load()?;
        Self::inspect(probes, btf_file)
    }
}

/// Loads in the best mode that this kernel accepts; returns the refusal of better modes as well.
///
/// # Errors
/// The first refusal, if every mode was refused; or any other error.
pub fn in_best_mode<T>(
    kernel: &Kernel,
    mut load: impl FnMut(AttachMode) -> Result<T, InstrumentError>,
) -> Result<(T, Option<String>), InstrumentError> {
    let mut refusal = None;
    for mode in kernel.modes() {
        match refusal::listening(|| load(mode)) {
            // BPF itself was tried before: only this mode is not permitted.
            Err(error @ (InstrumentError::Refused { .. } | InstrumentError::Privilege(_))) => {
                refusal.get_or_insert(error);
            }
            Ok(loaded) => return Ok((loaded, refusal.map(|error| why_not_all(&error)))),
            // What a better mode was refused for says more than what a lesser one lacks.
            Err(other) => return Err(refusal.unwrap_or(other)),
        }
    }
    Err(refusal.unwrap_or(InstrumentError::NotStarted))
}

/// The refusal of a better mode than the one that was loaded: a lack of privilege then concerns functions only.
fn why_not_all(refusal: &InstrumentError) -> String {
    match refusal {
        InstrumentError::Privilege(_) => {
            "the kernel does not permit programs at its functions".to_owned()
        }
        other => other.to_string(),
    }
}

/// Opens the programs of a skeleton, not yet loaded.
///
/// # Errors
/// The BTF file, or the object, cannot be read.
pub fn open<B: SkelBuilder<'static> + Default>(
    kernel: &Kernel,
) -> Result<B::Output, InstrumentError> {
    let mut builder = B::default();
    if let Some(file) = &kernel.btf_file {
        let object = builder.object_builder_mut();
        object.btf_custom_path(file).map_err(|e| refused("reading the BTF file", &e))?;
    }
    // The skeleton borrows the storage of its object (the size of a pointer per start); leaking it is simpler
    // than a self-reference, and nothing else is leaked.
    let place = Box::leak(Box::new(MaybeUninit::uninit()));
    builder.open(place).map_err(|e| refused("opening the BPF programs", &e))
}

/// The probes with their programs, and those that cannot be observed with the reason.
pub fn choose(
    kernel: &Kernel,
    mode: AttachMode,
    wanted: impl Fn(&Probe) -> bool,
) -> (Vec<Chosen>, Vec<(&'static Probe, String)>) {
    let (mut chosen, mut skipped) = (Vec::new(), Vec::new());
    for probe in kernel.probes.iter().filter(|probe| wanted(probe)) {
        match kernel.targets(probe, mode) {
            Err(reason) => skipped.push((probe, reason)),
            Ok(targets) => chosen.push((probe, targets)),
        }
    }
    (chosen, skipped)
}

/// Checks that the object of an instrument has the programs of all of its probes, with their attach points. A
/// skeleton is opened for that, not loaded.
///
/// # Panics
/// A program is missing, or is for another attach point.
#[cfg(test)]
pub fn assert_has_programs<B>(probes: &[Probe])
where
    B: SkelBuilder<'static> + Default,
    B::Output: libbpf_rs::skel::OpenSkel<'static>,
{
    use super::probe::At;
    use libbpf_rs::skel::OpenSkel;
    let opened = B::default().open(Box::leak(Box::new(MaybeUninit::uninit()))).unwrap();
    let text = |of: &std::ffi::OsStr| of.to_string_lossy().into_owned();
    let programs = opened.open_object().progs();
    let sections: std::collections::BTreeMap<String, String> =
        programs.map(|program| (text(program.name()), text(program.section()))).collect();
    let has = |program: String, target: String| {
        assert_eq!(sections.get(&program), Some(&target), "{program}");
    };
    for probe in probes {
        if let Some(tracepoint) = probe.tracepoint {
            has(format!("{}_btf", probe.program), format!("tp_btf/{tracepoint}"));
            has(format!("{}_raw", probe.program), format!("raw_tp/{tracepoint}"));
        }
        for point in probe.points {
            let (name, function) = (format!("{}_{}", probe.program, point.suffix), point.function);
            if point.at == At::Exit && point.result_only {
                has(format!("{name}_ret"), format!("kretprobe/{function}"));
            }
            let kind = if point.at == At::Entry { "fentry" } else { "fexit" };
            has(name, format!("{kind}/{function}"));
        }
    }
}

/// Selects these programs for loading, and the one that measures the cost of accounting.
pub fn load_only(open: &mut OpenObject, chosen: &[Chosen]) {
    let programs: Vec<&str> = chosen
        .iter()
        .flat_map(|(_, targets)| targets)
        .map(|target| target.program.as_str())
        .collect();
    for mut program in open.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        program.set_autoload(name == "empty" || programs.contains(&name.as_str()));
    }
}

/// Attaches every selected program. A tracepoint that the kernel refuses is noted and the rest continues; a
/// function that it refuses is an error, as other programs depend on it.
///
/// # Errors
/// The kernel refused a function.
pub fn attach(object: &Object, chosen: Vec<Chosen>) -> Result<Attached, InstrumentError> {
    let mut attached = Attached::default();
    for (probe, targets) in chosen {
        for target in targets {
            match program(object, &target.program).map(|program| program.attach()) {
                Some(Ok(link)) if target.is_tracepoint() => attached
                    .tracepoints
                    .push(AtTracepoint { probe, program: target.program, link: Some(link) }),
                Some(Ok(link)) => attached.functions.push(link),
                Some(Err(error)) if !target.target.starts_with('f') => {
                    attached.refused.push((probe, format!("not attached: {error}")));
                    continue;
                }
                Some(Err(error)) => {
                    return Err(InstrumentError::Refused {
                        step: format!("attaching to {}", target.target),
                        reason: error.to_string(),
                    });
                }
                None => attached.refused.push((probe, format!("no program {}", target.program))),
            }
            if !attached.probes.contains(&probe) {
                attached.probes.push(probe);
            }
        }
    }
    Ok(attached)
}
