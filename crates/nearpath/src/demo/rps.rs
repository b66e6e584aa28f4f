//! The misplacement itself: `rps_cpus` of the demo's own device.

use super::namespace::Namespace;
use anyhow::Result;
use nearpath_host::Root;
use nearpath_model::{Change, CpuSet, Persistence, SettingFile, Step, Target, Value};
use nearpath_tune::{Executor, Live};

/// Sends the packets of all receive queues of a device to these CPUs. Nothing remembers it: it does not
/// outlive the device.
///
/// # Errors
/// No RPS in this kernel, or a write that the kernel refused or changed.
pub(super) fn steer(namespace: &Namespace, device: &str, queues: u32, cpus: &CpuSet) -> Result<()> {
    namespace.run(|| {
        let root = Root::live();
        let step = |queue| {
            let path = format!("/sys/class/net/{device}/queues/rx-{queue}/rps_cpus");
            let before = Value::Text(root.text(&path)?);
            let change = Change {
                target: Target::File(SettingFile::new(path, Some(namespace.inode()))),
                before,
                after: Value::Text(cpus.to_mask()),
                why: "misplaced on purpose".to_owned(),
                persistence: Persistence::UntilReboot,
                snapshot: Vec::new(),
            };
            Ok(Step { change, optional: false })
        };
        let steps: Result<Vec<Step>> = (0..queues).map(step).collect();
        Executor::forgetful(Live::new()).apply_steps(steps?)?;
        Ok(())
    })
}
