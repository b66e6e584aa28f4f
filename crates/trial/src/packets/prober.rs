//! The sending side. Input: a plan and a callback that controls the duration. Output: a report.

use super::PacketsError;
use super::kernel::Reading;
use super::plan::{Offered, PacketsPlan};
use super::report::{PACKETS_SCHEMA, PacketsReport, PacketsTrial, Sides};
use super::search::{Next, Search};
use super::sender::{self, Flow, Sent};
use super::sink::boot;
use super::wire::{Answer, Counted, Request, parse_answer, read_line, write_line};
use crate::affinity;
use crate::clock::now_ns;
use nearpath_host::Root;
use nearpath_model::Unknown;
use std::io::{self, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Timeout of a connection, and of an answer, which waits for stragglers.
const PATIENCE: Duration = Duration::from_secs(2);
const ANSWER: Duration = Duration::from_secs(15);
/// Warm-up trial: resolves neighbours, fills caches and buffers.
const WARM_UP: Duration = Duration::from_millis(300);
/// Delay from the start of the threads to the first packet.
const RUN_UP_NS: u64 = 5_000_000;

/// A prober connected to its sink.
struct Session<'a> {
    plan: &'a PacketsPlan,
    root: &'a Root,
    should_continue: &'a dyn Fn(Duration) -> bool,
    control: BufReader<TcpStream>,
    sockets: Vec<UdpSocket>,
    number: u32,
    same_host: bool,
    trial: u32,
    ended: bool,
    unknown: Vec<Unknown>,
}

/// Sends packets and collects counts. `should_continue` waits for the given time and returns whether to
/// continue; `each` receives each trial of a search.
///
/// # Errors
/// An invalid plan, no sink, a sink that went away, or stopped before anything was measured.
pub fn measure_packets(
    plan: &PacketsPlan,
    root: &Root,
    should_continue: &dyn Fn(Duration) -> bool,
    each: &mut dyn FnMut(&PacketsTrial),
) -> Result<PacketsReport, PacketsError> {
    plan.check()?;
    if let Some(cpus) = &plan.cpus {
        // Tried in a temporary thread, so that an error is reported before anything is sent.
        let tried = thread::scope(|scope| scope.spawn(|| affinity::pin(cpus)).join());
        tried
            .unwrap_or_else(|_| Err(io::Error::other("a thread failed")))
            .map_err(PacketsError::of("--cpus"))?;
    }
    let mut session = Session::open(plan, root, should_continue)?;
    let rate = match plan.offered {
        Offered::Rate(rate) => Some(rate as f64),
        _ => None,
    };
    session.trial(rate, WARM_UP)?;
    let mut trials = Vec::new();
    let result = match plan.offered {
        Offered::Search { max_loss_percent } => {
            session.search(max_loss_percent, &mut trials, each)?
        }
        _ if session.ended => None,
        _ => Some(session.trial(rate, plan.duration)?),
    };
    if result.is_none() && trials.is_empty() {
        return Err(PacketsError::Ended);
    }
    Ok(PacketsReport {
        schema: PACKETS_SCHEMA,
        target: plan.target.to_string(),
        offered: plan.offered,
        size_bytes: plan.size,
        flows: plan.flows,
        same_host: session.same_host,
        result,
        trials,
        ended_early: session.ended,
        unknown: session.unknown,
    })
}

impl<'a> Session<'a> {
    fn open(
        plan: &'a PacketsPlan,
        root: &'a Root,
        should_continue: &'a dyn Fn(Duration) -> bool,
    ) -> Result<Self, PacketsError> {
        let target = plan.target;
        let control = connect(target).map_err(PacketsError::of(format!(
            "no packet sink at {target} (is 'nearpath bench reflect' running there?)"
        )))?;
        let sockets: io::Result<Vec<UdpSocket>> =
            (0..plan.flows).map(|_| open(target, plan.source)).collect();
        let sockets = sockets.map_err(PacketsError::of(format!("opening UDP to {target}")))?;
        let ports: io::Result<Vec<u16>> =
            sockets.iter().map(|socket| Ok(socket.local_addr()?.port())).collect();
        let ports = ports.map_err(PacketsError::of("the flows' ports"))?;
        let mut session = Self {
            plan,
            root,
            should_continue,
            control: BufReader::new(control),
            sockets,
            number: 0,
            same_host: false,
            trial: 0,
            ended: false,
            unknown: Vec::new(),
        };
        match session.ask(&Request::Prepare { ports, size: plan.size })? {
            Answer::Ready { session: number, boot: far } => {
                session.number = number;
                session.same_host = !far.is_empty() && far == boot(root);
                Ok(session)
            }
            _ => Err(odd()),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Answer, PacketsError> {
        let target = self.plan.target;
        let asked = write_line(self.control.get_ref(), request)
            .and_then(|()| read_line(&mut self.control))
            .and_then(|line| line.ok_or_else(|| io::ErrorKind::ConnectionReset.into()));
        let line = asked.map_err(PacketsError::of(format!("asking {target}")))?;
        match parse_answer(&line) {
            Some(Answer::Refused { reason }) => Err(PacketsError::Refused(reason)),
            Some(answer) => Ok(answer),
            None => Err(odd()),
        }
    }

    /// Sends for this long, and requests the counts.
    fn trial(&mut self, rate: Option<f64>, time: Duration) -> Result<PacketsTrial, PacketsError> {
        self.trial += 1;
        let Answer::Begun = self.ask(&Request::Begin { trial: self.trial })? else {
            return Err(odd());
        };
        let before = Reading::take(self.root);
        let sent = self.send(rate, time)?;
        let sender = before.until(&Reading::take(self.root));
        let packets = sent.iter().map(|sent| sent.packets).collect();
        let Answer::Counted(counted) = self.ask(&Request::End { sent: packets })? else {
            return Err(odd());
        };
        let all = |of: fn(&Sent) -> u64| sent.iter().map(of).sum::<u64>();
        self.note(&sent, &sender.unknown, &counted);
        Ok(PacketsTrial::of(Sides {
            asked_per_s: rate,
            same_host: self.same_host,
            sent: all(|sent| sent.packets),
            duration_ns: sent.iter().map(|sent| sent.duration_ns).max().unwrap_or(0),
            refused: all(|sent| sent.refused),
            sender_used_ns: all(|sent| sent.used_ns),
            sender,
            counted: *counted,
        }))
    }

    fn send(&mut self, rate: Option<f64>, time: Duration) -> Result<Vec<Sent>, PacketsError> {
        let begin_ns = now_ns() + RUN_UP_NS;
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4);
        let flow = Flow {
            session: self.number,
            trial: self.trial,
            size: usize::try_from(self.plan.size).unwrap_or(usize::from(u16::MAX)),
            rate_per_s: rate.map(|rate| rate / f64::from(self.plan.flows)),
            begin_ns,
            end_ns: begin_ns + time_ns,
        };
        let (stop, cpus, sockets) = (AtomicBool::new(false), &self.plan.cpus, &self.sockets);
        let should_continue = self.should_continue;
        let (ended, sent) = thread::scope(|scope| -> io::Result<_> {
            let mut threads = Vec::new();
            for (index, socket) in sockets.iter().enumerate() {
                let stop = &stop;
                let work = move || -> io::Result<Sent> {
                    cpus.as_ref().map_or(Ok(()), affinity::pin)?;
                    Ok(sender::send(socket, &flow, stop))
                };
                let named = thread::Builder::new().name(format!("sender-{index}"));
                match named.spawn_scoped(scope, work) {
                    Ok(thread) => threads.push(thread),
                    Err(reason) => {
                        stop.store(true, Ordering::Relaxed);
                        return Err(reason);
                    }
                }
            }
            let ended = !should_continue(time + Duration::from_nanos(RUN_UP_NS));
            stop.store(ended, Ordering::Relaxed);
            let failed = |_| Err(io::Error::other("a thread failed"));
            let sent: io::Result<Vec<Sent>> =
                threads.into_iter().map(|thread| thread.join().unwrap_or_else(failed)).collect();
            Ok((ended, sent?))
        })
        .map_err(PacketsError::of("sending"))?;
        self.ended |= ended;
        Ok(sent)
    }

    /// Unknown facts of both sides, without duplicates.
    fn note(&mut self, sent: &[Sent], sender: &[Unknown], counted: &Counted) {
        let refused =
            sent.iter().filter_map(|sent| sent.reason.as_ref()).next().map(|reason| Unknown {
                subject: "sender".to_owned(),
                fact: "what was refused".to_owned(),
                reason: reason.to_string(),
            });
        let of = |side: &'static str| {
            move |unknown: &Unknown| Unknown { subject: side.to_owned(), ..unknown.clone() }
        };
        let far = counted.kernel.unknown.iter().take(8).map(of("receiver"));
        for unknown in sender.iter().map(of("sender")).chain(far).chain(refused) {
            if !self.unknown.contains(&unknown) {
                self.unknown.push(unknown);
            }
        }
    }

    fn search(
        &mut self,
        max_loss_percent: f64,
        trials: &mut Vec<PacketsTrial>,
        each: &mut dyn FnMut(&PacketsTrial),
    ) -> Result<Option<PacketsTrial>, PacketsError> {
        let mut tried = |trial: PacketsTrial| {
            each(&trial);
            let facts = (trial.passes(max_loss_percent), trial.sent_per_s, trial.received_per_s);
            trials.push(trial);
            facts
        };
        if self.ended {
            return Ok(None);
        }
        let (passed, sent, received) = tried(self.trial(None, self.plan.trial)?);
        let mut search = Search::new(sent, received, passed);
        let mut last = None;
        while !self.ended {
            let (rate, time, is_last) = match search.next() {
                Next::Try(rate) => (rate, self.plan.trial, false),
                Next::Confirm(rate) => (rate, self.plan.duration, true),
                Next::Found => return Ok(last),
                Next::None => return Ok(None),
            };
            let trial = self.trial(Some(rate), time)?;
            last = is_last.then(|| trial.clone());
            let (passed, offered, received) = tried(trial);
            search.record_result(passed, offered, received);
        }
        Ok(None)
    }
}

fn odd() -> PacketsError {
    PacketsError::Refused("unexpected answer".to_owned())
}

fn connect(target: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&target, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))?;
    Ok(stream)
}

fn open(target: SocketAddr, source: Option<IpAddr>) -> io::Result<UdpSocket> {
    let any = match target {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((source.unwrap_or(any), 0))?;
    socket.connect(target)?;
    Ok(socket)
}
