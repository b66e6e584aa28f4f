//! Sockets of other processes and their options: pidfd_getfd(2) and setsockopt(2).

use crate::TuneError;
use nearpath_model::GroupSocket;
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Duplicates a socket of another process.
///
/// # Errors
/// Not supported or not permitted, or the process has another file there by now.
pub fn take(socket: &GroupSocket) -> Result<OwnedFd, TuneError> {
    let refused = |reason: String| {
        let step = format!("duplicating the socket with inode {}", socket.inode);
        TuneError::Kernel { step, reason }
    };
    let gone = || refused("no process has it any more; try again".to_owned());
    let (pid, fd) = socket.held.ok_or_else(gone)?;
    let words = |errno: Errno| match errno {
        Errno::NOSYS => refused("the kernel has no pidfd_getfd (5.6 and later)".to_owned()),
        Errno::PERM => refused(format!("no access to process {pid}: requires root")),
        Errno::SRCH | Errno::BADF => gone(),
        other => refused(format!("process {pid}: {other}")),
    };
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
    let process = pidfd_open(process, PidfdFlags::empty()).map_err(words)?;
    let taken = pidfd_getfd(&process, fd, PidfdGetfdFlags::empty()).map_err(words)?;
    let inode = fstat(&taken).map_err(words)?.st_ino;
    if inode == socket.inode { Ok(taken) } else { Err(gone()) }
}

/// Attaches an eBPF program to the group of a socket.
pub fn attach_ebpf(socket: &OwnedFd, program: BorrowedFd<'_>) -> Result<(), TuneError> {
    set(socket, libc::SO_ATTACH_REUSEPORT_EBPF, &program.as_raw_fd())
        .map_err(|error| TuneError::kernel("attaching the program to the REUSEPORT group", error))
}

/// Attaches a classic program to the group of a socket.
pub fn attach_classic(socket: &OwnedFd, instructions: &[[u32; 4]]) -> Result<(), TuneError> {
    let refused = |error: String| {
        TuneError::kernel("attaching the classic program to the REUSEPORT group", error)
    };
    let filter = |&[code, jt, jf, k]: &[u32; 4]| {
        let (code, jt, jf) = (code.try_into().ok()?, jt.try_into().ok()?, jf.try_into().ok()?);
        Some(libc::sock_filter { code, jt, jf, k })
    };
    let filters: Option<Vec<libc::sock_filter>> = instructions.iter().map(filter).collect();
    let mut filters = filters.ok_or_else(|| refused("the program is invalid".to_owned()))?;
    let length = u16::try_from(filters.len()).map_err(|error| refused(error.to_string()))?;
    let program = libc::sock_fprog { len: length, filter: filters.as_mut_ptr() };
    set(socket, libc::SO_ATTACH_REUSEPORT_CBPF, &program).map_err(|e| refused(e.to_string()))
}

/// Detaches the program; succeeds if there is none.
pub fn detach(socket: &OwnedFd) -> Result<(), TuneError> {
    match set(socket, libc::SO_DETACH_REUSEPORT_BPF, &0i32) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        result => result.map_err(|e| TuneError::kernel("detaching from the REUSEPORT group", e)),
    }
}

fn set<T>(socket: &OwnedFd, option: i32, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: value is read for its own size; what a classic program points to is borrowed by the
    // caller until this returns.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            std::ptr::from_ref(value).cast(),
            length,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
