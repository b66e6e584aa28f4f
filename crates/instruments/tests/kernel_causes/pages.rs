//! A page of memory that a thread of this process provides after a delay (userfaultfd).

use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::time::Duration;

const PAGE: usize = 4096;
/// `include/uapi/linux/userfaultfd.h`
const API: u64 = 0xaa;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_ZEROPAGE: libc::c_ulong = 0xc020_aa04;
const MODE_MISSING: u64 = 1;
const MESSAGE_BYTES: usize = 32;

/// The page.
pub struct Pages {
    faults: OwnedFd,
    page: *mut c_void,
}

// SAFETY: the page is only touched, by one thread at a time, and its content is not used.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// `None` if the kernel does not permit this.
    pub fn new() -> Option<Self> {
        // SAFETY: no pointers are passed; the result is a new descriptor.
        let faults = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        let faults = i32::try_from(faults).ok().filter(|&fd| fd >= 0)?;
        // SAFETY: it has no other owner.
        let faults = unsafe { OwnedFd::from_raw_fd(faults) };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, which is unused.
        let page = unsafe {
            mmap_anonymous(std::ptr::null_mut(), PAGE, protection, MapFlags::PRIVATE).ok()?
        };
        let pages = Self { faults, page };
        pages.ask(UFFDIO_API, &mut [API, 0, 0]).then_some(())?;
        let range = &mut [pages.page as u64, PAGE as u64, MODE_MISSING, 0];
        pages.ask(UFFDIO_REGISTER, range).then_some(pages)
    }

    fn ask(&self, request: libc::c_ulong, words: &mut [u64]) -> bool {
        // SAFETY: the words are as many as the request's structure has.
        unsafe { libc::ioctl(self.faults.as_raw_fd(), request, words.as_mut_ptr()) == 0 }
    }

    /// The next touch is a fault.
    pub fn remove(&self) {
        // SAFETY: it is this test's page, to which there are no references.
        unsafe { madvise(self.page, PAGE, Advice::LinuxDontNeed).unwrap() };
    }

    /// Reads from the page.
    pub fn touch(&self) {
        // SAFETY: it is our own page, and readable.
        unsafe { self.page.cast::<u8>().read_volatile() };
    }

    /// Receives into the page; whether there was anything.
    pub fn receive(&self, socket: &impl AsRawFd) -> bool {
        // SAFETY: it is our own page, of that size, and no one else touches it meanwhile.
        unsafe { libc::recv(socket.as_raw_fd(), self.page, PAGE, 0) > 0 }
    }

    /// Provides the page after a delay, for the thread that waits for it.
    pub fn serve(&self, after: Duration) {
        std::thread::sleep(after);
        let mut message = [0; MESSAGE_BYTES];
        assert_eq!(rustix::io::read(&self.faults, &mut message).unwrap(), MESSAGE_BYTES);
        let range = &mut [self.page as u64, PAGE as u64, 0, 0];
        assert!(self.ask(UFFDIO_ZEROPAGE, range), "{}", std::io::Error::last_os_error());
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: there are no references to it any more.
        let _ = unsafe { munmap(self.page, PAGE) };
    }
}
