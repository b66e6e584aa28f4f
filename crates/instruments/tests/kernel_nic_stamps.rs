//! Hardware timestamps on this kernel. Test machines have no NIC that provides them, so the test injects packets: a
//! BPF program passes copies of a frame with a chosen timestamp to the stack (`BPF_PROG_TEST_RUN` and
//! `bpf_clone_redirect`), like a driver, on a device whose clock is simulated. (The lab's `test_nic_stamps.py` uses a
//! NIC's own timestamps and clock.)

mod common;

use common::{can_run, possible_cpus};
use nearpath_host::timestamping::PhcReading;
use nearpath_instruments::stages::{GivenClock, NIC_RX, Options, Stages};
use nearpath_instruments::{Filter, Instrument};
use nearpath_model::{Detail, Measurement, PathKind, Protocol, ShareKind, Span};
use nearpath_testing::veth::{Side, VethPair};
use rustix::time::{ClockId, clock_gettime};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::process::Command;
use std::time::Duration;

const S: i64 = 1_000_000_000;
const MS: i64 = 1_000_000;
/// The test's clock has its own epoch, and is faster by this much.
const EPOCH: i64 = 1_800_000_000 * S;
const FASTER_PPM: i64 = 150;

fn monotonic() -> i64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec * S + time.tv_nsec
}

/// What the device's clock shows at a time of the monotonic clock.
fn phc(monotonic_ns: i64) -> i64 {
    EPOCH + monotonic_ns + monotonic_ns / 1_000_000 * FASTER_PPM
}

fn read_clock() -> PhcReading {
    let monotonic_ns = monotonic();
    PhcReading { phc_ns: phc(monotonic_ns), monotonic_ns, uncertainty_ns: 100 }
}

/// Gives the stack of a side datagrams by its device, with stamps.
struct Driver {
    program: i32,
    frame: Vec<u8>,
}

/// Instructions of a program that gives a copy of its sk_buff to the device with this index, as received.
fn instructions(ifindex: u32) -> [u64; 4] {
    let instruction =
        |code: u64, register: u64, immediate: u64| code | register << 8 | immediate << 32;
    // r2 = ifindex; r3 = BPF_F_INGRESS; call bpf_clone_redirect; exit
    [
        instruction(0xb7, 2, u64::from(ifindex)),
        instruction(0xb7, 3, 1),
        instruction(0x85, 0, 13),
        instruction(0x95, 0, 0),
    ]
}

/// Offset of `hwtstamp` in `struct __sk_buff` (include/uapi/linux/bpf.h), and how long that is.
const HWTSTAMP: usize = 184;
const CONTEXT: usize = 192;

impl Driver {
    /// For datagrams to a socket on the server's side.
    fn new(pair: &VethPair, to: SocketAddrV4) -> Self {
        let file = |name: &str| {
            let path = format!("/sys/class/net/{}/{name}", Side::Server.device());
            let read = |_| nearpath_host::Root::live().text(&path).map_err(std::io::Error::other);
            pair.run(Side::Server, read).unwrap()
        };
        let mac: Vec<u8> =
            file("address").split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
        let instructions = instructions(file("ifindex").parse().unwrap());
        let program = unsafe {
            // SAFETY: the instructions and the names last as long as the call.
            libbpf_sys::bpf_prog_load(
                libbpf_sys::BPF_PROG_TYPE_SCHED_CLS,
                c"stamped".as_ptr(),
                c"GPL".as_ptr(),
                instructions.as_ptr().cast(),
                instructions.len() as _,
                std::ptr::null_mut(),
            )
        };
        assert!(program >= 0, "{}", std::io::Error::last_os_error());
        Self { program, frame: frame(&mac, to) }
    }

    /// One datagram with a stamp; 0: none.
    fn receive(&self, pair: &VethPair, stamp: i64) {
        let mut context = [0u8; CONTEXT];
        context[HWTSTAMP..].copy_from_slice(&stamp.to_ne_bytes());
        // SAFETY: all zero bytes are valid options; what they point to lasts as long as the call.
        let run = |_| unsafe {
            let mut options: libbpf_sys::bpf_test_run_opts = std::mem::zeroed();
            options.sz = size_of::<libbpf_sys::bpf_test_run_opts>() as _;
            options.data_in = self.frame.as_ptr().cast();
            options.data_size_in = self.frame.len() as u32;
            options.ctx_in = context.as_ptr().cast();
            options.ctx_size_in = context.len() as u32;
            options.repeat = 1;
            let result = libbpf_sys::bpf_prog_test_run_opts(self.program, &raw mut options);
            (result == 0 && options.retval == 0).then_some(()).ok_or_else(|| {
                std::io::Error::other(format!(
                    "{result} {} {}",
                    options.retval,
                    std::io::Error::last_os_error()
                ))
            })
        };
        pair.run(Side::Server, run).unwrap();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this one's.
        unsafe { libc::close(self.program) };
    }
}

/// A datagram from the client's side.
fn frame(mac: &[u8], to: SocketAddrV4) -> Vec<u8> {
    const PAYLOAD: &[u8] = b"stamped by the test, and long enough";
    let udp = (8 + PAYLOAD.len()) as u16;
    let mut ip = vec![0x45, 0];
    ip.extend((20 + udp).to_be_bytes());
    ip.extend([0, 1, 0, 0, 64, 17, 0, 0, 10, 99, 0, 1]);
    ip.extend(to.ip().octets());
    let sum: u32 = ip.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
    let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut frame = mac.to_vec();
    frame.extend([2, 0, 0, 0, 0, 1, 8, 0]);
    frame.extend(ip);
    frame.extend(9u16.to_be_bytes());
    frame.extend(to.port().to_be_bytes());
    frame.extend(udp.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(PAYLOAD);
    frame
}

/// The server's socket, its device as one that stamps, and what gives it packets.
struct Scene {
    pair: VethPair,
    socket: UdpSocket,
    driver: Driver,
    filter: Filter,
}

impl Scene {
    fn new() -> Self {
        let pair = VethPair::new(1).unwrap();
        let socket = pair.run(Side::Server, |_| UdpSocket::bind((Side::Server.ipv4(), 0))).unwrap();
        socket.set_read_timeout(Some(nearpath_testing::PATIENCE)).unwrap();
        let to = socket.local_addr().unwrap();
        let SocketAddr::V4(to) = to else { panic!("{to}") };
        let driver = Driver::new(&pair, to);
        let filter =
            Filter { protocol: Some(Protocol::Udp), port: Some(to.port()), ..Filter::default() };
        Self { pair, socket, driver, filter }
    }

    fn clock(&self) -> GivenClock {
        let ifindex = |_| {
            let path = format!("/sys/class/net/{}/ifindex", Side::Server.device());
            nearpath_host::Root::live().text(&path).map_err(std::io::Error::other)
        };
        GivenClock {
            netns: u32::try_from(self.pair.inode(Side::Server).unwrap()).unwrap(),
            ifindex: self.pair.run(Side::Server, ifindex).unwrap().parse().unwrap(),
            nic: Side::Server.device(),
            read: read_clock,
        }
    }

    fn options(&self) -> Options {
        Options { filter: self.filter.clone(), ..Options::default() }
    }

    /// Receives a datagram that has a stamp, and reads it.
    fn receive(&self, stamp: i64) {
        self.driver.receive(&self.pair, stamp);
        self.socket.recv_from(&mut [0; 64]).unwrap();
    }

    fn measure(&self, stages: Stages, work: impl FnOnce()) -> Measurement {
        let mut stages = stages;
        stages.start().unwrap();
        work();
        let m = stages.stop().unwrap();
        // Functions may be out of reach on this kernel; but it must take the programs as they are.
        let refused = m.fallback.as_deref().filter(|why| why.contains("the verifier says"));
        assert_eq!(refused, None);
        m
    }
}

fn count(m: &Measurement, kind: PathKind) -> u64 {
    m.paths.iter().filter(|path| path.kind == kind).map(|path| path.count).sum()
}

fn from_nic(m: &Measurement) -> &Span {
    let mut spans = m.spans.iter().filter(|span| span.from == NIC_RX);
    let span = spans.next().unwrap_or_else(|| panic!("{:?}", m.nic_stamps));
    assert!(spans.next().is_none(), "each packet goes on to the same stage: {:?}", m.spans);
    span
}

#[test]
fn paths_start_at_the_timestamp_at_every_detail_and_others_are_separate() {
    if !can_run() {
        return;
    }
    let scene = Scene::new();
    for detail in [Detail::Coarse, Detail::Path, Detail::Full] {
        let options = Options { detail, ..scene.options() };
        let stages = Stages::new(&possible_cpus(), options).with_nic_clock(scene.clock());
        let mut longest = 0;
        let m = scene.measure(stages, || {
            for _ in 0..200 {
                let begin = monotonic();
                scene.receive(phc(begin - 3 * MS));
                longest = longest.max(monotonic() - begin);
                scene.receive(0);
            }
        });
        let counts =
            (count(&m, PathKind::ReceiveFromNic), count(&m, PathKind::Receive), m.packets.started);
        assert_eq!(counts, (200, 200, 400), "{detail:?} {:?}", m.nic_stamps);
        let stamps = m.nic_stamps.as_ref().unwrap();
        assert_eq!((stamps.used, stamps.ahead, stamps.too_old, stamps.unconverted), (200, 0, 0, 0));
        let device = &stamps.devices.iter().find(|d| d.nic == Side::Server.device()).unwrap();
        assert!(device.used && device.left_out.is_none() && device.clock_steps == 0, "{device:?}");
        assert!(m.observed(NIC_RX));
        // No earlier than it was stamped, no later than its reader had it.
        let exact = device.uncertainty_ns.unwrap() as i64 + 1_000;
        let span = from_nic(&m);
        let (least, most) = (span.min_ns.unwrap() as i64, span.max_ns.unwrap() as i64);
        assert_eq!(span.count, 200);
        assert!(least >= 3 * MS - exact && most <= 3 * MS + longest + exact, "{span:?} {longest}");
        let path = m.paths.iter().find(|path| path.kind == PathKind::ReceiveFromNic).unwrap();
        assert_eq!(path.from, NIC_RX);
        assert!(path.min_ns.unwrap() as i64 >= 3 * MS - exact, "{path:?}");
        let without = m.paths.iter().find(|path| path.kind == PathKind::Receive).unwrap();
        assert!((without.p50_ns.unwrap() as i64) < 3 * MS && without.from != NIC_RX, "{without:?}");
    }
}

#[test]
fn impossible_timestamps_are_counted_and_never_used() {
    if !can_run() {
        return;
    }
    let scene = Scene::new();
    let stages = Stages::new(&possible_cpus(), scene.options()).with_nic_clock(scene.clock());
    let m = scene.measure(stages, || {
        for _ in 0..20 {
            let now = monotonic();
            // In the future.
            for stamp in [phc(now + S), phc(now + 100 * S), i64::MAX, EPOCH * 3] {
                scene.receive(stamp);
            }
            // Too old: from another clock, from before it was set, or from a register that was not read.
            for stamp in [phc(now - 3 * S / 2), phc(now - 100 * S), 1, now, -1, i64::MIN] {
                scene.receive(stamp);
            }
        }
    });
    let stamps = m.nic_stamps.as_ref().unwrap();
    // The difference of the smallest number wraps around, and is still none that could be.
    assert_eq!((stamps.used, stamps.ahead + stamps.too_old), (0, 200), "{stamps:?}");
    assert!(stamps.ahead >= 80 && stamps.too_old >= 100, "{stamps:?}");
    assert_eq!((count(&m, PathKind::ReceiveFromNic), count(&m, PathKind::Receive)), (0, 200));
    assert!(m.spans.iter().all(|span| span.from != NIC_RX && span.max_ns < Some(S as u64)));
}

#[test]
fn timestamps_are_not_read_without_a_device_or_a_request() {
    if !can_run() {
        return;
    }
    let scene = Scene::new();
    let with = |options| Stages::new(&possible_cpus(), options).with_nic_clock(scene.clock());
    let without = Options { without: vec![NIC_RX.to_owned()], ..scene.options() };
    for stages in [Stages::new(&possible_cpus(), scene.options()), with(without)] {
        let m = scene.measure(stages, || {
            (0..50).for_each(|_| scene.receive(phc(monotonic() - MS)));
        });
        assert_eq!(m.nic_stamps.as_ref().map_or(0, |stamps| stamps.used + stamps.other_device), 0);
        assert_eq!((count(&m, PathKind::ReceiveFromNic), count(&m, PathKind::Receive)), (0, 50));
        assert!(!m.observed(NIC_RX), "{:?}", m.stages);
    }
    // Of another namespace's device with the same index nothing is known.
    let elsewhere = GivenClock {
        netns: u32::try_from(scene.pair.inode(Side::Client).unwrap()).unwrap(),
        ..scene.clock()
    };
    let stages = Stages::new(&possible_cpus(), scene.options()).with_nic_clock(elsewhere);
    let m = scene.measure(stages, || {
        (0..50).for_each(|_| scene.receive(phc(monotonic() - MS)));
    });
    let stamps = m.nic_stamps.as_ref().unwrap();
    assert_eq!((stamps.used, stamps.other_device), (0, 50), "{stamps:?}");
    assert!(stamps.devices.iter().all(|device| !device.used));
}

#[test]
fn the_clock_is_followed_as_long_as_it_is_measured() {
    if !can_run() {
        return;
    }
    let scene = Scene::new();
    let stages = Stages::new(&possible_cpus(), scene.options()).with_nic_clock(scene.clock());
    let m = scene.measure(stages, || {
        let end = monotonic() + 2 * S;
        // 150 ppm are 300µs in this time: without following the clock the last would be of the future.
        while monotonic() < end {
            scene.receive(phc(monotonic() - MS / 20));
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let stamps = m.nic_stamps.as_ref().unwrap();
    assert_eq!((stamps.used, stamps.ahead), (m.packets.started, 0), "{stamps:?}");
    let device = stamps.devices.iter().find(|d| d.nic == Side::Server.device()).unwrap();
    let drift = device.drift_ppb.unwrap();
    assert!((drift - FASTER_PPM as f64 * 1000.0).abs() < 3_000.0, "{device:?}");
    assert!(from_nic(&m).min_ns.unwrap() as i64 >= MS / 20 - 2_000, "{:?}", from_nic(&m));
}

#[test]
fn time_in_the_nic_is_not_assigned_to_a_cpu() {
    if !can_run() {
        return;
    }
    let scene = Scene::new();
    let options = Options {
        budgets: true,
        outliers: 100,
        slow: Some(Duration::from_millis(5)),
        ..scene.options()
    };
    let stages = Stages::new(&possible_cpus(), options).with_nic_clock(scene.clock());
    let m = scene.measure(stages, || {
        (0..30).for_each(|_| scene.receive(phc(monotonic() - 20 * MS)));
    });
    let late: Vec<_> = m.outliers.iter().filter(|outlier| outlier.from == NIC_RX).collect();
    assert_eq!(late.len(), 30, "{:?}", m.slow);
    for outlier in late {
        let shares: u64 = outlier.budget.iter().filter(|s| s.share.is_time()).map(|s| s.ns).sum();
        assert!(shares.abs_diff(outlier.span_ns) <= outlier.span_ns / 20, "{outlier:?}");
        if matches!(outlier.to.as_str(), "irq_handler" | "net_rx_raise") {
            assert_eq!(outlier.budget[0].share, ShareKind::Nic, "{outlier:?}");
        }
    }
}

#[test]
fn a_forwarded_packet_keeps_its_timestamp_which_is_not_the_next_devices() {
    if !can_run() {
        return;
    }
    let scene = Scene::new();
    let run = |program: &str, arguments: &[&str]| {
        let run = |_| Command::new(program).args(arguments).status();
        assert!(scene.pair.run(Side::Server, run).unwrap().success(), "{arguments:?}");
    };
    run("sh", &["-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"]);
    let (beyond, port) = (Ipv4Addr::new(10, 99, 0, 9), 4009);
    let mac = "02:00:00:00:00:09";
    run("ip", &["neigh", "add", &beyond.to_string(), "lladdr", mac, "dev", Side::Server.device()]);
    let driver = Driver::new(&scene.pair, SocketAddrV4::new(beyond, port));
    let filter = Filter { protocol: Some(Protocol::Udp), port: Some(port), ..Filter::default() };
    let options = Options { filter, ..Options::default() };
    let stages = Stages::new(&possible_cpus(), options).with_nic_clock(scene.clock());
    let m = scene.measure(stages, || {
        for _ in 0..50 {
            driver.receive(&scene.pair, phc(monotonic() - 3 * MS));
            driver.receive(&scene.pair, 0);
        }
    });
    assert_eq!((count(&m, PathKind::ForwardFromNic), count(&m, PathKind::Forward)), (50, 50));
    let path = m.paths.iter().find(|path| path.kind == PathKind::ForwardFromNic).unwrap();
    assert!(path.from == NIC_RX && path.min_ns > Some(2 * MS as u64), "{path:?}");
    // The other side of the wire receives them as they are.
    let stamps = m.nic_stamps.as_ref().unwrap();
    assert_eq!((stamps.used, stamps.other_device, stamps.ahead), (50, 50, 0), "{stamps:?}");
}
