//! The instrument `tcp` for a diagnosis, on a thread of its own inside of the requested network namespace: sockets are
//! those of the namespace of the thread that reads them, and the other instruments run outside of it.
//!
//! Input: the namespace and the filter of packets. Output: the connections that are notable, of all that may have such
//! packets.

use crate::source::Namespace;
use nearpath_host::{Root, TcpFilter, current_netns};
use nearpath_instruments::tcp::{Options, Tcp};
use nearpath_instruments::{Filter, Instrument, InstrumentError};
use nearpath_model::Detail;
use nearpath_model::tcp::TcpMeasurement;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two readings: ten in each second, as `measure tcp` has by default.
const STEP: Duration = Duration::from_millis(100);
/// Share of a CPU that reading takes at most.
const OVERHEAD: f64 = 0.02;
/// Connections that are kept, by each sign of trouble.
const NOTABLE: usize = 100;

type Answer = Result<Option<TcpMeasurement>, InstrumentError>;

/// What the thread is to do next; it answers each.
#[derive(Debug, Clone, Copy)]
enum Request {
    Start,
    Read,
    Stop,
    BeginCostWindow,
    EndCostWindow,
}

/// The instrument.
pub struct TcpConnections {
    namespace: Namespace,
    options: Options,
    thread: Option<Worker>,
}

struct Worker {
    requests: Option<Sender<Request>>,
    answers: Receiver<Answer>,
    handle: Option<JoinHandle<()>>,
}

impl TcpConnections {
    /// Creates the instrument for a namespace (`netns` is its inode, if it is another one), and the connections that
    /// may have packets of this filter.
    pub fn new(
        namespace: Namespace,
        netns: Option<u64>,
        filter: &Filter,
        btf_file: Option<PathBuf>,
    ) -> Self {
        let options = Options {
            filter: connections_with(filter),
            netns,
            notable: Some(NOTABLE),
            step: STEP,
            btf_file,
            limit: Some(OVERHEAD),
            // No program runs for each packet: stages and locality observe those.
            detail: Detail::Coarse,
            ..Options::default()
        };
        Self { namespace, options, thread: None }
    }

    fn request(&mut self, request: Request) -> Answer {
        let worker = self.thread.as_ref().ok_or(InstrumentError::NotStarted)?;
        let requests = worker.requests.as_ref().ok_or(InstrumentError::NotStarted)?;
        // It ends early only if it could not enter the namespace; it has then answered already.
        let _ = requests.send(request);
        worker.answers.recv().unwrap_or_else(|_| Err(refused("its thread has ended")))
    }

    fn measured(&mut self, request: Request) -> Result<TcpMeasurement, InstrumentError> {
        self.request(request)?.ok_or(InstrumentError::NotStarted)
    }
}

/// The filter of sockets that excludes no connection with such packets: what a packet comes from is one end of its
/// connection, and what it goes to is one, too.
fn connections_with(filter: &Filter) -> TcpFilter {
    TcpFilter {
        port: filter.port.or(filter.sport).or(filter.dport),
        host: filter.host.or(filter.src).or(filter.dst),
        ..TcpFilter::default()
    }
}

fn refused(reason: &str) -> InstrumentError {
    InstrumentError::Refused { step: "reading TCP sockets".to_owned(), reason: reason.to_owned() }
}

/// The thread: makes the instrument, and does what is requested, until there are no more requests.
fn serve(root: &Root, options: Options, requests: &Receiver<Request>, answers: &Sender<Answer>) {
    let netns = options.netns.or_else(|| current_netns(root).inode);
    let mut tcp = Tcp::new(root, Options { netns, ..options });
    while let Ok(request) = requests.recv() {
        let answer = match request {
            Request::Start => tcp.start().map(|()| None),
            Request::Read => tcp.read().map(Some),
            Request::Stop => tcp.stop().map(Some),
            Request::BeginCostWindow => {
                tcp.begin_cost_window();
                Ok(None)
            }
            Request::EndCostWindow => {
                tcp.end_cost_window();
                Ok(None)
            }
        };
        if answers.send(answer).is_err() {
            return;
        }
    }
}

impl Instrument for TcpConnections {
    type Measurement = TcpMeasurement;

    fn available(&self) -> Result<(), InstrumentError> {
        Ok(())
    }

    fn start(&mut self) -> Result<(), InstrumentError> {
        let (requests, theirs) = channel();
        let (mine, answers) = channel();
        let (namespace, options) = (self.namespace.clone(), self.options.clone());
        let run = move || {
            let answers = mine.clone();
            let served = namespace.read(move |root| {
                serve(root, options, &theirs, &answers);
                Ok(())
            });
            if let Err(error) = served {
                // Nobody may be waiting any more.
                let _ = mine.send(Err(refused(&format!("{error:#}"))));
            }
        };
        let handle = std::thread::Builder::new()
            .name("tcp-connections".to_owned())
            .spawn(run)
            .map_err(|error| refused(&error.to_string()))?;
        self.thread = Some(Worker { requests: Some(requests), answers, handle: Some(handle) });
        self.request(Request::Start).map(drop)
    }

    fn begin_cost_window(&mut self) {
        // Without a thread there is no cost.
        let _ = self.request(Request::BeginCostWindow);
    }

    fn end_cost_window(&mut self) {
        let _ = self.request(Request::EndCostWindow);
    }

    fn read(&mut self) -> Result<TcpMeasurement, InstrumentError> {
        self.measured(Request::Read)
    }

    fn stop(&mut self) -> Result<TcpMeasurement, InstrumentError> {
        self.measured(Request::Stop)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Without requests the thread ends.
        self.requests = None;
        if let Some(handle) = self.handle.take() {
            // A panic of the thread was printed.
            let _ = handle.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_connection_with_such_packets_is_excluded() {
        let net: ipnet::IpNet = "10.0.0.0/8".parse().unwrap();
        let filter = Filter { dport: Some(80), src: Some(net), ..Filter::default() };
        let sockets = connections_with(&filter);
        assert_eq!((sockets.port, sockets.host), (Some(80), Some(net)));
        assert_eq!(
            (sockets.sport, sockets.dport, sockets.src, sockets.dst),
            (None, None, None, None)
        );
    }

    #[test]
    fn what_is_not_started_has_no_measurement() {
        let namespace = Namespace::default();
        let mut tcp = TcpConnections::new(namespace, None, &Filter::default(), None);
        assert_eq!(tcp.read(), Err(InstrumentError::NotStarted));
        tcp.begin_cost_window();
        assert_eq!(tcp.stop(), Err(InstrumentError::NotStarted));
    }
}
