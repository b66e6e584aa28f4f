//! Runs a program and kills it (SIGKILL) as it is about to write for the nth time: to a file, to the
//! disk, or its output. So every step of what it does is one at which it can end.

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
pub fn killed_at(mut command: Command, nth: usize) -> io::Result<End> {
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
    let mut writes = 0;
    while libc::WIFSTOPPED(status) {
        let signal = libc::WSTOPSIG(status);
        let mut deliver = 0;
        if signal == libc::SIGTRAP | 0x80 {
            if writes_now(pid)? {
                writes += 1;
                if writes == nth {
                    child.kill()?;
                    child.wait()?;
                    return Ok(End::Killed);
                }
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

/// Whether a stopped program enters a system call that changes a file.
fn writes_now(pid: i32) -> io::Result<bool> {
    let mut info = MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
    let size = size_of::<libc::ptrace_syscall_info>();
    // SAFETY: the kernel writes at most so many bytes to it.
    check(unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, pid, size, info.as_mut_ptr()) })?;
    // SAFETY: all zeroes is a value of it, and the kernel has filled in the rest.
    let info = unsafe { info.assume_init() };
    if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return Ok(false);
    }
    // SAFETY: `op` says that this is the part of the union that is filled in.
    let number = unsafe { info.u.entry.nr };
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
    ];
    Ok(writing.iter().any(|&call| u64::try_from(call) == Ok(number)))
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
