//! Loads the programs of `bpf/answers.bpf.c` and reads their histograms.

use super::{Options, RUN_NS, SERVERS_MAX};
use crate::InstrumentError;
use crate::kernel::{
    AttachMode, Attached, Kernel, Mapped, Probe, attach, choose, in_best_mode, load_only, open,
    probe, refused,
};
use libbpf_rs::skel::{OpenSkel, Skel};
use nearpath_model::Protocol;
use nearpath_model::histogram::{BUCKETS, cells};
use std::mem::offset_of;

/// The skeleton generated from `bpf/answers.bpf.c` by `build.rs`.
#[allow(missing_docs, warnings, clippy::all, clippy::pedantic)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/answers.skel.rs"));
}

pub use skeleton::AnswersSkel;
use skeleton::{AnswersSkelBuilder, types};

/// All probes.
pub const PROBES: &[Probe] = &[
    probe("answer_segment", "tcp_rcv_space_adjust", "tcp_rcv_space_adjust", &["read"]),
    probe("answer_datagram", "sock_recv_length", "sock_recvmsg", &["datagram"]),
    probe("answer_sent", "net_dev_queue", "__dev_queue_xmit", &["sent"]),
];
/// Since Linux 6.3.
const DATAGRAM: &str = "answer_datagram";

/// Size of `struct histogram` in 64-bit words, and the places of its fields.
const WORDS: usize = size_of::<types::histogram>() / 8;
const MIN: usize = offset_of!(types::histogram, min_ns) / 8;
const MAX: usize = offset_of!(types::histogram, max_ns) / 8;
const FIRST: usize = offset_of!(types::histogram, buckets) / 8;

/// The loaded programs; dropping it detaches and frees everything.
pub struct Loaded {
    /// Before the object, so that it is dropped first.
    attached: Attached,
    /// Programs and maps.
    pub skeleton: AnswersSkel<'static>,
    /// Why datagrams are not observed.
    pub no_datagrams: Option<String>,
    /// When it began, on CLOCK_MONOTONIC.
    began_ns: u64,
}

/// Loads and attaches.
///
/// # Errors
/// A missing privilege, or something that the kernel lacks or refused.
pub fn load(kernel: &Kernel, options: &Options) -> Result<Loaded, InstrumentError> {
    in_best_mode(kernel, |mode| load_within(kernel, mode, options)).map(|(loaded, _)| loaded)
}

fn load_within(
    kernel: &Kernel,
    mode: AttachMode,
    options: &Options,
) -> Result<Loaded, InstrumentError> {
    let mut open = open::<AnswersSkelBuilder>(kernel)?;
    let (chosen, skipped) = choose(kernel, mode, |_| true);
    let mut no_datagrams = None;
    for (probe, reason) in skipped {
        if probe.program != DATAGRAM {
            return Err(InstrumentError::Unsupported(reason));
        }
        no_datagrams = Some(reason);
    }
    load_only(open.open_object_mut(), &chosen);
    let constants = open.maps.rodata_data.as_deref_mut().ok_or_else(|| {
        InstrumentError::Unsupported("invalid BPF object: it has no constants".to_owned())
    })?;
    constants.histogram_cells = cells();
    constants.only_netns = options.netns.unwrap_or(0);
    let runs = |budget: std::time::Duration| budget.as_nanos() as u64 / RUN_NS;
    constants.runs_max = options.budget.map_or(0, |budget| runs(budget).max(1));
    for (server, number) in options.servers.iter().take(SERVERS_MAX).zip(1u8..) {
        let protocol = usize::from(server.protocol == Protocol::Udp);
        let of_port = constants.server_of.get_mut(protocol);
        if let Some(place) = of_port.and_then(|ports| ports.get_mut(usize::from(server.port))) {
            *place = number;
        }
    }
    let number = u32::try_from(options.servers.len().min(SERVERS_MAX)).unwrap_or(0);
    open.maps
        .answers
        .set_max_entries(number + 1)
        .map_err(|e| refused("sizing the BPF maps", &e))?;
    let skeleton = open.load().map_err(|e| refused("loading the BPF programs", &e))?;
    let attached = attach(skeleton.object(), chosen)?;
    for (probe, reason) in &attached.refused {
        if probe.program != DATAGRAM {
            return Err(InstrumentError::Unsupported(reason.clone()));
        }
        no_datagrams = Some(reason.clone());
    }
    Ok(Loaded { attached, skeleton, no_datagrams, began_ns: 0 })
}

/// Sets what an empty histogram has.
pub fn prepare(histograms: &Mapped) {
    (0..histograms.len() / WORDS).for_each(|at| histograms.set(at * WORDS + MIN, u64::MAX));
}

/// The buckets of a server that are not empty, and its longest time.
pub fn histogram(histograms: &Mapped, number: usize) -> (Vec<(usize, u64)>, u64) {
    let first = number * WORDS;
    let count = |bucket| (bucket, histograms.get(first + FIRST + bucket));
    let buckets = (0..BUCKETS).map(count).filter(|(_, count)| *count > 0).collect();
    (buckets, histograms.get(first + MAX))
}

/// CLOCK_MONOTONIC, as `bpf_ktime_get_ns` has it.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

impl Loaded {
    fn set_active(&mut self, active: bool) {
        if let Some(variables) = self.skeleton.maps.bss_data.as_deref_mut() {
            variables.active = active.into();
        }
    }

    /// Starts.
    pub fn begin(&mut self) {
        self.began_ns = now_ns();
        self.set_active(true);
    }

    /// Ends.
    pub fn end(&mut self) {
        self.set_active(false);
    }

    /// How long it ran until it stopped by itself, in seconds; `None` if it did not.
    pub fn observed_s(&self) -> Option<f64> {
        let ended = self.skeleton.maps.bss_data.as_deref()?.ended_ns;
        (ended > 0).then(|| ended.saturating_sub(self.began_ns) as f64 / 1e9)
    }

    /// Takes the programs away that do nothing any more.
    pub fn detach_if_ended(&mut self) {
        if self.observed_s().is_some() {
            self.attached.detach_tracepoints(|_| false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_probe_has_its_programs() {
        crate::kernel::assert_has_programs::<AnswersSkelBuilder>(PROBES);
    }
}
