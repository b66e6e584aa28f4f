//! The faults.

use crate::scene::{Burst, Fault, OTHER, Scene, VICTIM, clock, ms, now, steer};
use crate::worker::{Policy, Worker, pin_thread, spin};
use nearpath_model::{Culprit, Share, ShareKind};
use nearpath_testing::veth::VethPair;
use rustix::fd::OwnedFd;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Name of the disturbing threads.
const HOG: &str = "hog";

fn is_hog(share: &Share) -> bool {
    share.who.as_ref().is_some_and(|who| who.comm.as_deref() == Some(HOG))
}

/// A task that has the reader's CPU.
pub struct Behind {
    hog: Worker,
    share: ShareKind,
    ran: Arc<Mutex<Vec<RangeInclusive<u64>>>>,
}

impl Behind {
    pub fn new(policy: Policy, share: ShareKind) -> Self {
        let ran = Arc::new(Mutex::new(Vec::new()));
        let mine = Arc::clone(&ran);
        let work = move |_| mine.lock().unwrap().extend(spin_and_record(ms(4)));
        Self { hog: Worker::new(HOG, VICTIM, policy, work), share, ran }
    }
}

/// The same of packets that RPS sends to the victim, where a thread receives them.
pub struct BeforeThread(Behind);

impl BeforeThread {
    pub fn new(scene: &Scene, policy: Policy) -> Self {
        steer(&scene.pair);
        Self(Behind::new(policy, ShareKind::Task))
    }
}

impl Fault for BeforeThread {
    fn begin(&mut self, scene: &Scene) {
        self.0.begin(scene);
    }

    fn end(&mut self, scene: &Scene) {
        self.0.end(scene);
    }

    fn times(&self) -> Option<Vec<RangeInclusive<u64>>> {
        self.0.times()
    }

    fn is_named(&self, share: &Share) -> bool {
        self.0.is_named(share)
    }
}

/// Keeps the CPU busy, and records when it had the CPU: others may have run in between.
pub fn spin_and_record(time: Duration) -> Vec<RangeInclusive<u64>> {
    const GAP_NS: u64 = 50_000;
    let end = now() + u64::try_from(time.as_nanos()).unwrap();
    let (mut ran, mut since, mut last) = (Vec::new(), now(), now());
    let mut had = clock(ClockId::ThreadCPUTime);
    while last < end {
        let (next, has) = (now(), clock(ClockId::ThreadCPUTime));
        // Not when the clock alone went on: a hypervisor had the CPU, but no other task.
        if (next - last).saturating_sub(has - had) > GAP_NS {
            ran.push(since..=last);
            since = next;
        }
        (last, had) = (next, has);
    }
    ran.push(since..=last);
    ran
}

impl Fault for Behind {
    fn begin(&mut self, _: &Scene) {
        self.hog.begin();
    }

    fn end(&mut self, _: &Scene) {
        self.hog.end();
    }

    fn times(&self) -> Option<Vec<RangeInclusive<u64>>> {
        Some(self.ran.lock().unwrap().clone())
    }

    fn is_named(&self, share: &Share) -> bool {
        share.share == self.share && is_hog(share)
    }
}

/// Many timers of the victim's CPU expire at once, so that it spends milliseconds in their interrupt.
pub struct Timers {
    arms: Worker,
    due: Arc<AtomicU64>,
}

impl Timers {
    const COUNT: usize = 16_000;

    pub fn new() -> Self {
        let own = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let wanted = Some(own.maximum.unwrap_or(0).max(Self::COUNT as u64 + 1000));
        let more = rustix::process::Rlimit { current: wanted, maximum: wanted };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, more).unwrap();
        let due = Arc::new(AtomicU64::new(0));
        let at = Arc::clone(&due);
        let make = |_| timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).unwrap();
        let timers: Vec<OwnedFd> = (0..Self::COUNT).map(make).collect();
        // A timer ends on the CPU on which it was set.
        let mut takes = 5_000_000;
        let arms = Worker::new("timers", VICTIM, Policy::Fifo(50), move |_| {
            // Until it took less time to set them all than they run.
            loop {
                let begin = now();
                let due = begin + 2 * takes;
                let once = Itimerspec { it_interval: Timespec::default(), it_value: at_ns(due) };
                for timer in &timers {
                    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &once).unwrap();
                }
                takes = now() - begin;
                if begin + takes < due {
                    at.store(due, SeqCst);
                    break;
                }
            }
        });
        Self { arms, due }
    }
}

fn at_ns(ns: u64) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap(),
        tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap(),
    }
}

impl Fault for Timers {
    fn begin(&mut self, _: &Scene) {
        self.arms.begin();
        self.arms.end();
        let due = self.due.load(SeqCst) + 50_000;
        while now() < due {
            std::hint::spin_loop();
        }
    }

    fn is_named(&self, share: &Share) -> bool {
        // On x86 the interrupt has a vector; elsewhere it is one of a device.
        share.share == ShareKind::Irq
            && share.who.as_ref().is_some_and(|who| {
                who.vector.as_deref() == Some("local_timer") || cfg!(not(target_arch = "x86_64"))
            })
    }
}

/// The victim's CPU receives other packets: before this one, or before its reader can run.
pub struct Queued {
    burst: Burst,
    share: ShareKind,
    /// The other device.
    _pair: Option<VethPair>,
}

impl Queued {
    pub fn same_device(scene: &Scene) -> Self {
        Self { burst: Burst::new(&scene.pair), share: ShareKind::NetRxAhead, _pair: None }
    }

    pub fn other_device() -> Self {
        let pair = VethPair::new(1).unwrap();
        Self { burst: Burst::new(&pair), share: ShareKind::Softirq, _pair: Some(pair) }
    }
}

impl Fault for Queued {
    fn begin(&mut self, _: &Scene) {
        // Longer work is deferred to ksoftirqd, which may have to wait for other tasks.
        self.burst.send(ms(2));
    }

    fn is_named(&self, share: &Share) -> bool {
        let vector = share.who.as_ref().and_then(|who| who.vector.as_deref());
        share.share == self.share
            && (self.share == ShareKind::NetRxAhead || vector == Some("NET_RX"))
    }
}

/// The reader waits behind a task until the scheduler is made to migrate it to another CPU.
pub struct Moved {
    hog: Worker,
}

impl Moved {
    pub fn new() -> Self {
        Self { hog: Worker::new(HOG, VICTIM, Policy::Fifo(50), |_| spin(ms(4))) }
    }
}

impl Fault for Moved {
    fn begin(&mut self, _: &Scene) {
        self.hog.begin();
    }

    fn sent(&mut self, scene: &Scene) {
        spin(ms(2));
        pin_thread(scene.reader.thread(), OTHER);
    }

    fn end(&mut self, scene: &Scene) {
        self.hog.end();
        pin_thread(scene.reader.thread(), VICTIM);
    }

    fn is_named(&self, share: &Share) -> bool {
        let had = |who: &Culprit| {
            who.comm.as_deref() == Some(HOG) && who.cpu.is_some_and(|cpu| cpu.0 == VICTIM)
        };
        share.share == ShareKind::Migration && share.who.as_ref().is_some_and(had)
    }
}
