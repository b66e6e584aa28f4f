//! Every setting of a host that may be written. Input: the table and the host. Output: the existing paths with
//! their bytes, to verify that an undone plan left nothing behind.

use nearpath_host::Root;
use nearpath_model::{SETTING_FILES, SettingRow, is_part_of};
use std::collections::BTreeMap;

/// All files that nearpath may write, as seen from the calling thread's network namespace, with their contents.
/// Unreadable files are skipped: the kernel refuses to show XPS of a device with one queue.
pub fn settings(root: &Root) -> BTreeMap<String, Vec<u8>> {
    settings_of(root, |_| true)
}

/// The same for some rows of the table.
pub(crate) fn settings_of(
    root: &Root,
    wanted: impl Fn(&SettingRow) -> bool,
) -> BTreeMap<String, Vec<u8>> {
    let rows = SETTING_FILES.iter().filter(|row| wanted(row));
    let paths = rows.flat_map(|row| paths(root, row.path));
    paths.filter_map(|path| Some((path.clone(), root.read(&path).ok()?))).collect()
}

/// The paths that match a pattern of the table.
fn paths(root: &Root, pattern: &str) -> Vec<String> {
    let mut paths = vec![String::new()];
    for part in pattern.split('/').skip(1) {
        let below = |path: &String| -> Vec<String> {
            if !part.contains('{') {
                return vec![format!("{path}/{part}")];
            }
            let names = root.list(path).unwrap_or_default().into_iter().map(|entry| entry.name);
            let fitting = names.filter(|name| is_part_of(part, name));
            fitting.map(|name| format!("{path}/{name}")).collect()
        };
        paths = paths.iter().flat_map(below).collect();
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_testing::trees::{Layout, Machine, Nic};

    #[test]
    fn all_files_of_the_table_are_found() {
        let layout = Layout { packages: 1, nodes: 1, llcs: 1, cores: 2, threads: 1 };
        let nic = Nic::pci("eth0", "mlx5_core", "0000:5e:00.0").on_node(0).queues(2, 100);
        let tree = Machine::regular(layout).nic(nic).write();
        let root = Root::tree(tree.path()).unwrap();
        let found = settings(&root);
        for path in [
            "/proc/irq/100/smp_affinity_list",
            "/proc/irq/101/smp_affinity_list",
            "/sys/class/net/eth0/queues/rx-0/rps_cpus",
            "/sys/class/net/eth0/queues/tx-1/xps_cpus",
        ] {
            assert_eq!(found.get(path), root.read(path).ok().as_ref(), "{path}");
            assert!(found.contains_key(path), "{path} of {:?}", found.keys());
        }
        assert!(found.keys().all(|path| nearpath_model::row_of(path).is_some()));
    }
}
