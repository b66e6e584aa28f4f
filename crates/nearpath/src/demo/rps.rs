//! The misplacement itself: `rps_cpus` of the demo's own device.

use super::namespace::Namespace;
use super::sysfs::Sysfs;
use anyhow::Result;
use nearpath_host::CpuSet;

/// Sends the packets of all receive queues of a device to these CPUs.
///
/// # Errors
/// No RPS in this kernel, or a write that the kernel refused or changed.
pub(super) fn steer(namespace: &Namespace, device: &str, queues: u32, cpus: &CpuSet) -> Result<()> {
    namespace.run(|| {
        let sysfs = Sysfs::own()?;
        for queue in 0..queues {
            let path = format!("class/net/{device}/queues/rx-{queue}/rps_cpus");
            sysfs.set(&path, &cpus.to_mask(), |now| {
                CpuSet::from_mask(now).is_ok_and(|now| now == *cpus)
            })?;
        }
        Ok(())
    })
}
