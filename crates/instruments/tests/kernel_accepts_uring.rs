//! The instrument `accepts` on this kernel with servers that accept by io_uring: single-shot or
//! multishot, into descriptors or into the ring's file table, by the thread itself or by a kernel thread.

#![allow(clippy::print_stdout, reason = "the figures are worth reading")]

mod common;

use common::{
    EACH, connect_from_both, each_cpu_a_node, has_two_cpus, incoming_cpu, is_half, listen, pin,
};
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode, squeue};
use nearpath_host::Root;
use nearpath_instruments::Instrument;
use nearpath_instruments::accepts::{Accepts, Options};
use nearpath_model::accepts::AcceptMeasurement;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Barrier;

/// All connections of a test.
const ALL: usize = 2 * EACH;

/// How a server accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// A request for each connection.
    Once,
    /// One request for all.
    Multishot,
    /// The same, into the ring's own table.
    Direct,
}

/// Which ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ring {
    /// As it is by default.
    Plain,
    /// Work is put off until the thread asks for completions, as today's servers have it.
    Deferred,
    /// A thread of the kernel submits and accepts.
    Polled,
}

impl Ring {
    fn open(self) -> std::io::Result<IoUring> {
        let mut builder = IoUring::builder();
        match self {
            Self::Plain => {}
            Self::Deferred => {
                builder.setup_single_issuer().setup_defer_taskrun();
            }
            Self::Polled => {
                builder.setup_sqpoll(1000).setup_sqpoll_cpu(1);
            }
        }
        // Fits a completion per connection, as they may arrive at once.
        builder.setup_cqsize(2048).build(64)
    }
}

/// Whether this kernel supports rings; else the test is skipped.
fn has_io_uring() -> bool {
    let ring = IoUring::new(1);
    if let Err(error) = &ring {
        nearpath_testing::skip(&format!("no io_uring ({error})"));
    }
    ring.is_ok()
}

fn request(how: How, listener: &TcpListener) -> squeue::Entry {
    let fd = Fd(listener.as_raw_fd());
    let entry = match how {
        How::Once => opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut()).build(),
        How::Multishot => opcode::AcceptMulti::new(fd).build(),
        How::Direct => opcode::AcceptMulti::new(fd).allocate_file_index(true).build(),
    };
    entry.user_data(7)
}

fn submit(ring: &mut IoUring, entry: &squeue::Entry) {
    // SAFETY: the request has no buffers, and its listener lives longer than the ring.
    unsafe { ring.submission().push(entry).unwrap() };
    ring.submit().unwrap();
}

/// Accepts all connections on CPU 1; how many of them the kernel received there, as far as descriptors
/// let it be asked. Other threads continue once the first request is submitted.
fn serve(listener: &TcpListener, how: How, kind: Ring, submitted: &Barrier) -> u64 {
    pin(1);
    let mut ring = kind.open().unwrap();
    if how == How::Direct {
        ring.submitter().register_files_sparse(ALL as u32).unwrap();
    }
    submit(&mut ring, &request(how, listener));
    submitted.wait();
    let (mut accepted, mut own) = (0, 0);
    while accepted < ALL {
        ring.submit_and_wait(1).unwrap();
        let completions: Vec<cqueue::Entry> = ring.completion().collect();
        for completion in completions {
            let fd = completion.result();
            assert!(fd >= 0, "{}", std::io::Error::from_raw_os_error(-fd));
            accepted += 1;
            if how != How::Direct {
                // SAFETY: the kernel has just created it, and it has no other owner.
                let connection = unsafe { OwnedFd::from_raw_fd(fd) };
                own += u64::from(incoming_cpu(&connection) == 1);
            }
            if !cqueue::more(completion.flags()) && accepted < ALL {
                submit(&mut ring, &request(how, listener));
            }
        }
    }
    own
}

/// The instrument's result for a server that submitted its request before, and the server's own count.
fn measured(how: How, kind: Ring) -> (AcceptMeasurement, u64, TcpListener) {
    let listener = listen(Ipv4Addr::LOCALHOST.into());
    let address = listener.local_addr().unwrap();
    let root = Root::live();
    let port = Some(address.port());
    let options = Options { port, each: true, ..Options::default() };
    let mut accepts = Accepts::new(&root, &each_cpu_a_node(), options);
    let submitted = Barrier::new(2);
    let own = std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&listener, how, kind, &submitted));
        submitted.wait();
        accepts.start().unwrap();
        connect_from_both(address);
        server.join().unwrap()
    });
    (accepts.stop().unwrap(), own, listener)
}

fn check(how: How, kind: Ring) {
    let (m, own, listener) = measured(how, kind);
    let [found] = m.listeners.as_slice() else { panic!("{how:?} {kind:?}: {m:?}") };
    assert_eq!(found.local, listener.local_addr().unwrap().to_string());
    let (all, places) = (ALL as u64, found.places);
    assert_eq!(places.accepts, all, "{how:?} {kind:?}");
    if how == How::Direct {
        assert_eq!(places.unknown, all, "{places:?}");
    } else {
        // The server asks later: by then the end of the connection may have come, on another CPU.
        assert!(is_half(own) && places.same_cpu.abs_diff(own) * 100 <= all, "{own}: {places:?}");
        assert_eq!(places.same_cpu + places.other_node, all, "{places:?}");
    }
    let [worker] = found.workers.as_slice() else { panic!("{found:?}") };
    assert_eq!(worker.pid, std::process::id());
    let is_kernels = worker.comm.starts_with("iou-sqp-");
    assert_eq!(is_kernels, kind == Ring::Polled, "{}", worker.comm);
    assert_eq!((m.lost, m.events.len(), m.unknown.len()), (0, ALL, 0), "{how:?} {kind:?}");
    for event in &m.events {
        let said = event.to_string();
        assert!(said.contains(" accept(io_uring) -> fd="), "{said}");
        assert_eq!(event.fd.is_none(), how == How::Direct, "{said}");
    }
    println!(
        "{how:?} {kind:?}: {all} accepts, {} of their own CPU; {own}, the server says",
        places.same_cpu
    );
}

fn can_run() -> bool {
    nearpath_testing::require_bpf() && has_two_cpus() && has_io_uring()
}

#[test]
fn a_request_for_each_connection() {
    if can_run() {
        check(How::Once, Ring::Plain);
        check(How::Once, Ring::Deferred);
    }
}

#[test]
fn one_multishot_request_submitted_before() {
    if can_run() {
        check(How::Multishot, Ring::Plain);
        check(How::Multishot, Ring::Deferred);
    }
}

#[test]
fn a_thread_of_the_kernel_accepts() {
    if can_run() {
        check(How::Once, Ring::Polled);
        check(How::Multishot, Ring::Polled);
    }
}

#[test]
fn without_descriptors_the_receiving_cpu_is_unknown() {
    if can_run() {
        check(How::Direct, Ring::Plain);
    }
}

#[test]
fn connections_that_wait_are_counted_when_the_request_comes() {
    if !can_run() {
        return;
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let root = Root::live();
    let port = Some(listener.local_addr().unwrap().port());
    let mut accepts =
        Accepts::new(&root, &each_cpu_a_node(), Options { port, ..Options::default() });
    accepts.start().unwrap();
    // As many as the backlog has room for.
    let waiting: Vec<_> = (0..100)
        .map(|_| std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap())
        .collect();
    let mut ring = Ring::Plain.open().unwrap();
    submit(&mut ring, &request(How::Multishot, &listener));
    let mut descriptors = Vec::new();
    while descriptors.len() < waiting.len() {
        ring.submit_and_wait(1).unwrap();
        // SAFETY: the kernel has just created it, and it has no other owner.
        let own = |c: cqueue::Entry| unsafe { OwnedFd::from_raw_fd(c.result()) };
        descriptors.extend(ring.completion().map(own));
    }
    let m = accepts.stop().unwrap();
    let accepts: Vec<u64> = m.listeners.iter().map(|listener| listener.places.accepts).collect();
    assert_eq!(accepts, [waiting.len() as u64]);
}

#[test]
fn other_completions_are_not_accepts() {
    if !can_run() {
        return;
    }
    // Of the descriptor of a connection, of a listener, and of lengths that look like one.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (connection, _) = listener.accept().unwrap();
    let root = Root::live();
    let mut accepts = Accepts::new(&root, &each_cpu_a_node(), Options::default());
    accepts.start().unwrap();
    let mut ring = Ring::Plain.open().unwrap();
    let length = u32::try_from(client.as_raw_fd()).unwrap();
    let bytes = vec![0u8; 4096];
    for _ in 0..100 {
        let send = opcode::Send::new(Fd(connection.as_raw_fd()), bytes.as_ptr(), length);
        submit(&mut ring, &send.build().user_data(7));
        ring.submit_and_wait(1).unwrap();
        let sent = ring.completion().next().unwrap().result();
        assert_eq!(sent, client.as_raw_fd());
    }
    let m = accepts.stop().unwrap();
    let pid = std::process::id();
    let own = m.listeners.iter().flat_map(|listener| &listener.workers).any(|w| w.pid == pid);
    assert!(!own, "{:?}", m.listeners);
}
