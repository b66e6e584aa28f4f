//! Loads the programs of `bpf/accepts.bpf.c` and reads their counts.

use super::Options;
use super::probes::{CONSUME_UDP, Completion, SOCK_RECV, io_uring, is_for, is_of_io_uring, lacks};
use crate::InstrumentError;
use crate::kernel::{
    AttachMode, Attached, Kernel, Probe, attach, choose, in_best_mode, load_only, open, refused,
};
use libbpf_rs::skel::{OpenSkel, Skel};
use libbpf_rs::{MapCore, MapFlags};
use nearpath_model::Protocol;
use nearpath_model::accepts::AcceptEvent;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The skeleton generated from `bpf/accepts.bpf.c` by `build.rs`.
#[allow(missing_docs, warnings, clippy::all, clippy::pedantic)]
pub(super) mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/accepts.skel.rs"));
}

pub use skeleton::AcceptsSkel;
use skeleton::{AcceptsSkelBuilder, OpenAcceptsSkel};

/// Length of a thread's name in the kernel.
pub const COMM: usize = 16;
/// `struct key`.
pub const KEY_BYTES: usize = 40;

/// Used instead of a CPU number: unknown.
pub const NO_CPU: u32 = u32::MAX;

/// The loaded programs; dropping it detaches and frees everything.
pub struct Loaded {
    /// Before the object, so that they are dropped first.
    #[allow(dead_code, reason = "dropping it detaches")]
    pub attached: Attached,
    /// Programs and maps.
    pub skeleton: AcceptsSkel<'static>,
    /// Why accepts of io_uring are not observed, if so.
    pub no_io_uring: Option<String>,
}

/// Loads and attaches.
///
/// # Errors
/// A missing privilege, or a refusal of the kernel.
pub fn load(kernel: &Kernel, options: &Options) -> Result<Loaded, InstrumentError> {
    in_best_mode(kernel, |mode| load_within(kernel, mode, options)).map(|(loaded, _)| loaded)
}

fn load_within(
    kernel: &Kernel,
    mode: AttachMode,
    options: &Options,
) -> Result<Loaded, InstrumentError> {
    let mut open = open::<AcceptsSkelBuilder>(kernel)?;
    let completion = io_uring(kernel);
    let wanted = |probe: &Probe| {
        is_for(probe, options.datagrams) && (completion.is_ok() || !is_of_io_uring(probe))
    };
    let (mut chosen, skipped) = choose(kernel, mode, wanted);
    let has_consume_udp = chosen.iter().any(|(probe, _)| probe.program == CONSUME_UDP);
    chosen.retain(|(probe, _)| !(has_consume_udp && probe.program == SOCK_RECV));
    if let Some(reason) = lacks(&chosen, &skipped, options.datagrams) {
        return Err(InstrumentError::Unsupported(reason));
    }
    load_only(open.open_object_mut(), &chosen);
    set_constants(&mut open, options, completion == Ok(Completion::Structure), has_consume_udp)?;
    size_maps(&mut open, options).map_err(|e| refused("sizing the BPF maps", &e))?;
    let skeleton = open.load().map_err(|e| refused("loading the BPF programs", &e))?;
    let attached = attach(skeleton.object(), chosen)?;
    let mut no_io_uring = completion.err().filter(|_| !options.datagrams);
    for (probe, reason) in &attached.refused {
        if !is_of_io_uring(probe) {
            return Err(InstrumentError::Unsupported(reason.clone()));
        }
        no_io_uring.get_or_insert_with(|| reason.clone());
    }
    Ok(Loaded { attached, skeleton, no_io_uring })
}

/// Maps that are not used have one entry.
fn size_maps(open: &mut OpenAcceptsSkel<'_>, options: &Options) -> libbpf_rs::Result<()> {
    if options.datagrams {
        return open.maps.uring_accepts.set_max_entries(1);
    }
    open.maps.datagrams.set_max_entries(1)?;
    open.maps.receivers.set_max_entries(1)
}

fn set_constants(
    open: &mut OpenAcceptsSkel<'_>,
    options: &Options,
    completion_is_cqe: bool,
    has_consume_udp: bool,
) -> Result<(), InstrumentError> {
    let constants = open.maps.rodata_data.as_deref_mut().ok_or_else(|| {
        InstrumentError::Unsupported("invalid BPF object: it has no constants".to_owned())
    })?;
    constants.only_pid = options.pid.unwrap_or(0);
    constants.pid_namespace = nearpath_host::pid_namespace().unwrap_or(0);
    constants.only_netns = options.netns.unwrap_or(0);
    constants.only_port = options.port.unwrap_or(0);
    let comm = options.comm.iter().flat_map(|comm| comm.bytes()).take(COMM - 1);
    for (to, byte) in constants.only_comm.iter_mut().zip(comm) {
        *to = byte as _;
    }
    constants.per_event = options.each;
    constants.accept_call = libc::SYS_accept;
    constants.accept4_call = libc::SYS_accept4;
    constants.completion_is_cqe = completion_is_cqe;
    constants.has_consume_udp = has_consume_udp;
    Ok(())
}

/// Identifies a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Local address of the listener.
    pub local: SocketAddr,
    /// Its network namespace.
    pub netns: u32,
    /// The process that accepts.
    pub pid: u32,
    /// The thread that accepts.
    pub tid: u32,
    /// The CPU on which the connection was received; [`NO_CPU`] if unknown.
    pub received_on: u32,
    /// The CPU on which it was accepted.
    pub accepted_on: u32,
}

impl Key {
    /// Parses `struct key`; `None` if it is malformed.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        const AF_INET6: u16 = libc::AF_INET6 as u16;
        let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let half = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let address: [u8; 16] = bytes.get(..16)?.try_into().ok()?;
        let address = match half(20)? {
            AF_INET6 => IpAddr::from(Ipv6Addr::from(address)),
            _ => IpAddr::from(Ipv4Addr::new(address[0], address[1], address[2], address[3])),
        };
        Some(Self {
            local: SocketAddr::new(address, half(22)?),
            netns: word(16)?,
            pid: word(24)?,
            tid: word(28)?,
            received_on: word(32)?,
            accepted_on: word(36)?,
        })
    }
}

/// A thread's name, up to the terminating zero.
pub fn comm(bytes: &[u8]) -> String {
    let name = bytes.split(|&b| b == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

impl Loaded {
    /// Starts or stops counting.
    pub fn set_active(&mut self, active: bool) {
        if let Some(variables) = self.skeleton.maps.bss_data.as_deref_mut() {
            variables.active = active.into();
        }
    }

    /// The counts: the key, the number, and the thread's name.
    pub fn counts(&self) -> Vec<(Key, u64, String)> {
        let map = &self.skeleton.maps.accepted;
        let counted = |bytes: Vec<u8>| {
            let value = map.lookup(&bytes, MapFlags::ANY).ok()??;
            let number =
                |at: usize| Some(u64::from_ne_bytes(value.get(at..at + 8)?.try_into().ok()?));
            let count = number(0)?.saturating_sub(number(8)?);
            Some((Key::read(&bytes)?, count, comm(value.get(16..16 + COMM)?)))
        };
        map.keys().filter_map(counted).filter(|(_, count, _)| *count > 0).collect()
    }

    /// Accepts that did not fit in the map, and those dropped from the individual list.
    pub fn lost(&self) -> (u64, u64) {
        let variables = self.skeleton.maps.bss_data.as_deref();
        variables.map_or((0, 0), |variables| (variables.lost, variables.events_dropped))
    }
}

/// A record of the ring buffer (`struct accept_event`).
pub fn one(bytes: &[u8], protocol: Protocol) -> Option<AcceptEvent> {
    let word = |at: usize| Some(i32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let descriptor = |fd: i32| (fd >= 0).then_some(fd);
    let key = Key::read(bytes)?;
    Some(AcceptEvent {
        local: key.local,
        pid: key.pid,
        received_on: (key.received_on != NO_CPU).then_some(key.received_on),
        accepted_on: key.accepted_on,
        protocol,
        listener_fd: descriptor(word(KEY_BYTES)?),
        fd: descriptor(word(KEY_BYTES + 4)?),
        comm: comm(bytes.get(KEY_BYTES + 8..KEY_BYTES + 8 + COMM)?),
    })
}
