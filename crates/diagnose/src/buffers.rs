//! How large the buffers of TCP should be for a path, and at most.
//!
//! A connection keeps the path full if its window holds the bytes that are in flight: rate × round-trip time. While a
//! window limits it, the rate that it would reach is unknown, and at least the present one: the proposal leaves room to
//! double it. A buffer holds about twice the bytes of its window, since the kernel counts the memory of packets, not
//! their bytes (`tcp_adv_win_scale` in Documentation/networking/ip-sysctl.rst; `scaling_ratio` in
//! include/linux/tcp.h since 6.6).

use crate::Context;
use crate::checks::tcp_memory;
use nearpath_model::tcp::TcpConnection;
use nearpath_model::{ProposedChange, Sysctl};

/// The largest buffer that is proposed: twice the default of `tcp_rmem` in Linux 6.18. Half of it is 1 Gbit/s over 268 ms,
/// longer than any path on Earth that is not by satellite. A program that needs more for one connection sets SO_RCVBUF or
/// SO_SNDBUF of that connection; for all of them, more would fill the queues of each slow path.
pub(crate) const LARGEST: u64 = 64 << 20;
/// One connection gets no more than this part of the memory at which TCP is under pressure (second number of
/// `tcp_mem`) and stops growing buffers.
const PART_OF_MEMORY: u64 = 8;
/// Window to buffer, and room to double the rate.
const BUFFER_OF_PRODUCT: u64 = 4;
/// `tcp_mem` is in pages; this is the smallest size of a page, so that the limit is not too high.
const PAGE: u64 = 4096;
/// From this share of the largest size, a buffer counts as grown to it.
const GROWN: f64 = 0.9;

/// What set the size of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SizeOf {
    /// The kernel, which may grow it no further: third number of `tcp_rmem` or `tcp_wmem`.
    Grown,
    /// The application, which got the largest size that it may set: `rmem_max` or `wmem_max`.
    Capped,
    /// The application, or the kernel that has not grown it yet.
    Other,
}

/// Who set a buffer of this size, with the third number of `tcp_rmem` or `tcp_wmem`, and `rmem_max` or `wmem_max`: of
/// what an application sets, the kernel takes twice (`__sock_set_rcvbuf` of net/core/sock.c).
fn size_of(buffer: u64, grown: Option<u64>, set_at_most: Option<u64>) -> SizeOf {
    if grown.is_some_and(|grown| buffer as f64 >= GROWN * grown as f64) {
        SizeOf::Grown
    } else if set_at_most.is_some_and(|most| most.saturating_mul(2) == buffer) {
        SizeOf::Capped
    } else {
        SizeOf::Other
    }
}

/// These connections by who set the size of their buffer, which `buffer` is, with the sysctls of its largest sizes.
pub(crate) fn by_size<'a>(
    context: &Context<'_>,
    limited: &[&'a TcpConnection],
    buffer: fn(&TcpConnection) -> Option<u32>,
    (third, most): (Sysctl, Sysctl),
) -> Vec<(SizeOf, Vec<&'a TcpConnection>)> {
    let grown = context.three(third.name()).map(|[_, _, most]| most);
    let set_at_most = context.sysctl(most.name());
    let of = |c: &TcpConnection| size_of(buffer(c).unwrap_or(0).into(), grown, set_at_most);
    let with = |size| limited.iter().filter(|c| of(c) == size).copied().collect();
    [SizeOf::Grown, SizeOf::Capped, SizeOf::Other].map(|size| (size, with(size))).into()
}

/// A sysctl as it is, and raised: doubled, and to the kernel's default at the least, up to a limit beyond which more only
/// adds latency. `None` if it is there already.
pub(crate) fn raised(context: &Context<'_>, sysctl: Sysctl, limit: u64) -> Option<(u64, u64)> {
    let now = context.sysctl(sysctl.name())?;
    let after = now.saturating_mul(2).max(sysctl.kernel_default().unwrap_or(0)).min(limit);
    (after > now).then_some((now, after))
}

/// The largest buffer to propose on this host: [`LARGEST`], and no more than a part of the memory of TCP.
pub(crate) fn bound(context: &Context<'_>) -> u64 {
    let pressure = context.three("net.ipv4.tcp_mem").map(|[_, pages, _]| pages);
    let part = pressure.map(|pages| pages.saturating_mul(PAGE) / PART_OF_MEMORY);
    part.map_or(LARGEST, |part| power_of_two_within(part).min(LARGEST))
}

/// The buffer for so many bytes in flight: a power of two, within the bound.
pub(crate) fn wanted(context: &Context<'_>, bytes_in_flight: u64) -> u64 {
    let bound = bound(context);
    let size = bytes_in_flight.saturating_mul(BUFFER_OF_PRODUCT).min(bound);
    size.checked_next_power_of_two().unwrap_or(bound).min(bound)
}

/// The largest power of two that is not larger.
fn power_of_two_within(size: u64) -> u64 {
    size.checked_ilog2().map_or(0, |bits| 1 << bits)
}

/// The third number of `tcp_rmem` or `tcp_wmem` made this large, if that is more.
pub(crate) fn grow_third(
    context: &Context<'_>,
    sysctl: Sysctl,
    size: u64,
    why: &str,
) -> Option<ProposedChange> {
    let [least, first, most] = context.three(sysctl.name())?;
    // More for each would be less for all.
    let is_short = tcp_memory::is_short(context);
    (size > most && size >= first && !is_short).then(|| {
        let (before, after) =
            (format!("{least} {first} {most}"), format!("{least} {first} {size}"));
        ProposedChange::new(sysctl, Some(before), after, why)
    })
}

/// `rmem_max` or `wmem_max` made so large that an application may set this buffer, if that is more.
pub(crate) fn grow_cap(
    context: &Context<'_>,
    sysctl: Sysctl,
    size: u64,
    why: &str,
) -> Option<ProposedChange> {
    let (now, after) = (context.sysctl(sysctl.name())?, size / 2);
    (after > now)
        .then(|| ProposedChange::new(sysctl, Some(now.to_string()), after.to_string(), why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::Host;

    fn host(tcp_mem: &str) -> Host {
        let sysctls =
            [("net.ipv4.tcp_mem", tcp_mem), ("net.ipv4.tcp_rmem", "4096\t131072\t6291456")];
        let sysctls = sysctls.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        Host { sysctls, ..Host::default() }
    }

    #[test]
    fn buffers_are_powers_of_two_within_a_part_of_the_memory() {
        let large = host("766242\t1021657\t1532484");
        let context = Context::new(&large, None, None);
        for (in_flight, buffer) in [
            (0, 1),
            (3_000_000, 16 << 20),
            (1 << 22, 16 << 20),
            (1 << 40, 64 << 20),
            (u64::MAX, 64 << 20),
        ] {
            assert_eq!(wanted(&context, in_flight), buffer, "{in_flight}");
        }
        // 60,000 pages are 234 MiB: an eighth of it, and a power of two.
        let small = host("45000 60000 90000");
        assert_eq!(wanted(&Context::new(&small, None, None), u64::MAX), 16 << 20);
        for strange in ["", "1 2", "0 0 0", "1 18446744073709551615 3", "a b c"] {
            let host = host(strange);
            assert!(wanted(&Context::new(&host, None, None), u64::MAX) <= LARGEST, "{strange}");
        }
    }

    #[test]
    fn a_size_is_never_proposed_that_is_no_more_than_now() {
        let host = host("766242 1021657 1532484");
        let context = Context::new(&host, None, None);
        let after = |size| {
            let change = grow_third(&context, Sysctl::TcpRmem, size, "")?;
            Some((change.before?.to_string(), change.after.to_string()))
        };
        assert_eq!(after(6_291_456), None);
        let both = ("4096 131072 6291456".to_owned(), "4096 131072 8388608".to_owned());
        assert_eq!(after(8 << 20), Some(both));
        assert_eq!(grow_third(&context, Sysctl::TcpWmem, 8 << 20, ""), None, "unknown");
    }

    #[test]
    fn who_set_a_size_is_seen_from_the_limits() {
        let of = |buffer| size_of(buffer, Some(6_291_456), Some(212_992));
        assert_eq!(of(6_291_456), SizeOf::Grown);
        assert_eq!(of(425_984), SizeOf::Capped);
        assert_eq!(of(131_072), SizeOf::Other);
        assert_eq!(size_of(0, None, None), SizeOf::Other);
    }
}
