//! On which CPU the packets of each connection are processed, and which thread reads it.
//!
//! Input: an iterator over the sockets, and a program that runs when data is read (`bpf/tcp_cpus.bpf.c`). Output: the
//! CPU, queue and reading thread of each connection. The iterator costs nothing per packet; the program is attached for
//! moments, and only while the reading thread matters.

use crate::InstrumentError;
use crate::kernel::{Kernel, has_btf, listening, may_load, open, refused};
use libbpf_rs::skel::OpenSkel;
use libbpf_rs::{Iter, Link};
use nearpath_host::TcpFilter;
use std::io::{self, BufRead, BufReader, Read};
use std::num::{NonZeroU32, NonZeroU64};
use std::time::{Duration, Instant};

#[allow(missing_docs, warnings, clippy::all, clippy::pedantic)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/tcp_cpus.skel.rs"));
}

/// `struct arrival`.
const RECORD_BYTES: usize = 32;
const NONE: u32 = u32::MAX;
/// How long reads are observed at a time, and the longest pause between two such times.
const LOOK: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(1600);

/// Where the last packet of a connection arrived; small, as there is one per connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Arrival {
    /// Address of the socket, by which programs know it.
    pub sock: Option<NonZeroU64>,
    /// The CPU that processed it, and the queue; [`NONE`] if unknown.
    cpu: u32,
    queue: u32,
    /// The device that has the queue.
    pub ifindex: Option<NonZeroU32>,
    /// The thread that read it last, of those seen by [`Arrivals::look_for_readers`].
    pub reader: Option<NonZeroU32>,
}

impl Default for Arrival {
    fn default() -> Self {
        Self { sock: None, cpu: NONE, queue: NONE, ifindex: None, reader: None }
    }
}

impl Arrival {
    /// The CPU that processed it.
    pub fn cpu(&self) -> Option<u32> {
        (self.cpu != NONE).then_some(self.cpu)
    }

    /// The queue on which it arrived.
    pub fn queue(&self) -> Option<u32> {
        (self.queue != NONE).then_some(self.queue)
    }
}

/// The programs, loaded. The fields are dropped in this order.
pub(super) struct Arrivals {
    link: Link,
    looking: Looking,
    skeleton: skeleton::TcpCpusSkel<'static>,
}

/// When reads are observed.
#[derive(Default)]
struct Looking {
    /// While they are: since when.
    attached: Option<(Link, Instant)>,
    /// Since the last time: when to look again, and the pause that led to.
    next: Option<Instant>,
    pause: Duration,
    /// Why they cannot be.
    refused: Option<String>,
}

impl Arrivals {
    /// Loads the iterator.
    ///
    /// # Errors
    /// The process may not use BPF, or the kernel has no iterators (before 5.9) or no BTF.
    pub fn load(filter: &TcpFilter) -> Result<Self, InstrumentError> {
        may_load()?;
        if !has_btf() {
            return Err(InstrumentError::Unsupported(
                "this kernel has no BTF (/sys/kernel/btf/vmlinux), which BPF iterators need"
                    .to_owned(),
            ));
        }
        let kernel = Kernel::inspect(&[], None)?;
        listening(|| {
            let mut open = open::<skeleton::TcpCpusSkelBuilder>(&kernel)?;
            if let Some(constants) = open.maps.rodata_data.as_deref_mut() {
                set_ports!(constants, filter);
                constants.pid_namespace = nearpath_host::pid_namespace().unwrap_or(0);
            }
            let step = "loading the iterator of TCP sockets";
            let skeleton = open.load().map_err(|e| refused(step, &e))?;
            let link = skeleton.progs.connections.attach().map_err(|e| refused(step, &e))?;
            Ok(Self { link, looking: Looking::default(), skeleton })
        })
    }

    /// Observes for a moment which threads read, if that is wanted and was not done lately. The first moments follow each
    /// other closely, the later ones rarely.
    pub fn look_for_readers(&mut self, wanted: bool, now: Instant) {
        let looking = &mut self.looking;
        let has_ended = |since: &Instant| !wanted || now.saturating_duration_since(*since) >= LOOK;
        if looking.attached.as_ref().is_some_and(|(_, since)| has_ended(since)) {
            looking.attached = None;
            looking.next = Some(now + looking.pause);
            looking.pause = (looking.pause * 2).clamp(LOOK, LONGEST_PAUSE);
        }
        let is_due = looking.attached.is_none() && looking.next.is_none_or(|next| now >= next);
        if wanted && is_due && looking.refused.is_none() {
            match self.skeleton.progs.read.attach() {
                Ok(link) => looking.attached = Some((link, now)),
                Err(error) => looking.refused = Some(error.to_string()),
            }
        }
    }

    /// Why it is unknown which threads read, if it was looked for and could not be.
    pub fn no_readers(&self) -> Option<&str> {
        self.looking.refused.as_deref()
    }

    /// Passes each connection of the calling thread's network namespace to `each`, by its cookie.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn read(&self, mut each: impl FnMut(u64, Arrival)) -> Result<(), InstrumentError> {
        let failed = |error: io::Error| refused("reading TCP sockets", &error.into());
        let iter = Iter::new(&self.link).map_err(|e| refused("reading TCP sockets", &e))?;
        // A read returns whole records, as many as fit into a page or so.
        let mut reader = BufReader::with_capacity(RECORD_BYTES * 2048, iter);
        let mut record = [0; RECORD_BYTES];
        while !reader.fill_buf().map_err(failed)?.is_empty() {
            reader.read_exact(&mut record).map_err(failed)?;
            if let Some((cookie, arrival)) = arrival(&record) {
                each(cookie, arrival);
            }
        }
        Ok(())
    }
}

fn arrival(record: &[u8]) -> Option<(u64, Arrival)> {
    let cookie = u64::from_ne_bytes(*record.first_chunk()?);
    let number = |at: usize| Some(u32::from_ne_bytes(*record.get(at..)?.first_chunk()?));
    let arrival = Arrival {
        sock: NonZeroU64::new(u64::from_ne_bytes(*record.get(8..)?.first_chunk()?)),
        cpu: number(16)?,
        queue: number(20)?,
        ifindex: NonZeroU32::new(number(24)?),
        reader: NonZeroU32::new(number(28)?),
    };
    Some((cookie, arrival))
}
