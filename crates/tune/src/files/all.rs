//! Every setting of a host that may be written. Input: the table and the host. Output: the existing paths with
//! their bytes, to verify that an undone plan left nothing behind.

use nearpath_host::Root;
use nearpath_model::{FileOf, is_interface_name};
use std::collections::BTreeMap;

/// All files that nearpath may write, as seen from the calling thread's network namespace, with their contents.
/// Unreadable files are skipped: the kernel refuses to show XPS of a device with one queue.
pub fn settings(root: &Root) -> BTreeMap<String, Vec<u8>> {
    settings_of(root, |_| true).into_iter().map(|(file, bytes)| (file.to_string(), bytes)).collect()
}

/// The same for some files.
pub(crate) fn settings_of(
    root: &Root,
    wanted: impl Fn(&FileOf) -> bool,
) -> BTreeMap<FileOf, Vec<u8>> {
    let patterns = FileOf::patterns();
    let files = patterns.iter().flat_map(|pattern| paths(root, pattern));
    let files = files.filter_map(|path| Some((FileOf::parse(&path)?, path)));
    files
        .filter(|(file, _)| wanted(file))
        .filter_map(|(file, path)| Some((file, root.read(&path).ok()?)))
        .collect()
}

/// The paths that match a pattern.
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

/// Whether a component of a path matches a component of a pattern.
fn is_part_of(pattern: &str, part: &str) -> bool {
    if pattern == "{nic}" {
        return is_interface_name(part);
    }
    match pattern.strip_suffix("{n}") {
        Some(prefix) => part.strip_prefix(prefix).is_some_and(|n| n.parse::<u32>().is_ok()),
        None => pattern == part,
    }
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
        assert!(found.keys().all(|path| FileOf::parse(path).is_some()));
    }
}
