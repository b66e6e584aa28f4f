//! Threaded NAPI, which a veth pair has instead of interrupts: one thread per receive queue processes the
//! queue's packets (`napi/DEVICE-ID`; since Linux 5.13). The affinity of the thread determines the receiving
//! CPU, as that of an interrupt does for a NIC.
//!
//! Input: an end of the pair. Output: its threads by queue, or why it has none. Without threads, packets are
//! received on the CPU that sends them, as on any other veth pair.

use crate::demo::namespace::Namespace;
use crate::demo::sysfs::Sysfs;
use crate::demo::veth::End;
use anyhow::{Context, Result, bail};
use nearpath_host::Root;
use rustix::net::{AddressFamily, SocketType, socket};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsRawFd;

/// Commands of include/uapi/linux/ethtool.h.
const ETHTOOL_STSO: u32 = 0x1f;
const ETHTOOL_SGRO: u32 = 0x2c;
/// Of include/uapi/linux/sockios.h.
const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// Prepares an end, which must be down, to receive packets through NAPI, as a NIC does: veth does so with
/// GRO, for packets from an end without TSO (drivers/net/veth.c).
///
/// # Errors
/// The kernel refused, or does not support threaded NAPI.
pub(super) fn prepare(namespace: &Namespace, end: End) -> Result<()> {
    namespace.run(|| {
        let device = end.device;
        let threaded = format!("/sys/class/net/{device}/threaded");
        Root::live().text(&threaded).context("this kernel has no threaded NAPI")?;
        switch(device, ETHTOOL_STSO, false).context("cannot turn TSO off")?;
        switch(device, ETHTOOL_SGRO, true).context("cannot turn GRO on")?;
        Ok(())
    })
}

/// Undoes [`prepare`].
pub(super) fn abandon(namespace: &Namespace, end: End) {
    let _ = namespace.run(|| Ok(switch(end.device, ETHTOOL_SGRO, false)?));
}

/// Enables threaded NAPI on an end that is up. Returns the threads in queue order, which is the order of
/// their NAPI ids.
///
/// # Errors
/// The kernel refused, or the threads cannot be identified.
pub(super) fn start(namespace: &Namespace, end: End, queues: usize) -> Result<Vec<u32>> {
    let device = end.device;
    let root = Root::live();
    let before: BTreeSet<(u64, u32)> = threads(&root, device).into_iter().collect();
    namespace.run(|| {
        let path = format!("class/net/{device}/threaded");
        Sysfs::own()?.set(&path, "1", |now| now == "1" || now == "enabled")
    })?;
    let mut after = threads(&root, device);
    after.retain(|thread| !before.contains(thread));
    after.sort_unstable();
    if after.len() != queues {
        bail!("found {} NAPI threads for {queues} queues of {device}", after.len());
    }
    Ok(after.into_iter().map(|(_, pid)| pid).collect())
}

/// The threads of all devices with this name, in any namespace: NAPI id and process id.
fn threads(root: &Root, device: &str) -> Vec<(u64, u32)> {
    let prefix = format!("napi/{device}-");
    let entries = root.list("/proc").unwrap_or_default();
    let pids = entries.into_iter().filter_map(|entry| entry.name.parse::<u32>().ok());
    let thread = |pid| {
        let name = root.text(&format!("/proc/{pid}/comm")).ok()?;
        Some((name.strip_prefix(&prefix)?.parse().ok()?, pid))
    };
    pids.filter_map(thread).collect()
}

/// `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    cmd: u32,
    data: u32,
}

/// Turns an offload of a device on or off, in the calling thread's namespace.
fn switch(device: &str, command: u32, on: bool) -> io::Result<()> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let mut value = EthtoolValue { cmd: command, data: on.into() };
    // SAFETY: all-zero bytes are a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays 0.
    let last = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name.iter_mut().take(last).zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the kernel reads the name and the struct behind the pointer, which outlive the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
