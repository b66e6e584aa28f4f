//! Two threads whose ids have the same slot in the table of tasks: what is lost is counted.

mod common;

use common::{acquainted_pair, can_run, has_two_cpus, pin, possible_cpus};
use nearpath_instruments::stages::{Options, Stages};
use nearpath_instruments::{Filter, Instrument};
use nearpath_model::Protocol;
use nearpath_testing::veth::{Side, VethPair};
use nearpath_testing::wait_for;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::thread::Scope;

/// Slots of tasks (`1 << TASK_SLOT_BITS` of `bpf/inflight.h`).
const SLOTS: u32 = 1 << 14;
const ROUNDS: u64 = 20;

fn tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()
}

/// Reads on CPU 1 until the flag says to end, and counts.
fn read(socket: &UdpSocket, count: &AtomicU64, over: &AtomicBool) {
    pin(1);
    let mut buffer = [0; 100];
    while !over.load(SeqCst) {
        if socket.recv(&mut buffer).is_ok() {
            count.fetch_add(1, SeqCst);
        }
    }
}

/// Occupies CPU 1 while the flag is set.
fn hold(held: &AtomicBool, holds: &AtomicBool, over: &AtomicBool) {
    pin(1);
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: sets the scheduling of the calling thread; the structure is whole.
    let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    while !over.load(SeqCst) {
        while held.load(SeqCst) && !over.load(SeqCst) {
            holds.store(true, SeqCst);
        }
        holds.store(false, SeqCst);
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
}

/// Ends the threads, also when a test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Whether another thread can get an id that shares the slot of this one: of the 32,768 ids of a small machine only one
/// other does, which may be in use, or reserved (`RESERVED_PIDS`, kernel/pid.c).
fn may_share_its_slot(id: u32) -> bool {
    let other = if id < SLOTS { id + SLOTS } else { id - SLOTS };
    other >= 300 && !std::path::Path::new(&format!("/proc/{other}")).exists()
}

/// Starts threads until one has a suitable id; that thread does the work.
fn start_with_id<'s>(
    scope: &'s Scope<'s, '_>,
    is_it: impl Fn(u32) -> bool + Copy + Send + 's,
    work: impl Fn() + Copy + Send + 's,
) {
    // Other processes may take the id in question: several rounds.
    for _ in 0..4 * SLOTS {
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = scope.spawn(move || {
            let is_it = is_it(tid());
            sender.send(is_it).unwrap();
            if is_it {
                work();
            }
        });
        if receiver.recv().unwrap() {
            return;
        }
        thread.join().unwrap();
    }
    panic!("no thread got such an id");
}

/// Events lost by two readers that are woken one after the other, before either runs.
fn events_lost(same_slot: bool) -> u64 {
    let pair = VethPair::new(1).unwrap();
    let sockets = [acquainted_pair(&pair, false), acquainted_pair(&pair, false)];
    let netns = u32::try_from(pair.inode(Side::Server).unwrap()).unwrap();
    let protocol = Some(Protocol::Udp);
    let filter = Filter { netns: Some(netns), protocol, ..Filter::default() };
    let options = Options { filter, budgets: false, ..Options::default() };
    let mut stages = Stages::new(&possible_cpus(), options);
    let counts = [AtomicU64::new(0), AtomicU64::new(0)];
    let (held, holds, over) =
        (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
    for (_, server) in &sockets {
        server.set_read_timeout(Some(std::time::Duration::from_millis(300))).unwrap();
    }
    let first = AtomicU32::new(0);
    pin(0);
    std::thread::scope(|scope| {
        let _end = End(&over);
        let [(_, server_a), (_, server_b)] = &sockets;
        let (first, over, held, holds) = (&first, &over, &held, &holds);
        let [count_a, count_b] = &counts;
        start_with_id(scope, may_share_its_slot, move || {
            first.store(tid(), SeqCst);
            read(server_a, count_a, over);
        });
        let first = wait_for("the first reader", || Some(first.load(SeqCst)).filter(|&id| id > 0));
        let shares_slot = move |id: u32| (id % SLOTS == first % SLOTS) == same_slot;
        start_with_id(scope, shares_slot, move || read(server_b, count_b, over));
        scope.spawn(|| hold(held, holds, over));

        stages.start().unwrap();
        for round in 1..=ROUNDS {
            held.store(true, SeqCst);
            wait_for("CPU 1 to be held", || holds.load(SeqCst).then_some(()));
            for (client, _) in &sockets {
                client.send(&[0; 50]).unwrap();
            }
            held.store(false, SeqCst);
            for count in &counts {
                wait_for("both to read", || (count.load(SeqCst) >= round).then_some(()));
            }
        }
    });
    let m = stages.stop().unwrap();
    assert_eq!(m.packets.dropped, 0, "{m:?}");
    m.events_lost
}

#[test]
fn threads_that_share_a_slot_are_counted() {
    if !(can_run() && has_two_cpus()) {
        return;
    }
    // (In a round in which neither was blocked yet nothing is woken.)
    let lost = events_lost(true);
    assert!((ROUNDS / 2..=4 * ROUNDS).contains(&lost), "{lost} of {ROUNDS} rounds");
    assert_eq!(events_lost(false), 0);
}

#[test]
fn slots_are_those_of_the_programs() {
    let header = include_str!("../../../bpf/inflight.h");
    assert!(header.contains(&format!("#define TASK_SLOT_BITS {}", SLOTS.ilog2())));
}
