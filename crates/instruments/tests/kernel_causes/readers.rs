//! What a reader does instead of reading: it waits for its CPU, works, or is blocked.

use crate::stream::{OTHER, Stream, VICTIM, Waits, Windows, now, now_and_then, slow, us};
use crate::worker::{Policy, Worker, pin, schedule, spin};
use crate::{can_run, play};
use nearpath_model::{Culprit, Direction, Measurement, Share, ShareKind};
use nearpath_testing::{lengthy, require_lengthy};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Above other work of the machine.
const READER: Policy = Policy::Fifo(40);
/// How long the reader is prevented from reading.
fn kept() -> Duration {
    us(8000)
}

/// A reader blocked on this, and woken by a task or an interrupt of that name.
fn is_blocked(share: &Share, on: &str, by: &str) -> bool {
    let Some(who) = share.who.as_ref().filter(|_| share.share == ShareKind::Asleep) else {
        return false;
    };
    let woken_by =
        |who: &Culprit| who.comm.as_deref() == Some(by) || who.vector.as_deref() == Some(by);
    who.on.as_deref() == Some(on) && who.woken_by.as_deref().is_some_and(woken_by)
}

/// A reader that occasionally does something else.
fn play_blocked(on: &str, by: &str, waits: Waits, does: impl Fn() -> Box<dyn FnMut() + Send>) {
    if !can_run() {
        return;
    }
    play(
        &format!("{on} {waits:?}"),
        |share| is_blocked(share, on, by),
        || {
            let windows = Windows::default();
            let mut stream = Stream::new();
            stream.read(waits, READER, now_and_then(&windows, does()));
            (stream.play(Direction::Rx), windows)
        },
    );
}

/// A thread that answers after a delay.
fn helper(mut answer: impl FnMut() + Send + 'static) -> Worker {
    Worker::new("helper", OTHER, Policy::Fifo(46), move |_| {
        std::thread::sleep(kept());
        answer();
    })
}

/// Tasks of the same priority share the CPU with the reader, for all methods of waiting.
fn behind_a_task(waits: Waits) {
    if !can_run() {
        return;
    }
    let is_hog = |share: &Share| {
        share.share == ShareKind::Runqueue
            && share.who.as_ref().is_some_and(|who| who.comm.as_deref() == Some("hog"))
    };
    let m = play(&format!("task of the same priority, {waits:?}"), is_hog, || {
        let windows = Windows::default();
        let ran = Arc::clone(&windows);
        let mut stream = Stream::new();
        // Real-time, so that no other work of the machine interferes.
        let policy = READER;
        stream.read(waits, policy, Box::new(|| {}));
        stream.start("hog", move |over| {
            pin(VICTIM);
            schedule(policy);
            while !over.load(SeqCst) {
                let begin = now();
                spin(us(40_000));
                ran.lock().unwrap().push(begin..=now());
                std::thread::sleep(us(20_000));
            }
        });
        (stream.play(Direction::Rx), windows)
    });
    // Most of them woke no task.
    let woke = m.outliers.iter().filter(|o| o.from == "sched_waking").count();
    assert!(woke * 4 < m.outliers.len(), "{woke} of {}", m.outliers.len());
    bounded(&m);
}

/// Packets that were late for the same reason do not send the same events again: all slow packets fitted,
/// although there is room for only 250 if each sends the events of its CPU.
fn bounded(m: &Measurement) {
    assert_eq!(m.slow.lost, 0, "{:?}", m.slow);
    assert!(m.slow.seen > 250, "{:?}", m.slow);
}

#[test]
fn packets_behind_a_task_recv() {
    if !require_lengthy() {
        return;
    }
    behind_a_task(Waits::Recv);
}

#[test]
fn packets_behind_a_task_poll() {
    if !require_lengthy() {
        return;
    }
    behind_a_task(Waits::Poll);
}

#[test]
fn packets_behind_a_task_epoll() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    behind_a_task(Waits::Epoll);
}

#[test]
fn a_reader_that_computes() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !can_run() {
        return;
    }
    let ways: &[Waits] = if lengthy() { &[Waits::Recv, Waits::Epoll] } else { &[Waits::Epoll] };
    for &waits in ways {
        let is_reader = |share: &Share| {
            share.share == ShareKind::Task
                && share.who.as_ref().is_some_and(|who| who.comm.as_deref() == Some("reader"))
        };
        play(&format!("own computation, {waits:?}"), is_reader, || {
            let windows = Windows::default();
            let mut stream = Stream::new();
            stream.read(waits, READER, now_and_then(&windows, || spin(kept())));
            (stream.play(Direction::Rx), windows)
        });
    }
}

#[test]
fn a_lock_that_another_thread_holds() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    let ways: &[Waits] = if lengthy() { &[Waits::Recv, Waits::Epoll] } else { &[Waits::Recv] };
    for &waits in ways {
        play_blocked("futex", "helper", waits, || {
            let lock = Arc::new(Mutex::new(()));
            let (sender, taken) = std::sync::mpsc::channel();
            let theirs = Arc::clone(&lock);
            let holder = Worker::new("helper", OTHER, Policy::Fifo(46), move |_| {
                let _held = theirs.lock().unwrap();
                sender.send(()).unwrap();
                std::thread::sleep(kept());
            });
            Box::new(move || {
                holder.begin();
                taken.recv().unwrap();
                drop(lock.lock().unwrap());
                holder.end();
            })
        });
    }
}

#[test]
fn a_reader_that_sleeps() {
    // Outside of x86 the timer's interrupt has no name.
    let timer = if cfg!(target_arch = "x86_64") { "local_timer" } else { "HRTIMER" };
    play_blocked("nanosleep", timer, Waits::Recv, || Box::new(|| std::thread::sleep(kept())));
}

#[test]
fn a_reader_of_a_pipe() {
    if !require_lengthy() {
        return;
    }
    play_blocked("pipe", "helper", Waits::Epoll, || {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        let helper = helper(move || writer.write_all(b"x").unwrap());
        Box::new(move || {
            helper.begin();
            reader.read_exact(&mut [0]).unwrap();
            helper.end();
        })
    });
}

#[test]
fn a_reader_that_polls_something_else() {
    if !require_lengthy() {
        return;
    }
    play_blocked("poll", "helper", Waits::Recv, || {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        let helper = helper(move || writer.write_all(b"x").unwrap());
        Box::new(move || {
            helper.begin();
            poll(&mut [PollFd::new(&reader, PollFlags::IN)], None).unwrap();
            reader.read_exact(&mut [0]).unwrap();
            helper.end();
        })
    });
}

#[test]
fn a_reader_in_a_page_fault() {
    if !require_lengthy() {
        return;
    }
    if !can_run() {
        return;
    }
    if crate::pages::Pages::new().is_none() {
        nearpath_testing::skip(
            "page faults cannot be served by a program on this kernel (userfaultfd)",
        );
        return;
    }
    play_blocked("fault", "helper", Waits::Recv, || {
        let pages = Arc::new(crate::pages::Pages::new().unwrap());
        let theirs = Arc::clone(&pages);
        let helper = Worker::new("helper", OTHER, Policy::Fifo(46), move |_| theirs.serve(kept()));
        Box::new(move || {
            pages.remove();
            helper.begin();
            pages.touch();
            helper.end();
        })
    });
}

/// A process that reads from a socket of its parent's, which can be stopped as a whole.
struct Reading(Child);

impl Reading {
    fn new(stream: &Stream) -> Self {
        let socket = rustix::fd::OwnedFd::from(stream.server.try_clone().unwrap());
        let program = std::env::current_exe().unwrap();
        let run = Command::new(program)
            .args(["--exact", "readers::a_process_that_reads", "--nocapture", "--include-ignored"])
            .env(SOCKET_IS_STDIN, "1")
            .stdin(Stdio::from(socket))
            .stdout(Stdio::null())
            .spawn();
        Self(run.unwrap())
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const SOCKET_IS_STDIN: &str = "NEARPATH_TEST_READS_STDIN";

/// Not a test by itself: what [`Reading`] runs.
#[test]
#[ignore = "run by the test of a stopped reader"]
fn a_process_that_reads() {
    if std::env::var_os(SOCKET_IS_STDIN).is_none() {
        return;
    }
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    std::thread::Builder::new()
        .name("reader".to_owned())
        .spawn(|| {
            pin(VICTIM);
            schedule(READER);
            let mut buffer = [0; 2048];
            loop {
                let _ = rustix::net::recv(
                    std::io::stdin(),
                    &mut buffer,
                    rustix::net::RecvFlags::empty(),
                );
            }
        })
        .unwrap()
        .join()
        .unwrap();
}

#[test]
fn a_reader_that_is_stopped() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !can_run() {
        return;
    }
    play(
        "stopped",
        |share| is_blocked(share, "stopped", "stopper"),
        || {
            let windows = Windows::default();
            let stopped = Arc::clone(&windows);
            let mut stream = Stream::new();
            let reading = Reading::new(&stream);
            stream.start("stopper", move |over| {
                pin(OTHER);
                schedule(Policy::Fifo(46));
                while !over.load(SeqCst) {
                    std::thread::sleep(5 * kept());
                    let begin = now();
                    reading.signal(rustix::process::Signal::STOP);
                    std::thread::sleep(kept());
                    reading.signal(rustix::process::Signal::CONT);
                    stopped.lock().unwrap().push(begin..=now());
                }
            });
            (stream.play(Direction::Rx), windows)
        },
    );
}

/// Where two threads wait for each other; not for one that has read its last packet meanwhile, as the other
/// may have one more to read.
#[derive(Default)]
struct Gate {
    waits: Mutex<bool>,
    came: Condvar,
}

impl Gate {
    /// Whether it came last, or no other thread came.
    fn is_last(&self) -> bool {
        let mut waits = self.waits.lock().unwrap();
        if std::mem::take(&mut *waits) {
            self.came.notify_one();
            return true;
        }
        *waits = true;
        let all = self.came.wait_timeout_while(waits, LONG, |waits| *waits).unwrap();
        let (mut waits, timeout) = all;
        if timeout.timed_out() {
            *waits = false;
        }
        timeout.timed_out()
    }
}

/// Longer than one thread is after the other.
const LONG: Duration = Duration::from_secs(2);

#[test]
fn two_threads_of_one_socket() {
    if !require_lengthy() {
        return;
    }
    // While one of them sleeps the other reads: what is late waited for the one that then took it.
    if !can_run() {
        return;
    }
    let is_blocked = |share: &Share| is_blocked(share, "nanosleep", "local_timer");
    play("two threads of one socket", is_blocked, || {
        let windows = Windows::default();
        let mut stream = Stream::new();
        let gate = Arc::new(Gate::default());
        for number in 0..2 {
            let gate = Arc::clone(&gate);
            // Both sleep at the same time, as each of them has read as much.
            let does = move || {
                if gate.is_last() {
                    std::thread::sleep(kept());
                } else {
                    std::thread::sleep(kept() + slow());
                }
            };
            let noted = if number == 0 { Arc::clone(&windows) } else { Windows::default() };
            stream.read(Waits::Recv, READER, now_and_then(&noted, does));
        }
        (stream.play(Direction::Rx), windows)
    });
}
