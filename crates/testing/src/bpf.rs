//! The smallest program of BPF, by system calls: `return 0` on a raw tracepoint, and how often it was run.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_RAW_TRACEPOINT_OPEN: libc::c_long = 17;
const BPF_ENABLE_STATS: libc::c_long = 32;
const BPF_PROG_TYPE_RAW_TRACEPOINT: u32 = 17;

/// The first fields of `union bpf_attr` for `BPF_PROG_LOAD` (include/uapi/linux/bpf.h).
#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
}

/// The same for `BPF_RAW_TRACEPOINT_OPEN`.
#[repr(C)]
struct RawTracepointOpen {
    name: u64,
    prog_fd: u32,
    padding: u32,
}

/// The same for `BPF_OBJ_GET_INFO_BY_FD`.
#[repr(C)]
struct GetInfo {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// The words of `struct bpf_prog_info` up to `run_cnt`.
const INFO_WORDS: usize = 26;

/// Loads `return 0` as a raw tracepoint program, attached to nothing; closing the descriptor
/// unloads it.
pub fn load() -> io::Result<OwnedFd> {
    // struct bpf_insn { code, dst:4 src:4, off, imm }: the code is the first byte in memory.
    const MOV64_R0_0: [u8; 8] = [0xb7, 0, 0, 0, 0, 0, 0, 0];
    const EXIT: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];
    let insns = [MOV64_R0_0, EXIT].map(u64::from_ne_bytes);
    let attr = ProgLoad {
        prog_type: BPF_PROG_TYPE_RAW_TRACEPOINT,
        insn_cnt: insns.len() as u32,
        insns: insns.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
    };
    // SAFETY: the pointers are valid during the call.
    unsafe { opened(BPF_PROG_LOAD, &attr) }
}

/// A program on a tracepoint, whose runs the kernel counts.
#[derive(Debug)]
pub struct Counted {
    program: OwnedFd,
    _link: OwnedFd,
    _statistics: OwnedFd,
}

impl Counted {
    /// Attaches a program to a tracepoint such as `softirq_entry`.
    pub fn attach(tracepoint: &CStr) -> io::Result<Self> {
        let program = load()?;
        // BPF_STATS_RUN_TIME, which is 0.
        // SAFETY: no pointers.
        let statistics = unsafe { opened(BPF_ENABLE_STATS, &0u32) }?;
        let name = tracepoint.as_ptr() as u64;
        let attr = RawTracepointOpen { name, prog_fd: program.as_raw_fd() as u32, padding: 0 };
        // SAFETY: the name outlives the call.
        let link = unsafe { opened(BPF_RAW_TRACEPOINT_OPEN, &attr) }?;
        Ok(Self { program, _link: link, _statistics: statistics })
    }

    /// How often it was run.
    pub fn runs(&self) -> io::Result<u64> {
        let mut info = [0u64; INFO_WORDS];
        let attr = GetInfo {
            bpf_fd: self.program.as_raw_fd() as u32,
            info_len: size_of_val(&info) as u32,
            info: info.as_mut_ptr() as u64,
        };
        // SAFETY: the kernel writes at most as much as there is room for.
        unsafe { call(BPF_OBJ_GET_INFO_BY_FD, &attr) }?;
        Ok(info[INFO_WORDS - 1])
    }
}

/// # Safety
/// Pointers in the attributes are valid during the call.
unsafe fn call<A>(command: libc::c_long, attr: &A) -> io::Result<libc::c_int> {
    // SAFETY: the attributes are borrowed with their size; the kernel treats later fields as zero.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attr), size_of::<A>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as libc::c_int) }
}

/// The same of a command that returns a descriptor.
///
/// # Safety
/// As that of [`call`].
unsafe fn opened<A>(command: libc::c_long, attr: &A) -> io::Result<OwnedFd> {
    // SAFETY: as required of the caller; the descriptor is new.
    unsafe { call(command, attr).map(|fd| OwnedFd::from_raw_fd(fd)) }
}
