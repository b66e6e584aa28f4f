//! Addresses of host names.

use std::net::{SocketAddr, ToSocketAddrs};

/// The first address of a name.
pub fn look_up(name: &str, port: u16) -> Option<SocketAddr> {
    configure();
    (name, port).to_socket_addrs().ok()?.next()
}

/// A static binary has the C library's lookup by files and by DNS linked in. Other modules that
/// `/etc/nsswitch.conf` names it would load from the host, where they belong to another C library.
#[cfg(all(target_feature = "crt-static", target_env = "gnu"))]
fn configure() {
    use std::ffi::{c_char, c_int};
    unsafe extern "C" {
        // nss.h of the GNU C library.
        fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
    }
    // SAFETY: both are strings that live as long as the program; it copies what it keeps.
    unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) };
}

#[cfg(not(all(target_feature = "crt-static", target_env = "gnu")))]
fn configure() {}
