//! Loads the programs of `bpf/workers.bpf.c` and reads what they counted.

use crate::InstrumentError;
use crate::kernel::{
    AttachMode, Attached, Kernel, Probe, attach, choose, in_best_mode, load_only, open, probe,
    refused,
};
use libbpf_rs::skel::{OpenSkel, Skel};
use libbpf_rs::{MapCore, MapFlags, ProgramInput};
use nearpath_model::{CpuId, CpuSet, CpuTask};
use std::collections::BTreeMap;
use std::mem::offset_of;

/// The skeleton generated from `bpf/workers.bpf.c` by `build.rs`.
#[allow(missing_docs, warnings, clippy::all, clippy::pedantic)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/workers.skel.rs"));
}

pub use skeleton::WorkersSkel;
use skeleton::WorkersSkelBuilder;
use skeleton::types::{cpu as CpuRow, ran as Ran};

/// The probes.
pub const PROBES: &[Probe] = &[probe("sched_switch", "sched_switch", "__schedule", &["switches"])];

/// The program that user space runs on a CPU.
const READ: &str = "read_cpu";
/// `BPF_F_TEST_RUN_ON_CPU` of include/uapi/linux/bpf.h (Linux 5.10).
const RUN_ON_CPU: u32 = 1;

/// What ran on a CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tasks {
    /// Time without a task, in ns.
    pub idle_ns: u64,
    /// The tasks, longest first.
    pub tasks: Vec<CpuTask>,
}

/// The loaded programs; dropping it detaches and frees everything.
pub struct Loaded {
    /// Before the object, so that they are dropped first.
    #[allow(dead_code, reason = "dropping it detaches")]
    pub attached: Attached,
    /// Programs and maps.
    pub skeleton: WorkersSkel<'static>,
}

/// Loads and attaches, for CPUs numbered below `cpus`; only those in `watched` are counted.
///
/// # Errors
/// A missing privilege, or a refusal of the kernel.
pub fn load(kernel: &Kernel, cpus: u32, watched: &CpuSet) -> Result<Loaded, InstrumentError> {
    in_best_mode(kernel, |mode| load_within(kernel, mode, cpus, watched)).map(|(loaded, _)| loaded)
}

fn load_within(
    kernel: &Kernel,
    mode: AttachMode,
    cpus: u32,
    watched: &CpuSet,
) -> Result<Loaded, InstrumentError> {
    let mut open = open::<WorkersSkelBuilder>(kernel)?;
    let (chosen, skipped) = choose(kernel, mode, |_: &Probe| true);
    if let Some((_, reason)) = skipped.first() {
        return Err(InstrumentError::Unsupported(reason.clone()));
    }
    load_only(open.open_object_mut(), &chosen);
    open.open_object_mut().progs_mut().for_each(|mut program| {
        if program.name() == READ {
            program.set_autoload(true);
        }
    });
    open.maps.cpus.set_max_entries(cpus).map_err(|e| refused("sizing the BPF maps", &e))?;
    let constants = open.maps.rodata_data.as_deref_mut().ok_or_else(|| {
        InstrumentError::Unsupported("invalid BPF object: it has no constants".to_owned())
    })?;
    constants.pid_namespace = nearpath_host::pid_namespace().unwrap_or(0);
    let skeleton = open.load().map_err(|e| refused("loading the BPF programs", &e))?;
    watch(&skeleton, watched)?;
    let attached = attach(skeleton.object(), chosen)?;
    if let Some((_, reason)) = attached.refused.first() {
        return Err(InstrumentError::Unsupported(reason.clone()));
    }
    Ok(Loaded { attached, skeleton })
}

fn watch(skeleton: &WorkersSkel<'_>, watched: &CpuSet) -> Result<(), InstrumentError> {
    let mut row = vec![0u8; size_of::<CpuRow>()];
    let at = offset_of!(CpuRow, is_watched);
    if let Some(field) = row.get_mut(at..at + 4) {
        field.copy_from_slice(&1u32.to_ne_bytes());
    }
    for cpu in watched.iter() {
        let map = &skeleton.maps.cpus;
        map.update(&cpu.0.to_ne_bytes(), &row, MapFlags::ANY)
            .map_err(|e| refused("writing the BPF maps", &e))?;
    }
    Ok(())
}

impl Loaded {
    /// Starts or stops counting.
    pub fn set_active(&mut self, active: bool) {
        if let Some(variables) = self.skeleton.maps.bss_data.as_deref_mut() {
            variables.active = active.into();
        }
    }

    /// Counts the tasks in progress on these CPUs until now: an interrupt on each.
    ///
    /// # Errors
    /// The kernel does not run programs on another CPU (before 5.10).
    pub fn read_cpus(&self, cpus: &CpuSet) -> Result<(), InstrumentError> {
        for cpu in cpus.iter() {
            let input = ProgramInput { cpu: cpu.0, flags: RUN_ON_CPU, ..ProgramInput::default() };
            match self.skeleton.progs.read_cpu.test_run(input) {
                Ok(_) => {}
                // It went offline.
                Err(error) if error.kind() == libbpf_rs::ErrorKind::Other && is_gone(&error) => {}
                Err(error) => return Err(refused("reading a worker's CPU", &error)),
            }
        }
        Ok(())
    }

    /// Starts again with nothing counted.
    ///
    /// # Errors
    /// As [`Loaded::read_cpus`].
    pub fn forget(&self, cpus: &CpuSet) -> Result<(), InstrumentError> {
        self.read_cpus(cpus)?;
        let map = &self.skeleton.maps.ran;
        let keys: Vec<Vec<u8>> = map.keys().collect();
        for key in keys {
            // Another one that has ended meanwhile is no harm.
            let _ = map.delete(&key);
        }
        Ok(())
    }

    /// What ran, by CPU.
    pub fn tasks(&self) -> BTreeMap<CpuId, Tasks> {
        let map = &self.skeleton.maps.ran;
        let read = |key: Vec<u8>| {
            let value = map.lookup(&key, MapFlags::ANY).ok()??;
            Some((key, value))
        };
        tasks_of(map.keys().filter_map(read))
    }

    /// Time of tasks that did not fit in the map, in ns.
    pub fn lost_ns(&self) -> u64 {
        self.skeleton.maps.bss_data.as_deref().map_or(0, |variables| variables.lost_ns)
    }
}

/// ENXIO or ENODEV of smp_call_function_single().
fn is_gone(error: &libbpf_rs::Error) -> bool {
    let text = error.to_string();
    text.contains("os error 6") || text.contains("os error 19")
}

fn tasks_of(entries: impl Iterator<Item = (Vec<u8>, Vec<u8>)>) -> BTreeMap<CpuId, Tasks> {
    let mut cpus: BTreeMap<CpuId, Tasks> = BTreeMap::new();
    for (key, value) in entries {
        let (Some(cpu), Some(tid)) = (word(&key, 0), word(&key, 4)) else { continue };
        let Some(task) = task(&value) else { continue };
        let of = cpus.entry(CpuId(cpu)).or_default();
        if tid == 0 {
            of.idle_ns = task.ran_ns;
        } else {
            of.tasks.push(task);
        }
    }
    for of in cpus.values_mut() {
        of.tasks.sort_by_key(|task| (std::cmp::Reverse(task.ran_ns), task.tid));
    }
    cpus
}

fn task(value: &[u8]) -> Option<CpuTask> {
    let at = offset_of!(Ran, comm);
    let comm = value.get(at..at + 16)?.split(|&b| b == 0).next().unwrap_or_default();
    Some(CpuTask {
        pid: word(value, offset_of!(Ran, pid))?,
        tid: word(value, offset_of!(Ran, tid))?,
        comm: String::from_utf8_lossy(comm).into_owned(),
        ran_ns: long(value, offset_of!(Ran, ns))?,
        runs: long(value, offset_of!(Ran, runs))?,
        longest_ns: long(value, offset_of!(Ran, longest_ns))?,
        is_worker: false,
    })
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_is_no_task_and_the_longest_comes_first() {
        let entry = |cpu: u32, tid: u32, ns: u64| {
            let key = [cpu.to_ne_bytes(), tid.to_ne_bytes()].concat();
            let mut value = vec![0u8; size_of::<Ran>()];
            value[offset_of!(Ran, ns)..][..8].copy_from_slice(&ns.to_ne_bytes());
            value[offset_of!(Ran, tid)..][..4].copy_from_slice(&tid.to_ne_bytes());
            value[offset_of!(Ran, comm)..][..3].copy_from_slice(b"cat");
            (key, value)
        };
        let entries = [entry(3, 7, 10), entry(3, 0, 500), entry(3, 9, 20), (vec![1], vec![])];
        let found = tasks_of(entries.into_iter());
        let of = &found[&CpuId(3)];
        assert_eq!((found.len(), of.idle_ns), (1, 500));
        let tasks: Vec<_> = of.tasks.iter().map(|task| (task.tid, task.comm.as_str())).collect();
        assert_eq!(tasks, [(9, "cat"), (7, "cat")]);
        assert_eq!(task(&[0; 20]), None);
    }
}
