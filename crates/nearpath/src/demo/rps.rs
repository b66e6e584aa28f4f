//! The misplacement itself: `rps_cpus` of the demo's own device. It is written through a sysfs
//! that is mounted nowhere and shows only the demo's namespace, so that no device of the machine
//! can be meant by mistake.

use super::namespace::Namespace;
use anyhow::{Context, Result, bail};
use nearpath_host::{CpuId, CpuSet};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::{read, write};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::os::fd::OwnedFd;

/// Sends the packets of all receive queues of a device to one CPU.
///
/// # Errors
/// No RPS in this kernel, or a write that the kernel refused or changed.
pub(super) fn steer(namespace: &Namespace, device: &str, queues: u32, cpu: CpuId) -> Result<()> {
    let wanted: CpuSet = [cpu].into_iter().collect();
    namespace.run(|| {
        let sysfs = sysfs().context("a sysfs for the demo's namespace")?;
        for queue in 0..queues {
            let path = format!("class/net/{device}/queues/rx-{queue}/rps_cpus");
            set(&sysfs, &path, &wanted).with_context(|| path)?;
        }
        Ok(())
    })
}

/// The sysfs of this thread's network namespace, attached nowhere.
fn sysfs() -> rustix::io::Result<OwnedFd> {
    let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

fn set(sysfs: &OwnedFd, path: &str, wanted: &CpuSet) -> Result<()> {
    let open = |flags| openat(sysfs, path, flags | OFlags::CLOEXEC, Mode::empty());
    write(open(OFlags::WRONLY)?, wanted.to_mask().as_bytes())?;
    let mut text = [0; 16 << 10];
    let length = read(open(OFlags::RDONLY)?, &mut text)?;
    let now = CpuSet::from_mask(&String::from_utf8_lossy(text.get(..length).unwrap_or_default()))?;
    if now != *wanted {
        bail!("set to {wanted}, but the kernel has {now}");
    }
    Ok(())
}
