//! The CPUs that the kubelet has given to containers alone, from the state file of its CPU manager.
//!
//! Input: a root. Output: [`CpuManager`], if the file is there and assigns CPUs. The file outlives restarts of the kubelet,
//! as containers do.
//!
//! Format: pkg/kubelet/cm/cpumanager/state/checkpoint.go of kubernetes; `{"policyName":"static","defaultCpuSet":"0-1,4",
//! "entries":{"UID":{"container":"2-3"}},"checksum":1}`. Version 1 of it has `"entries":{"ID":"2-3"}`; versions 3 and 4 (since
//! 1.36) also have `"podEntries":{"UID":{"cpuSet":"2-5"}}`, the CPUs of a whole pod, of which containers may have some alone.

use crate::cpu_table::printable;
use crate::{Notes, Root};
use nearpath_model::{CpuManager, CpuSet, ExclusiveCpus};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Of the kubelet's default `--root-dir`, of k0s, and of MicroK8s.
const FILES: [&str; 3] = [
    "/var/lib/kubelet/cpu_manager_state",
    "/var/lib/k0s/kubelet/cpu_manager_state",
    "/var/snap/microk8s/common/var/lib/kubelet/cpu_manager_state",
];
/// Containers that are read: a kubelet has some hundreds.
const CONTAINERS_MAX: usize = 16_384;
/// Longest name that is kept.
const NAME_MAX: usize = 128;

/// Reads the first state file that exists.
pub(crate) fn read(root: &Root, notes: &mut Notes) -> Option<CpuManager> {
    for file in FILES {
        match root.read(file) {
            Err(error) if error.absent => {}
            Err(error) => {
                notes.add("host", "kubelet", &error.to_string());
                return None;
            }
            Ok(bytes) => {
                return parse(file, &bytes).unwrap_or_else(|reason| {
                    notes.add("host", "kubelet", &format!("{file}: {reason}"));
                    None
                });
            }
        }
    }
    None
}

fn text(value: Option<&Value>) -> Result<&str, String> {
    let other = || "it has another form".to_owned();
    value.map_or(Ok(""), |value| value.as_str().ok_or_else(other))
}

fn cpus(list: Option<&Value>) -> Result<CpuSet, String> {
    CpuSet::from_list(text(list)?.trim()).map_err(|error| error.to_string())
}

/// `None` if no CPU is assigned, as with the policy `none`.
fn parse(file: &str, bytes: &[u8]) -> Result<Option<CpuManager>, String> {
    let state: Map<String, Value> =
        serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let name =
        |name: &str| -> String { printable(name.as_bytes()).chars().take(NAME_MAX).collect() };
    let policy = name(text(state.get("policyName"))?);
    let mut exclusive = Vec::new();
    let object = |name: &str| match state.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(entries) => entries.as_object().ok_or("it has another form").map(Some),
    };
    for (pod, containers) in object("entries")?.into_iter().flatten() {
        // Version 1 has the container's id, and no pods.
        let single: Map<String, Value>;
        let containers = match containers {
            Value::Object(containers) => containers,
            list => {
                single = [(pod.clone(), list.clone())].into_iter().collect();
                &single
            }
        };
        for (container, list) in containers {
            if exclusive.len() >= CONTAINERS_MAX {
                return Err(format!("it has more than {CONTAINERS_MAX} containers"));
            }
            let cpus = cpus(Some(list))?;
            exclusive.push(ExclusiveCpus { pod: name(pod), container: name(container), cpus });
        }
    }
    let mut of_containers: BTreeMap<String, CpuSet> = BTreeMap::new();
    for ExclusiveCpus { pod, cpus, .. } in &exclusive {
        let all = of_containers.entry(pod.clone()).or_default();
        *all = all.union(cpus);
    }
    for (pod, entry) in object("podEntries")?.into_iter().flatten().take(CONTAINERS_MAX) {
        let pod = name(pod);
        let of_containers = of_containers.remove(&pod).unwrap_or_default();
        let rest = cpus(entry.get("cpuSet"))?.difference(&of_containers);
        if !rest.is_empty() {
            exclusive.push(ExclusiveCpus { pod, container: String::new(), cpus: rest });
        }
    }
    if policy == "none" && exclusive.is_empty() {
        return Ok(None);
    }
    let shared = cpus(state.get("defaultCpuSet"))?;
    Ok(Some(CpuManager { file: file.to_owned(), policy, shared, exclusive }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STATIC: &str = r#"{"policyName":"static","defaultCpuSet":"0-1,4-7","entries":{"2f1a":{"dpdk":"2-3","log":"8"}},"checksum":7}"#;

    #[test]
    fn containers_with_cpus_of_their_own() {
        let state = parse("f", STATIC.as_bytes()).unwrap().unwrap();
        assert_eq!((state.policy.as_str(), state.shared.to_string()), ("static", "0-1,4-7".into()));
        let of = |its: &ExclusiveCpus| format!("{}/{} {}", its.pod, its.container, its.cpus);
        let found: Vec<String> = state.exclusive.iter().map(of).collect();
        assert_eq!(found, ["2f1a/dpdk 2-3", "2f1a/log 8"]);
        assert_eq!(state.exclusive_cpus().to_string(), "2-3,8");
        // Of a whole pod, of which one container has some; and of one whose containers share all.
        let pods = r#"{"policyName":"static","defaultCpuSet":"0-3","podEntries":{"2f1a":{"cpuSet":"4-7"},"9c0d":{"cpuSet":"8-9"}},
            "entries":{"2f1a":{"main":"4-5"}},"checksum":1,"data":"{}","dataChecksum":1}"#;
        let state = parse("f", pods.as_bytes()).unwrap().unwrap();
        let found: Vec<String> = state.exclusive.iter().map(of).collect();
        assert_eq!(found, ["2f1a/main 4-5", "2f1a/ 6-7", "9c0d/ 8-9"]);
        assert_eq!(
            (state.exclusive_cpus().to_string(), state.shared.to_string()),
            ("4-9".into(), "0-3".into())
        );
        // The first version, and one without containers.
        let old =
            r#"{"policyName":"static","defaultCpuSet":"0","entries":{"4f2":"1-2"},"checksum":7}"#;
        assert_eq!(of(&parse("f", old.as_bytes()).unwrap().unwrap().exclusive[0]), "4f2/4f2 1-2");
        let idle = r#"{"policyName":"static","defaultCpuSet":"0-7","checksum":7}"#;
        assert!(parse("f", idle.as_bytes()).unwrap().unwrap().exclusive.is_empty());
        let none = r#"{"policyName":"none","defaultCpuSet":"","checksum":7}"#;
        assert_eq!(parse("f", none.as_bytes()), Ok(None));
    }

    #[test]
    fn what_is_damaged_is_reported_and_what_is_absent_is_not() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("proc")).unwrap();
        let root = Root::tree(dir.path()).unwrap();
        let mut notes = Notes::default();
        assert_eq!(read(&root, &mut notes), None);
        assert!(notes.unknown().is_empty());
        let folder = dir.path().join("var/lib/kubelet");
        std::fs::create_dir_all(&folder).unwrap();
        for damaged in [
            "",
            "{",
            "[]",
            &STATIC[..60],
            &STATIC.replace("2-3", "3-2"),
            &STATIC.replace("\"2-3\"", "2"),
        ] {
            std::fs::write(folder.join("cpu_manager_state"), damaged).unwrap();
            let mut notes = Notes::default();
            assert_eq!(read(&root, &mut notes), None, "{damaged}");
            assert!(notes.unknown()[0].reason.contains("cpu_manager_state: "), "{damaged}");
        }
        std::fs::write(folder.join("cpu_manager_state"), STATIC).unwrap();
        assert_eq!(read(&root, &mut notes).unwrap().file, FILES[0]);
        let hostile = STATIC.replace("dpdk", &format!("\\u001b[2J{}", "x".repeat(1000)));
        let state = parse("f", hostile.as_bytes()).unwrap().unwrap();
        let name = &state.exclusive[0].container;
        assert!(name.chars().count() <= NAME_MAX && !name.contains('\u{1b}'), "{name}");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(at in 0..STATIC.len(), byte: u8) {
            let mut bytes = STATIC.as_bytes().to_vec();
            bytes[at] = byte;
            let _ = parse("f", &bytes);
            let _ = parse("f", &bytes[..at]);
        }
    }
}
