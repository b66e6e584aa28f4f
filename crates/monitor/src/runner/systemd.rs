//! systemd's side of a daemon: sockets that it passes (sd_listen_fds(3)) and notifications (sd_notify(3)).

use std::env;
use std::net::TcpListener;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The first descriptor passed (`SD_LISTEN_FDS_START`).
const FIRST: i32 = 3;

/// The listening socket that systemd passed, if it passed exactly one.
pub fn passed_listener() -> Option<TcpListener> {
    let number = |name: &str| env::var(name).ok()?.parse::<u32>().ok();
    let is_ours = number("LISTEN_PID")? == std::process::id() && number("LISTEN_FDS")? == 1;
    // SAFETY: systemd passes this descriptor to this process, and nothing else owns it: this is called once.
    let passed = is_ours.then(|| unsafe { OwnedFd::from_raw_fd(FIRST) })?;
    let listens = rustix::net::sockopt::socket_acceptconn(&passed).unwrap_or(false);
    let _ = rustix::io::fcntl_setfd(&passed, rustix::io::FdFlags::CLOEXEC);
    listens.then(|| TcpListener::from(passed))
}

/// Where notifications go.
#[derive(Debug)]
pub struct Notify(Option<(UnixDatagram, SocketAddr)>);

impl Notify {
    /// To the service manager that started this process, if one did.
    pub fn new() -> Self {
        let address = env::var_os("NOTIFY_SOCKET").and_then(|path| {
            match path.as_bytes().strip_prefix(b"@") {
                Some(name) => SocketAddr::from_abstract_name(name).ok(),
                None => SocketAddr::from_pathname(&path).ok(),
            }
        });
        Self(address.and_then(|address| Some((UnixDatagram::unbound().ok()?, address))))
    }

    /// Sends a state: `READY=1`. Whether it arrives is the manager's concern.
    pub fn send(&self, state: &str) {
        if let Some((socket, address)) = &self.0 {
            let _ = socket.send_to_addr(state.as_bytes(), address);
        }
    }
}
