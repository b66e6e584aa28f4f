//! Runs a program and kills it (SIGKILL) as it is about to write for the nth time, to a file, to the
//! disk, to a driver, or its output; or lets that write fail, or does something else then. So every step of
//! what it does is one at which it can end or go wrong.
//!
//! A seccomp filter stops the program at calls that may write (`SECCOMP_RET_TRACE`); all others run at full
//! speed, so that this works on a slow virtual host, too.

use nearpath_testing::skip;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Whether this thread may trace a program; counts the skip where it may not.
pub fn require_ptrace() -> bool {
    if !cfg!(target_arch = "x86_64") {
        skip("programs are traced on x86-64 alone");
        return false;
    }
    match killed_at(Command::new("true"), usize::MAX) {
        Ok(_) => true,
        Err(error) => {
            skip(&format!("no ptrace ({error})"));
            false
        }
    }
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It was killed before its nth write.
    Killed,
    /// It exited by itself after this number of writes, with this status.
    Ended { writes: usize, status: i32 },
}

/// Runs a program until it is about to write for the nth time, counted from 1.
pub fn killed_at(command: Command, nth: usize) -> io::Result<End> {
    traced(command, |writes, _| if writes == nth { Fate::Killed } else { Fate::Done })
}

/// Runs a program of which the nth write fails (EIO), counted from 1 and without those to its output;
/// or, `for_good`, that one and all after it.
pub fn failing_at(command: Command, nth: usize, for_good: bool) -> io::Result<End> {
    let mut to_output = 0;
    traced(command, |writes, fd| {
        to_output += usize::from(fd <= 2);
        let number = writes - to_output;
        let fails = number == nth || (for_good && number > nth);
        if fails && fd > 2 { Fate::Failing } else { Fate::Done }
    })
}

/// What becomes of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is done.
    Done,
    /// The kernel refuses it.
    Failing,
    /// The program is killed before it.
    Killed,
}

/// Runs a program, and asks what is to become of each write, while the program waits: of its number, from 1,
/// and the first argument, which is the descriptor for most.
pub fn traced(
    mut command: Command,
    mut fate: impl FnMut(usize, libc::c_ulonglong) -> Fate,
) -> io::Result<End> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let filter = filter()?;
    // SAFETY: all of it is plain system calls, and touches nothing of ours in the child.
    unsafe {
        command.pre_exec(move || {
            check(libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0))?;
            apply_filter(&filter).map_err(|_| io::Error::last_os_error())
        });
    }
    let child = command.spawn()?;
    let program = i32::try_from(child.id()).map_err(io::Error::other)?;
    // It stops as it begins.
    wait(program)?;
    let options = libc::PTRACE_O_EXITKILL
        | libc::PTRACE_O_TRACESECCOMP
        | libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK;
    // SAFETY: as above.
    check(unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, program, 0, options) })?;
    proceed(program, 0)?;
    let mut known = BTreeSet::from([program]);
    let (mut writes, mut killed) = (0, false);
    loop {
        // Threads and processes that it starts stop here, too.
        let (pid, status) = wait(-1)?;
        if !libc::WIFSTOPPED(status) {
            known.remove(&pid);
            if pid != program {
                continue;
            }
            return Ok(match killed {
                true => End::Killed,
                false => End::Ended { writes, status: libc::WEXITSTATUS(status) },
            });
        }
        let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
        let mut deliver = 0;
        if event == libc::PTRACE_EVENT_SECCOMP {
            if let Some(fd) = write_at(pid)? {
                writes += 1;
                match fate(writes, fd) {
                    Fate::Done => {}
                    Fate::Failing => fail_call(pid)?,
                    Fate::Killed => {
                        killed = true;
                        for &pid in &known {
                            // SAFETY: as above; those that are threads have ended with the first.
                            unsafe { libc::kill(pid, libc::SIGKILL) };
                        }
                        continue;
                    }
                }
            }
        } else if known.insert(pid) || event != 0 || signal == libc::SIGTRAP {
            // A new one begins, was begun, or another program is.
        } else {
            deliver = signal;
        }
        proceed(pid, deliver)?;
    }
}

/// Lets a program run to its next stop.
fn proceed(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: ptrace(2) is a plain system call.
    match check(unsafe { libc::ptrace(libc::PTRACE_CONT, pid, 0, signal) }) {
        // It was killed meanwhile.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other.map(drop),
    }
}

/// Whether writes can be made to fail here.
pub fn require_failing() -> bool {
    require_ptrace()
}

/// Makes the call that a program enters one that failed: there is none of that number, and the value that it
/// returns is there already (seccomp(2), SECCOMP_RET_TRACE).
fn fail_call(pid: i32) -> io::Result<()> {
    #[cfg(target_arch = "x86_64")]
    for (register, value) in [(libc::ORIG_RAX, -1), (libc::RAX, -i64::from(libc::EIO))] {
        // The registers are words at the beginning of struct user (sys/user.h).
        let at = i64::from(register) * 8;
        // SAFETY: as above; it changes a register of the child.
        check(unsafe { libc::ptrace(libc::PTRACE_POKEUSER, pid, at, value) })?;
    }
    let _ = pid;
    Ok(())
}

/// Calls that change a file, or its place, whatever their arguments.
const WRITING: &[i64] = &[
    libc::SYS_write,
    libc::SYS_pwrite64,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_mkdirat,
    libc::SYS_linkat,
    libc::SYS_fchmod,
];

/// `SIOCETHTOOL` of include/uapi/linux/sockios.h.
const SIOCETHTOOL: u64 = 0x8946;

/// Those commands of include/uapi/linux/ethtool.h that set coalescing, rings, flow hash, rules, tables, features,
/// channels and keys.
const SETTING: &[u32] = &[0x0f, 0x11, 0x2a, 0x31, 0x32, 0x39, 0x3b, 0x3d, 0x47];

/// The same of netlink's ethtool family (include/uapi/linux/ethtool_netlink.h): features, private flags,
/// rings, channels, coalescing and tables.
const SETTING_BY_NETLINK: &[u8] = &[12, 14, 16, 18, 20, 48];
/// `NLM_F_DUMP` of include/uapi/linux/netlink.h: such a request only reads.
const DUMP: u16 = 0x300;

/// Stops at calls that may write.
fn filter() -> io::Result<BpfProgram> {
    let other = |error: seccompiler::BackendError| io::Error::other(error);
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        WRITING.iter().map(|&call| (call, Vec::new())).collect();
    let ethtool = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, SIOCETHTOOL);
    let ethtool = SeccompRule::new(vec![ethtool.map_err(other)?]).map_err(other)?;
    rules.insert(libc::SYS_ioctl, vec![ethtool]);
    rules.insert(libc::SYS_sendto, Vec::new());
    let arch = std::env::consts::ARCH.try_into().map_err(other)?;
    let (others, these) = (SeccompAction::Allow, SeccompAction::Trace(0));
    let filter = SeccompFilter::new(rules, others, these, arch).map_err(other)?;
    filter.try_into().map_err(other)
}

/// The first argument of the call that a program enters, if it writes.
fn write_at(pid: i32) -> io::Result<Option<u64>> {
    #[cfg(target_arch = "x86_64")]
    {
        let register = |register: i32| -> io::Result<u64> {
            let at = i64::from(register) * 8;
            peek(libc::PTRACE_PEEKUSER, pid, at.cast_unsigned())
        };
        let [call, fd, second, third] = [
            register(libc::ORIG_RAX)?,
            register(libc::RDI)?,
            register(libc::RSI)?,
            register(libc::RDX)?,
        ];
        let word = |at: u64| peek(libc::PTRACE_PEEKDATA, pid, at);
        let writes = match i64::try_from(call) {
            Ok(libc::SYS_ioctl) => {
                // The command is the first word of what struct ifreq points to.
                let data = word(third + 16)?;
                SETTING.contains(&((word(data)? & 0xffff_ffff) as u32))
            }
            Ok(libc::SYS_sendto) if third >= 24 => {
                // struct nlmsghdr, and the command behind it.
                let flags = (word(second)? >> 48) as u16;
                let command = word(second + 16)?.to_le_bytes()[0];
                flags & DUMP != DUMP && SETTING_BY_NETLINK.contains(&command)
            }
            Ok(libc::SYS_sendto) => false,
            _ => true,
        };
        Ok(writes.then_some(fd))
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = pid;
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
}

/// A word of a program's memory or registers.
#[cfg(target_arch = "x86_64")]
fn peek(request: libc::c_uint, pid: i32, at: u64) -> io::Result<u64> {
    // SAFETY: as above. The C library returns the word itself, and reports an error by errno alone.
    let word = unsafe {
        *libc::__errno_location() = 0;
        libc::ptrace(request, pid, at, 0)
    };
    match io::Error::last_os_error() {
        error if word == -1 && error.raw_os_error() != Some(0) => Err(error),
        _ => Ok(word.cast_unsigned()),
    }
}

/// Waits for a process, or with -1 for any that this thread traces; which, and its status.
fn wait(pid: i32) -> io::Result<(i32, i32)> {
    let mut status = 0;
    let options = libc::__WALL | libc::__WNOTHREAD;
    // SAFETY: the status is ours to write to.
    let pid = check(i64::from(unsafe { libc::waitpid(pid, &raw mut status, options) }))?;
    Ok((i32::try_from(pid).map_err(io::Error::other)?, status))
}

fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
