//! Any bytes as a datagram of netlink, and as an n-tuple rule of the driver's ioctl.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_host::parse::fuzzing;

fuzz_target!(|bytes: &[u8]| {
    fuzzing::netlink(bytes);
    fuzzing::ntuple_rule(bytes);
});
