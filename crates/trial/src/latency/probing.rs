//! Probes in the background, for the comparison of periods: the same flows all the time, so that their hash is
//! the same in every period.
//!
//! Input: a plan. Output: at each reading, what was sent and answered since the previous one.

use super::distribution::Summary;
use super::plan::LatencyPlan;
use super::prober::{Wake, probe};
use super::report::Progress;
use super::{LatencyError, LatencyReport};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Longer than any trial; the schedule of probes is finite.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// Probes between two readings.
#[derive(Debug, Clone)]
pub struct Probes {
    /// Sent.
    pub sent: u64,
    /// Answered; those sent just before a reading count as answered after it.
    pub received: u64,
    /// Latencies of the answers.
    pub latency: Summary,
    /// The same as a histogram: `[upper_ns, count]` of each bucket that is not empty, ascending.
    pub histogram: Vec<(u64, u64)>,
}

impl Probes {
    /// Probes sent and not answered.
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.received)
    }
}

/// A running prober, stopped on drop.
#[derive(Debug)]
pub struct Probing {
    ask: Option<Sender<()>>,
    looks: Receiver<Progress>,
    thread: Option<JoinHandle<Result<LatencyReport, LatencyError>>>,
    sent: u64,
    received: u64,
}

impl Probing {
    /// Starts probing in the calling thread's network namespace; the durations of the plan are not used.
    ///
    /// # Errors
    /// An invalid plan, or a reflector that does not answer.
    pub fn start(plan: &LatencyPlan) -> Result<Self, LatencyError> {
        let plan = LatencyPlan { warm_up: Duration::ZERO, duration: LONGEST, ..plan.clone() };
        let (ask, asked) = channel();
        let (publish, looks) = channel();
        let work = move || {
            let wait = |time| match asked.recv_timeout(time) {
                Ok(()) => Wake::Look,
                Err(RecvTimeoutError::Timeout) => Wake::GoOn,
                Err(RecvTimeoutError::Disconnected) => Wake::End,
            };
            // A receiver that no longer listens has also dropped the other end.
            let mut each = |progress: &Progress| drop(publish.send(progress.clone()));
            probe(&plan, None, &wait, &mut each)
        };
        let thread = Builder::new().name("probing".to_owned()).spawn(work);
        let thread = Some(thread.map_err(LatencyError::of("starting a thread"))?);
        let mut probing = Self { ask: Some(ask), looks, thread, sent: 0, received: 0 };
        probing.look()?;
        Ok(probing)
    }

    /// The change since the last reading.
    ///
    /// # Errors
    /// Probing has ended: a connection failed.
    pub fn look(&mut self) -> Result<Probes, LatencyError> {
        let asked = self.ask.as_ref().and_then(|ask| ask.send(()).ok());
        let Some(progress) = asked.and_then(|()| self.looks.recv().ok()) else {
            return Err(self.failure());
        };
        let Progress { sent, received, latency, histogram, .. } = progress;
        let probes = Probes {
            sent: sent.saturating_sub(self.sent),
            received: received.saturating_sub(self.received),
            latency,
            histogram,
        };
        (self.sent, self.received) = (sent, received);
        Ok(probes)
    }

    /// The reason why it has ended by itself.
    fn failure(&mut self) -> LatencyError {
        let ended = self.thread.take().map(JoinHandle::join);
        match ended {
            Some(Ok(Err(error))) => error,
            _ => LatencyError::of("probing")(io::Error::other("it has ended")),
        }
    }
}

impl Drop for Probing {
    fn drop(&mut self) {
        self.ask = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::{Arrivals, Loop, Reflector, ReflectorPlan, SocketOptions, Transport};
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    fn plan(target: SocketAddr, transport: Transport) -> LatencyPlan {
        LatencyPlan {
            target,
            transport,
            mode: Loop::Open(Arrivals::Constant),
            rate_per_s: Some(2_000),
            size: 64,
            connections: 2,
            warm_up: Duration::from_secs(1),
            duration: Duration::from_secs(1),
            late_after: Duration::from_secs(1),
            split: false,
            echo: false,
            spin: false,
            lead: None,
            cpus: None,
            options: SocketOptions::default(),
        }
    }

    fn reflector() -> Reflector {
        let addresses = vec![IpAddr::V4(Ipv4Addr::LOCALHOST)];
        let options = SocketOptions::default();
        Reflector::start(&ReflectorPlan { addresses, port: 0, cpus: None, options }).unwrap()
    }

    #[test]
    fn each_reading_has_the_change_since_the_previous_one() {
        let reflector = reflector();
        let mut probing = Probing::start(&plan(reflector.addresses()[0], Transport::Udp)).unwrap();
        let mut all = 0;
        while all < 1_000 {
            std::thread::sleep(Duration::from_millis(20));
            let probes = probing.look().unwrap();
            assert_eq!(probes.latency.count, probes.received);
            all += probes.received;
        }
        drop(probing);
        // Two more are the initial probes of the flows.
        let answered = reflector.reflected().udp_answered;
        assert!(answered >= all, "{answered} answered, {all} seen");
    }

    #[test]
    fn a_missing_or_vanished_reflector_is_an_error() {
        let gone = reflector().addresses()[0];
        let error = Probing::start(&plan(gone, Transport::Tcp)).unwrap_err().to_string();
        assert!(error.contains("connecting to 127.0.0.1"), "{error}");
        let reflector = reflector();
        let mut probing = Probing::start(&plan(reflector.addresses()[0], Transport::Tcp)).unwrap();
        drop(reflector);
        let error = loop {
            match probing.look() {
                Ok(_) => std::thread::sleep(Duration::from_millis(5)),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("probing 127.0.0.1"), "{error}");
    }
}
