//! The XDP program for priorities on this kernel's veth: packets of a class arrive on its CPU and all others where they
//! were, as sockets by CPU see it (PACKET_FANOUT_CPU); it is undone, and programs of others are left alone.

#[path = "common/changes.rs"]
mod changes;
mod common;

use changes::{change, executor};
use common::in_namespace;
use nearpath_host::{Root, current_netns};
use nearpath_model::{Change, Target};
use nearpath_testing::veth::{Side, VethPair};
use nearpath_tune::{Executor, Journal, Live, ObservedValue, TuneError};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use std::process::Command;

/// From include/uapi/linux/if_packet.h, absent in libc for some targets.
const PACKET_FANOUT: i32 = 18;
const PACKET_FANOUT_CPU: u32 = 2;

fn priorities(before: &str, after: &str) -> Change {
    let netns = current_netns(&Root::live()).inode;
    change(Target::parse("xdp np1 priorities", netns).unwrap(), before, after)
}

fn said(program: &str, arguments: &str) -> String {
    let output = Command::new(program).args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "{program} {arguments}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The link as `ip` shows it, without its state.
fn link() -> String {
    said("ip", "-d -o link show np1").replace("LOWERLAYERDOWN", "UP")
}

/// Whether this kernel runs XDP programs on veth at all.
fn has_xdp() -> bool {
    nearpath_testing::require_bpf() && nearpath_testing::require_program("ip")
}

fn packet_socket(side: Side) -> std::io::Result<OwnedFd> {
    let name = CString::new(side.device()).unwrap();
    // SAFETY: system calls with borrowed arguments; the descriptor is new.
    unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(Error::last_os_error());
        }
        let socket = OwnedFd::from_raw_fd(fd);
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
        let length = size_of_val(&address) as u32;
        match libc::bind(fd, (&raw const address).cast(), length) {
            0 => Ok(socket),
            _ => Err(Error::last_os_error()),
        }
    }
}

fn set(socket: &OwnedFd, level: i32, option: i32, value: &[u8]) {
    // SAFETY: the value is borrowed for the call.
    let error = unsafe {
        let at = value.as_ptr().cast();
        libc::setsockopt(socket.as_raw_fd(), level, option, at, value.len() as u32)
    };
    assert_eq!(error, 0, "{}", Error::last_os_error());
}

/// A socket for each of the two CPUs: the kernel passes a packet to that of the CPU that receives it.
fn by_cpu(pair: &VethPair) -> [OwnedFd; 2] {
    let sockets = [(); 2].map(|()| pair.run(Side::Server, packet_socket).unwrap());
    for socket in &sockets {
        let group = PACKET_FANOUT_CPU << 16 | std::process::id() & 0xffff;
        set(socket, libc::SOL_PACKET, PACKET_FANOUT, &group.to_ne_bytes());
    }
    sockets
}

const SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// A frame with an IP header, from an address whose last byte is given; `tag` is that of a VLAN.
fn frame(tag: Option<u16>, dscp: u8, from: u8) -> Vec<u8> {
    let mut frame = [[0xff; 6], SOURCE].concat();
    if let Some(tag) = tag {
        frame.extend([0x8100u16.to_be_bytes(), tag.to_be_bytes()].concat());
    }
    frame.extend(0x0800u16.to_be_bytes());
    let mut ip = [0; 60];
    (ip[0], ip[1]) = (0x45, dscp << 2);
    ip[12..16].copy_from_slice(&[10, 99, 0, from]);
    frame.extend(ip);
    frame
}

fn frame6(dscp: u8) -> Vec<u8> {
    let mut frame = [[0xff; 6], SOURCE].concat();
    frame.extend(0x86ddu16.to_be_bytes());
    let mut ip = [0; 60];
    ip[..2].copy_from_slice(&(0x6000 | u16::from(dscp) << 6).to_be_bytes());
    frame.extend(ip);
    frame
}

/// Sends a frame some times from CPU 0; how many arrived on each CPU.
fn sent(pair: &VethPair, frame: &[u8]) -> [u64; 2] {
    const COUNT: u64 = 100;
    let sockets = by_cpu(pair);
    let client = pair.run(Side::Client, packet_socket).unwrap();
    std::thread::scope(|scope| {
        let send = scope.spawn(|| {
            let mut one: libc::cpu_set_t = unsafe_zeroed();
            // SAFETY: the set is a local variable.
            unsafe {
                libc::CPU_SET(0, &mut one);
                assert_eq!(libc::sched_setaffinity(0, size_of_val(&one), &raw const one), 0);
            }
            for _ in 0..COUNT {
                // SAFETY: the buffer is borrowed for the call.
                let sent = unsafe {
                    libc::send(client.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0)
                };
                assert_eq!(sent, frame.len() as isize, "{}", Error::last_os_error());
            }
        });
        send.join().unwrap();
    });
    let mut counts = [0; 2];
    nearpath_testing::wait_for("frames", || {
        for (socket, count) in sockets.iter().zip(&mut counts) {
            let mut buffer = [0u8; 256];
            loop {
                let (at, length) = (buffer.as_mut_ptr().cast(), buffer.len());
                // SAFETY: the buffer is borrowed for the call.
                let read =
                    unsafe { libc::recv(socket.as_raw_fd(), at, length, libc::MSG_DONTWAIT) };
                if read <= 0 {
                    break;
                }
                *count += u64::from(buffer[6..12] == SOURCE);
            }
        }
        (counts.iter().sum::<u64>() >= COUNT).then_some(())
    });
    counts
}

fn unsafe_zeroed() -> libc::cpu_set_t {
    // SAFETY: a set of bits, of which none is set.
    unsafe { std::mem::zeroed() }
}

#[test]
fn classes_arrive_on_their_cpu_and_all_else_where_it_was() {
    if !has_xdp() || std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return;
    }
    in_namespace(|pair| {
        let before = link();
        let dir = tempfile::tempdir().unwrap();
        let mut executor = executor(dir.path());
        let value = "pcp 3 cpu 1, dscp 46 cpu 1, from 10.99.0.77 cpu 1";
        let made = executor.apply(vec![priorities("none", value)]).unwrap();
        assert_eq!(Live::new().look(&made[0]).unwrap(), ObservedValue::After);
        assert!(link().contains("prog/xdp"), "{}", link());
        let frames = BTreeMap::from([
            ("PCP 3", (frame(Some(3 << 13 | 5), 0, 1), 1)),
            ("PCP 3, a double tag of it", (frame(Some(3 << 13), 63, 1), 1)),
            ("PCP 5", (frame(Some(5 << 13 | 5), 0, 1), 0)),
            ("PCP 0, VLAN 3", (frame(Some(3), 0, 1), 0)),
            ("DSCP 46 in a VLAN", (frame(Some(1 << 13), 46, 1), 1)),
            ("DSCP 46", (frame(None, 46, 1), 1)),
            ("DSCP 46 of IPv6", (frame6(46), 1)),
            ("DSCP 45 of IPv6", (frame6(45), 0)),
            ("the source", (frame(None, 0, 77), 1)),
            ("another source", (frame(None, 0, 78), 0)),
            ("a short frame", (frame(None, 46, 1)[..20].to_vec(), 0)),
        ]);
        for (what, (frame, cpu)) in &frames {
            let mut expected = [0; 2];
            expected[*cpu] = 100;
            assert_eq!(sent(pair, frame), expected, "{what}");
        }
        executor.undo(&executor.entries()[0]).unwrap();
        assert_eq!(link(), before);
        assert_eq!(Live::new().look(&made[0]).unwrap(), ObservedValue::Before);
        assert_eq!(sent(pair, &frames["PCP 3"].0), [100, 0]);
    });
}

#[test]
fn a_program_is_replaced_in_place_and_restored() {
    if !has_xdp() {
        return;
    }
    in_namespace(|_| {
        let dir = tempfile::tempdir().unwrap();
        let mut executor = executor(dir.path());
        let first = priorities("none", "pcp 3 cpu 0");
        let second = priorities("pcp 3 cpu 0", "pcp 3 cpu 0, pcp 7 cpu 0");
        let made = executor.apply(vec![first, second]).unwrap();
        assert_eq!(Live::new().look(&made[1]).unwrap(), ObservedValue::After);
        executor.undo(&executor.entries()[1]).unwrap();
        assert_eq!(Live::new().look(&made[0]).unwrap(), ObservedValue::After);
        // Detached externally: nothing is left to undo.
        said("ip", "link set np1 xdp off");
        assert_eq!(Live::new().look(&made[0]).unwrap(), ObservedValue::Before);
        executor.undo(&executor.entries()[0]).unwrap();
        assert!(executor.entries().is_empty());
    });
}

#[test]
fn programs_of_others_and_cpus_that_are_not_there_are_refused() {
    if !has_xdp() {
        return;
    }
    in_namespace(|pair| {
        let dir = tempfile::tempdir().unwrap();
        for (value, words) in [
            ("pcp 3 cpu 99999", "not online"),
            ("pcp 9 cpu 0", "is not 'none' or classes"),
            ("", "is not 'none' or classes"),
        ] {
            let error = executor(dir.path()).apply(vec![priorities("none", value)]).unwrap_err();
            assert!(error.to_string().contains(words), "{value}: {error}");
        }
        let other = other_program();
        let other = other.as_raw_fd();
        let index = {
            let name = CString::new("np1").unwrap();
            // SAFETY: the name ends with a zero.
            unsafe { libc::if_nametoindex(name.as_ptr()) }
        };
        let xdp = |fd| {
            // SAFETY: a system call without pointers.
            unsafe { libbpf_sys::bpf_xdp_attach(index as i32, fd, 0, std::ptr::null()) }
        };
        assert_eq!(xdp(other), 0);
        let shown = link();
        let wanted = priorities("none", "pcp 3 cpu 0");
        let error = executor(dir.path()).apply(vec![wanted.clone()]).unwrap_err();
        assert!(matches!(error, TuneError::Drift { .. }), "{error}");
        let forced =
            Executor::new(Journal::open(dir.path(), "boot").unwrap(), Live::new().forced(true))
                .apply(vec![wanted])
                .unwrap_err();
        assert!(forced.to_string().contains("detach it first"), "{forced}");
        assert_eq!(link(), shown, "it is left alone");
        assert_eq!(sent(pair, &frame(Some(3 << 13), 0, 1)).iter().sum::<u64>(), 100);
        // Replaced after the change: an undo does not touch it.
        assert_eq!(xdp(-1), 0);
        let mut executor = executor(dir.path());
        executor.apply(vec![priorities("none", "pcp 3 cpu 0")]).unwrap();
        assert_eq!((xdp(-1), xdp(other)), (0, 0));
        let error = executor.undo(&executor.entries()[0]).unwrap_err();
        assert!(matches!(error, TuneError::Drift { .. }), "{error}");
    });
}

/// A program that passes everything: `return XDP_PASS`.
fn other_program() -> OwnedFd {
    let instructions: [u64; 2] = [0x2_0000_00b7, 0x95];
    let name = CString::new("other").unwrap();
    let license = CString::new("GPL").unwrap();
    // SAFETY: the instructions are two, and borrowed for the call, as the names are.
    unsafe {
        let fd = libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_XDP,
            name.as_ptr(),
            license.as_ptr(),
            instructions.as_ptr().cast(),
            2,
            std::ptr::null_mut(),
        );
        assert!(fd >= 0, "{}", Error::from_raw_os_error(-fd));
        OwnedFd::from_raw_fd(fd)
    }
}
