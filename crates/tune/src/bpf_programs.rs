//! Programs and maps in the kernel, by their ids.

use crate::TuneError;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The program with this id; `None` if it no longer exists.
///
/// # Errors
/// The kernel refused.
pub(crate) fn by_id(id: u32) -> Result<Option<OwnedFd>, TuneError> {
    // SAFETY: a system call without pointers; it returns a new file descriptor or an error.
    let fd = unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) };
    if fd < 0 {
        let error = io::Error::from_raw_os_error(-fd);
        return match error.raw_os_error() {
            Some(libc::ENOENT) => Ok(None),
            _ => Err(TuneError::kernel(format!("cannot open BPF program {id}"), error)),
        };
    }
    // SAFETY: a new file descriptor without another owner.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// The kernel's information on a program; the ids of its maps go to `maps`.
///
/// # Errors
/// The kernel refused.
pub(crate) fn info(
    program: BorrowedFd<'_>,
    maps: &mut [u32],
) -> Result<libbpf_sys::bpf_prog_info, TuneError> {
    let mut info = libbpf_sys::bpf_prog_info {
        nr_map_ids: u32::try_from(maps.len()).unwrap_or(0),
        map_ids: maps.as_mut_ptr() as u64,
        ..Default::default()
    };
    let mut length = size_of_val(&info) as u32;
    // SAFETY: `info` is written within `length` bytes, and `map_ids` within `nr_map_ids` numbers,
    // which are borrowed until this returns; all other pointers are null.
    let error = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut length)
    };
    if error == 0 {
        return Ok(info);
    }
    Err(TuneError::kernel("cannot query a BPF program", io::Error::last_os_error()))
}
