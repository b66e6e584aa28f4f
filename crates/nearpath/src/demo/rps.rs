//! Sets `rps_cpus` of the demo's own device, which is what misplaces the path.

use super::namespace::Namespace;
use anyhow::Result;
use nearpath_host::Root;
use nearpath_model::{Change, CpuSet, Persistence, QueueFile, QueueId, SettingFile, Step, Value};
use nearpath_tune::{Executor, Live};

/// Sends the packets of all receive queues of a device to these CPUs. There is no journal: the setting does
/// not outlive the device.
///
/// # Errors
/// This kernel has no RPS, or refused or altered the value.
pub(super) fn steer(namespace: &Namespace, device: &str, queues: u32, cpus: &CpuSet) -> Result<()> {
    namespace.run(|| {
        let root = Root::live();
        let step = |queue| {
            let file = SettingFile::queue(device, QueueId(queue), QueueFile::RpsCpus);
            let before = Value::Text(root.text(&file.path())?);
            let change = Change {
                target: file.in_netns(Some(namespace.inode())).into(),
                before,
                after: Value::Text(cpus.to_mask()),
                why: "deliberately misplaced".to_owned(),
                persistence: Persistence::UntilReboot,
                snapshot: Vec::new(),
            };
            Ok(Step { change, optional: false })
        };
        let steps: Result<Vec<Step>> = (0..queues).map(step).collect();
        Executor::without_journal(Live::new()).apply_steps(steps?)?;
        Ok(())
    })
}
