//! TCP data that waits for other data, for a locked socket, or for buffer space.

use crate::stream::{OTHER, Stream, VICTIM, lasts, measure, slow, us};
use crate::worker::{Policy, Worker, pin, schedule};
use crate::{alone, can_run, summary};
use nearpath_instruments::Filter;
use nearpath_model::{Direction, Measurement, Outlier, Share, ShareKind};
use nearpath_testing::veth::Side;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// A connection over the pair of a stream: the sender's end, and the reader's.
fn connect(stream: &Stream) -> (TcpStream, TcpStream) {
    let listener = stream.pair.run(Side::Server, |s| TcpListener::bind((s.ipv4(), 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let client = stream.pair.run(Side::Client, |_| TcpStream::connect(address)).unwrap();
    (client, listener.accept().unwrap().0)
}

/// The packets to the reader's port.
fn received(reader: &TcpStream, direction: Direction) -> Filter {
    Filter {
        dport: Some(reader.local_addr().unwrap().port()),
        direction: Some(direction),
        ..Filter::default()
    }
}

/// Nearly all selected slow packets must have it as their largest share.
fn assert_named(
    m: &Measurement,
    is_meant: impl Fn(&Outlier) -> bool,
    is_named: impl Fn(&Share) -> bool,
) {
    let meant: Vec<&Outlier> = m.outliers.iter().filter(|o| is_meant(o)).collect();
    let named = meant.iter().filter(|o| is_named(&o.budget[0])).count();
    let other: Vec<_> =
        meant.iter().filter(|o| !is_named(&o.budget[0])).take(9).map(|o| summary(o)).collect();
    let all: Vec<_> = m.outliers.iter().take(9).map(summary).collect();
    assert!(meant.len() >= 20, "{:?} {:?}\n{}", m.slow, m.packets, all.join("\n"));
    assert!(named * 20 >= meant.len() * 19, "{named} of {}: {}", meant.len(), other.join("\n"));
}

/// Occasionally a segment is lost, and the data after it waits until it is retransmitted.
#[test]
fn data_that_is_missing() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if can_run() {
        let _alone = alone();
        segments_are_lost();
    }
}

fn segments_are_lost() {
    let mut stream = Stream::new();
    // Retransmitted after the third segment behind it has arrived, not immediately.
    for sysctl in ["tcp_sack", "tcp_early_retrans"] {
        let path = format!("/proc/sys/net/ipv4/{sysctl}");
        stream.pair.run(Side::Client, |_| std::fs::write(&path, "0")).unwrap();
    }
    let (mut sender, mut reader) = connect(&stream);
    sender.set_nodelay(true).unwrap();
    lose_some(&reader);
    let filter = received(&reader, Direction::Rx);
    stream.start("reader", move |_| {
        pin(VICTIM);
        schedule(Policy::Fifo(40));
        while reader.read(&mut [0; 65536]).is_ok_and(|n| n > 0) {}
    });
    stream.start("sender", move |over| {
        pin(OTHER);
        schedule(Policy::Fifo(45));
        while !over.load(SeqCst) {
            sender.write_all(&[0; 1000]).unwrap();
            std::thread::sleep(us(1000));
        }
    });
    let m = measure(filter, us(500), || std::thread::sleep(3 * lasts()));
    // An out-of-order segment is processed first, and waits afterwards.
    let meant = |o: &Outlier| o.from == "tcp_rcv_established";
    assert_named(&m, meant, |share| share.share == ShareKind::TcpGap);
}

/// A filter of the socket drops one segment in fifteen, at random, as a network does.
fn lose_some(socket: &TcpStream) {
    // Loads a random number (SKF_AD_RANDOM); a low one drops the segment.
    let instruction = |code, jt, k| libc::sock_filter { code, jt, jf: 0, k };
    let mut program = [
        instruction(0x20, 0, 0xffff_f000 + 56),
        instruction(0x35, 1, u32::MAX / 15),
        instruction(0x06, 0, 0),
        instruction(0x06, 0, u32::MAX),
    ];
    let filter = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
    let length = libc::socklen_t::try_from(size_of_val(&filter)).unwrap();
    // SAFETY: the program and its length are those of the structure, which the kernel copies.
    let attached = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            length,
        )
    };
    assert_eq!(attached, 0, "{}", std::io::Error::last_os_error());
}

/// The reader takes page faults within its receive call, and has the socket locked meanwhile.
#[test]
fn a_socket_that_its_reader_holds_locked() {
    if !nearpath_testing::require_lengthy() {
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
    let _alone = alone();
    let mut stream = Stream::new();
    let (mut sender, reader) = connect(&stream);
    sender.set_nodelay(true).unwrap();
    let filter = received(&reader, Direction::Rx);
    stream.start("reader", move |over| {
        let pages = Arc::new(crate::pages::Pages::new().unwrap());
        let theirs = Arc::clone(&pages);
        let kept = us(8000);
        let helper = Worker::new("helper", OTHER, Policy::Fifo(46), move |_| theirs.serve(kept));
        pin(VICTIM);
        schedule(Policy::Fifo(40));
        while !over.load(SeqCst) {
            pages.remove();
            helper.begin();
            // The destination page is not present. (At the end of the stream nothing is received.)
            let received = pages.receive(&reader);
            pages.touch();
            helper.end();
            if !received {
                break;
            }
        }
    });
    stream.start("sender", move |over| {
        pin(OTHER);
        schedule(Policy::Fifo(45));
        while !over.load(SeqCst) {
            sender.write_all(&[0; 100]).unwrap();
            std::thread::sleep(us(500));
        }
    });
    let m = measure(filter, slow(), || std::thread::sleep(lasts()));
    let is_reader = |share: &Share| {
        share.share == ShareKind::SocketLocked
            && share.who.as_ref().is_some_and(|who| who.comm.as_deref() == Some("reader"))
    };
    assert_named(&m, |o| o.to == "tcp_rcv_established", is_reader);
    // Nothing was lost.
    let gaps = m.budget_totals.iter().find(|total| total.share == ShareKind::TcpGap);
    assert_eq!(gaps, None);
}
