//! Fuzzes netlink datagrams, replies about TCP sockets, and n-tuple rules of the driver's ioctl.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_host::parse::fuzzing;

fuzz_target!(|bytes: &[u8]| {
    fuzzing::netlink(bytes);
    let _ = nearpath_host::parse_tcp_socket(bytes);
    fuzzing::ntuple_rule(bytes);
});
