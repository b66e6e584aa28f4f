//! Latency of a server with its own protocol: one request over TCP, repeated, and the time to its answer.
//!
//! Input: the bytes of a request and a rate. Output: latencies. A request that is due before the previous
//! answer has arrived is sent after it, and its latency counts from when it was due: a stall of the server
//! shows in every request that was due during it. All answers must have the length of the first, which ends
//! when no more data arrives for a while.

use crate::clock::now_ns;
use crate::latency::{Distribution, Probes};
use crate::pacer::{Arrivals, Schedule, wait_until};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Timeout of a connection, and of an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The first answer is complete after this long without another byte.
const SILENCE: Duration = Duration::from_millis(100);
/// Maximum length of an answer.
pub const ANSWER_MAX: usize = 1 << 20;

/// The requests.
#[derive(Debug, Clone)]
pub struct RequestPlan {
    /// Address of the server.
    pub target: SocketAddr,
    /// The bytes of a request.
    pub request: Vec<u8>,
    /// Requests per second.
    pub rate_per_s: u32,
    /// Duration of the warm-up, whose requests do not count.
    pub warm_up: Duration,
    /// Duration of the measurement.
    pub duration: Duration,
}

/// The results.
#[derive(Debug, Clone, Default)]
pub struct Answered {
    /// Requests that were due and sent.
    pub sent: u64,
    /// Requests without an answer in time.
    pub lost: u64,
    /// Connections closed by the server, for example after a maximum number of requests.
    pub reconnected: u64,
    /// `[upper_ns, count]` of each bucket that is not empty, ascending.
    pub histogram: Vec<(u64, u64)>,
}

/// Sends the requests. `should_continue` is checked before each of them.
///
/// # Errors
/// The server does not answer, or its answers differ in length.
pub fn measure_requests(
    plan: &RequestPlan,
    should_continue: &dyn Fn() -> bool,
) -> io::Result<Answered> {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let mut server = Server::connect(plan)?;
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4);
    let begin_ns = now_ns();
    let count_from_ns = begin_ns + nanoseconds(plan.warm_up);
    let end_ns = count_from_ns + nanoseconds(plan.duration);
    let (mut answered, mut latencies) = (Answered::default(), Distribution::new());
    let mut schedule = Schedule::new(begin_ns, plan.rate_per_s, (0, 1), Arrivals::Constant);
    let never = AtomicBool::new(false);
    while schedule.next_ns() < end_ns && should_continue() {
        let due_ns = schedule.next_ns();
        wait_until(due_ns, false, &never);
        let is_answered = server.ask(plan)?;
        if due_ns >= count_from_ns {
            answered.sent += 1;
            match is_answered {
                true => latencies.record(now_ns() - due_ns),
                false => answered.lost += 1,
            }
        }
        schedule.advance();
    }
    answered.reconnected = server.reconnected;
    answered.histogram = latencies.buckets();
    Ok(answered)
}

/// Requests in the background, for the comparison of periods; stopped on drop.
#[derive(Debug)]
pub struct Requesting {
    shared: Arc<Mutex<Since>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// What happened since the last reading.
#[derive(Debug)]
struct Since {
    sent: u64,
    lost: u64,
    latencies: Distribution,
}

impl Since {
    fn new() -> Self {
        Self { sent: 0, lost: 0, latencies: Distribution::new() }
    }
}

impl Requesting {
    /// Starts in the calling thread's network namespace, at random times; the durations of the plan are not used.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn start(plan: RequestPlan) -> io::Result<Self> {
        let mut server = Server::connect(&plan)?;
        let shared = Arc::new(Mutex::new(Since::new()));
        let stop = Arc::<AtomicBool>::default();
        let (since, stopped) = (Arc::clone(&shared), Arc::clone(&stop));
        let work = move || {
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
            let mut schedule = Schedule::new(now_ns(), plan.rate_per_s, (0, 1), Arrivals::Poisson);
            while wait_until(schedule.next_ns(), false, &stopped) {
                let is_answered = server.ask(&plan)?;
                let latency_ns = now_ns().saturating_sub(schedule.next_ns());
                let mut since = since.lock().unwrap_or_else(PoisonError::into_inner);
                since.sent += 1;
                match is_answered {
                    true => since.latencies.record(latency_ns),
                    false => since.lost += 1,
                }
                drop(since);
                schedule.advance();
            }
            Ok(())
        };
        let thread = Some(Builder::new().name("requests".to_owned()).spawn(work)?);
        Ok(Self { shared, stop, thread })
    }

    /// The change since the last reading.
    ///
    /// # Errors
    /// The server has gone, or its answers have another length.
    pub fn look(&mut self) -> io::Result<Probes> {
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            let ended = self.thread.take().map(JoinHandle::join);
            let reason = match ended {
                Some(Ok(Err(reason))) => reason,
                _ => odd("the requests have ended".to_owned()),
            };
            return Err(reason);
        }
        let mut since = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let Since { sent, lost, latencies } = std::mem::replace(&mut *since, Since::new());
        let histogram = latencies.buckets();
        Ok(Probes { sent, received: sent - lost, latency: latencies.summary(), histogram })
    }
}

impl Drop for Requesting {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A connection, and the length of an answer.
struct Server {
    stream: TcpStream,
    answer: Vec<u8>,
    reconnected: u64,
}

impl Server {
    /// Connects, and sends one request to determine the length of an answer.
    fn connect(plan: &RequestPlan) -> io::Result<Self> {
        let mut stream = connect(plan.target)?;
        stream.write_all(&plan.request)?;
        let (mut length, mut room) = (0, vec![0; 16 << 10]);
        loop {
            match stream.read(&mut room) {
                Ok(0) => break,
                Ok(bytes) => length += bytes,
                Err(reason) if is_timeout(&reason) => break,
                Err(reason) if reason.kind() == io::ErrorKind::Interrupted => {}
                Err(reason) => return Err(reason),
            }
            if length > ANSWER_MAX {
                return Err(odd(format!("the answer is longer than {ANSWER_MAX} bytes")));
            }
            stream.set_read_timeout(Some(SILENCE))?;
        }
        if length == 0 {
            return Err(odd("no answer from the server to this request".to_owned()));
        }
        // Reconnect: the server may have closed this connection after its answer.
        let (stream, answer) = (connect(plan.target)?, vec![0; length]);
        Ok(Self { stream, answer, reconnected: 0 })
    }

    /// Whether the answer arrived in time.
    fn ask(&mut self, plan: &RequestPlan) -> io::Result<bool> {
        for again in [true, false] {
            let mut received = 0;
            let asked = self.stream.write_all(&plan.request);
            match asked.and_then(|()| fill(&mut self.stream, &mut self.answer, &mut received)) {
                Ok(()) => return Ok(true),
                Err(reason) if is_timeout(&reason) => {
                    // A late answer would be mistaken for that to the next request.
                    self.stream = connect(plan.target)?;
                    return Ok(false);
                }
                Err(reason) if is_ended(&reason) && again => {
                    self.stream = connect(plan.target)?;
                    self.reconnected += 1;
                }
                Err(reason) if is_ended(&reason) && received == 0 => {
                    let gone = "the server closes a new connection without an answer";
                    return Err(io::Error::new(io::ErrorKind::ConnectionReset, gone));
                }
                Err(reason) if is_ended(&reason) => {
                    let length = self.answer.len();
                    return Err(odd(format!(
                        "an answer is shorter than the first, of {length} bytes"
                    )));
                }
                Err(reason) => return Err(reason),
            }
        }
        Ok(false)
    }
}

/// Reads until the buffer is full; `received` is the number of bytes so far, also in case of an error.
fn fill(stream: &mut TcpStream, answer: &mut [u8], received: &mut usize) -> io::Result<()> {
    while *received < answer.len() {
        match stream.read(&mut answer[*received..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => *received += bytes,
            Err(reason) if reason.kind() == io::ErrorKind::Interrupted => {}
            Err(reason) => return Err(reason),
        }
    }
    Ok(())
}

fn connect(target: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&target, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn is_timeout(reason: &io::Error) -> bool {
    matches!(reason.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn is_ended(reason: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(reason.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn odd(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Answers `ask` with `hello`, this many times per connection.
    fn server(each: usize, answers: &'static [&'static [u8]]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                std::thread::spawn(move || {
                    let mut request = [0; 3];
                    for number in 0..each {
                        if stream.read_exact(&mut request).is_err() {
                            return;
                        }
                        let _ = stream.write_all(answers[number % answers.len()]);
                    }
                });
            }
        });
        at
    }

    fn plan(target: SocketAddr) -> RequestPlan {
        RequestPlan {
            target,
            request: b"ask".to_vec(),
            rate_per_s: 500,
            warm_up: Duration::from_millis(40),
            duration: Duration::from_millis(400),
        }
    }

    #[test]
    fn every_due_request_is_answered_over_new_connections_too() {
        let all = measure_requests(&plan(server(usize::MAX, &[b"hello"])), &|| true).unwrap();
        assert_eq!((all.sent, all.lost, all.reconnected), (200, 0, 0));
        assert_eq!(all.histogram.iter().map(|bucket| bucket.1).sum::<u64>(), 200);
        let few = measure_requests(&plan(server(50, &[b"hello"])), &|| true).unwrap();
        assert_eq!((few.sent, few.lost), (200, 0));
        assert!(few.reconnected >= 4, "{few:?}");
    }

    #[test]
    fn requests_in_the_background_are_counted_between_readings() {
        let mut requesting = Requesting::start(plan(server(usize::MAX, &[b"hello"]))).unwrap();
        let mut all = 0;
        while all < 100 {
            std::thread::sleep(Duration::from_millis(20));
            let probes = requesting.look().unwrap();
            assert_eq!((probes.lost(), probes.latency.count), (0, probes.received));
            assert_eq!(probes.histogram.iter().map(|b| b.1).sum::<u64>(), probes.received);
            all += probes.received;
        }
    }

    #[test]
    fn a_server_that_goes_away_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let serving = std::thread::spawn(move || {
            // The connection that finds the length of an answer, and one with three answers.
            for answers in [1, 3] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 3];
                for _ in 0..answers {
                    stream.read_exact(&mut request).unwrap();
                    stream.write_all(b"hello").unwrap();
                }
            }
        });
        let mut requesting = Requesting::start(plan(at)).unwrap();
        serving.join().unwrap();
        let reason = loop {
            match requesting.look() {
                Ok(_) => std::thread::sleep(Duration::from_millis(5)),
                Err(reason) => break reason,
            }
        };
        // Reset: the new connection was in the backlog of the listener when that was closed.
        let expected = [io::ErrorKind::ConnectionRefused, io::ErrorKind::ConnectionReset];
        assert!(expected.contains(&reason.kind()), "{reason}");
    }

    #[test]
    fn a_server_that_accepts_and_closes_is_gone_and_a_shorter_answer_is_odd() {
        for (last, expected) in
            [(&b""[..], io::ErrorKind::ConnectionReset), (b"he", io::ErrorKind::InvalidData)]
        {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let at = listener.local_addr().unwrap();
            let serving = std::thread::spawn(move || {
                let mut request = [0; 3];
                for answer in [&b"hello"[..], last, last] {
                    let (mut stream, _) = listener.accept().unwrap();
                    stream.read_exact(&mut request).unwrap();
                    stream.write_all(answer).unwrap();
                }
            });
            let reason = measure_requests(&plan(at), &|| true).unwrap_err();
            assert_eq!(reason.kind(), expected, "{reason}");
            serving.join().unwrap();
        }
    }

    #[test]
    fn a_server_without_answers_is_an_error() {
        let silent = measure_requests(&plan(server(usize::MAX, &[b""])), &|| true).unwrap_err();
        assert!(silent.to_string().contains("no answer"), "{silent}");
        let nobody = plan("127.0.0.1:1".parse().unwrap());
        assert_eq!(
            measure_requests(&nobody, &|| true).unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
    }
}
