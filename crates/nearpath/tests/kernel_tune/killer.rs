//! Runs a program and kills it (SIGKILL) as it is about to write for the nth time, to a file, to the
//! disk, or its output; or lets that write fail. So every step of what it does is one at which it can
//! end or go wrong.

use nearpath_testing::skip;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Whether this thread may trace a program; counts the skip where it may not.
pub fn require_ptrace() -> bool {
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
    /// It ended by itself after so many writes, with this status.
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
enum Fate {
    /// It is done.
    Done,
    /// The kernel refuses it.
    Failing,
    /// The program is killed before it.
    Killed,
}

/// Runs a program, and asks what is to become of each write: of its number, from 1, and the first
/// argument, which is the descriptor for most.
fn traced(mut command: Command, mut fate: impl FnMut(usize, u64) -> Fate) -> io::Result<End> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: ptrace(2) is a plain system call, and touches nothing of ours in the child.
    unsafe {
        command.pre_exec(|| check(libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0)).map(drop));
    }
    let mut child = command.spawn()?;
    let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
    // It stops as it begins.
    let mut status = wait(pid)?;
    let options = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD;
    // SAFETY: as above.
    check(unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, pid, 0, options) })?;
    let (mut writes, mut failing) = (0, false);
    while libc::WIFSTOPPED(status) {
        let signal = libc::WSTOPSIG(status);
        let mut deliver = 0;
        if signal == libc::SIGTRAP | 0x80 {
            match write_at(pid)? {
                Stop::Writes { fd } => {
                    writes += 1;
                    match fate(writes, fd) {
                        Fate::Done => {}
                        Fate::Failing => {
                            skip_call(pid)?;
                            failing = true;
                        }
                        Fate::Killed => {
                            child.kill()?;
                            child.wait()?;
                            return Ok(End::Killed);
                        }
                    }
                }
                Stop::Returns if failing => {
                    return_error(pid)?;
                    failing = false;
                }
                Stop::Returns | Stop::Other => {}
            }
        } else if signal != libc::SIGTRAP {
            deliver = signal;
        }
        // SAFETY: as above.
        check(unsafe { libc::ptrace(libc::PTRACE_SYSCALL, pid, 0, deliver) })?;
        status = wait(pid)?;
    }
    Ok(End::Ended { writes, status: libc::WEXITSTATUS(status) })
}

/// Whether writes can be made to fail here.
pub fn require_failing() -> bool {
    if cfg!(target_arch = "x86_64") {
        return require_ptrace();
    }
    skip("system calls are made to fail on x86-64 alone");
    false
}

/// Makes the call that a program enters none.
fn skip_call(pid: i32) -> io::Result<()> {
    #[cfg(target_arch = "x86_64")]
    set_register(pid, libc::ORIG_RAX, -1)?;
    let _ = pid;
    Ok(())
}

/// Makes the call that a program returns from one that failed.
fn return_error(pid: i32) -> io::Result<()> {
    #[cfg(target_arch = "x86_64")]
    set_register(pid, libc::RAX, -i64::from(libc::EIO))?;
    let _ = pid;
    Ok(())
}

#[cfg(target_arch = "x86_64")]
fn set_register(pid: i32, register: i32, value: i64) -> io::Result<()> {
    // The registers are words at the beginning of struct user (sys/user.h).
    let at = i64::from(register) * 8;
    // SAFETY: as above; it changes a register of the child.
    check(unsafe { libc::ptrace(libc::PTRACE_POKEUSER, pid, at, value) }).map(drop)
}

/// Where a program has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// It enters a system call that changes a file.
    Writes { fd: u64 },
    /// It returns from a system call.
    Returns,
    /// It enters another.
    Other,
}

fn write_at(pid: i32) -> io::Result<Stop> {
    let mut info = MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
    let size = size_of::<libc::ptrace_syscall_info>();
    // SAFETY: the kernel writes at most so many bytes to it.
    check(unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, pid, size, info.as_mut_ptr()) })?;
    // SAFETY: all zeroes is a value of it, and the kernel has filled in the rest.
    let info = unsafe { info.assume_init() };
    if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return Ok(Stop::Returns);
    }
    // SAFETY: `op` says that this is the part of the union that is filled in.
    let entry = unsafe { info.u.entry };
    let writing = [
        libc::SYS_write,
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
    let writes = writing.iter().any(|&call| u64::try_from(call) == Ok(entry.nr));
    Ok(if writes { Stop::Writes { fd: entry.args[0] } } else { Stop::Other })
}

fn wait(pid: i32) -> io::Result<i32> {
    let mut status = 0;
    // SAFETY: the status is ours to write to.
    check(i64::from(unsafe { libc::waitpid(pid, &raw mut status, 0) }))?;
    Ok(status)
}

fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
