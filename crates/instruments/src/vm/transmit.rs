//! Reads the maps of the transmit direction: queues that guests transmit by, with their times and CPUs.

use super::load::{Loaded, TRANSMIT_POINTS, TRANSMIT_SPANS, types};
use super::reading::{Fields, by_cpu, span};
use libbpf_rs::{MapCore, MapFlags};
use nearpath_model::vm::{VmTransmit, VmTransmitCpus, VmTransmitSpanKind};
use std::mem::offset_of;

/// A queue, with what it is joined by.
pub struct Transmitting {
    /// What was sent.
    pub transmit: VmTransmit,
    /// The tap.
    pub ifindex: u32,
    /// The number of the queue.
    pub number: u32,
    /// Thread of vhost; 0 if it is in another PID namespace.
    pub worker: u32,
    /// The process that kicked last; 0 if unknown.
    pub pid: u32,
}

/// The queues that packets were sent by, each with its socket.
pub fn queues(loaded: &Loaded) -> Vec<(Vec<u8>, Transmitting)> {
    let map = &loaded.skeleton.maps.transmit_queues;
    let read = |socket: Vec<u8>| {
        let value = map.lookup(&socket, MapFlags::ANY).ok()??;
        let found = queue(loaded, &Fields(&value))?;
        (found.transmit.sent > 0).then_some((socket, found))
    };
    map.keys().filter_map(read).collect()
}

fn queue(loaded: &Loaded, value: &Fields<'_>) -> Option<Transmitting> {
    macro_rules! word {
        ($field:ident) => {
            value.word(offset_of!(types::transmit_queue, $field))?
        };
    }
    macro_rules! number {
        ($field:ident) => {
            value.number(offset_of!(types::transmit_queue, $field))?
        };
    }
    let (index, worker) = (usize::try_from(word!(index)).ok()?, word!(worker));
    let times = VmTransmitSpanKind::ALL.into_iter().enumerate();
    let time = |(at, kind)| span(&loaded.transmit_histograms, index * TRANSMIT_SPANS + at, kind);
    let on = |point| by_cpu(&loaded.transmitted_on, index * TRANSMIT_POINTS + point, loaded.cpus);
    let transmit = VmTransmit {
        workers: Some(worker).filter(|worker| *worker != 0).into_iter().collect(),
        kicks: number!(kicks),
        sent: number!(sent),
        batches: number!(batches),
        kicked: number!(kicked),
        reached_nic: number!(reached),
        collided: number!(collided),
        spans: times.filter_map(time).collect(),
        cpus: VmTransmitCpus { kick: on(0), vhost: on(1), nic: on(2) },
    };
    let (ifindex, number, pid) = (word!(ifindex), word!(number), word!(pid));
    Some(Transmitting { transmit, ifindex, number, worker, pid })
}
