//! docs/tune.md says of each setting of tuned's profiles whether nearpath makes it. Read from the profiles of the tuned that
//! is installed, or from `NEARPATH_TUNED_PROFILES`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The profiles, with those that they include.
const PROFILES: [&str; 5] = [
    "latency-performance",
    "network-latency",
    "throughput-performance",
    "network-throughput",
    "cpu-partitioning",
];

fn profiles() -> Option<PathBuf> {
    let folder = std::env::var_os("NEARPATH_TUNED_PROFILES").map(PathBuf::from);
    // Debian's, and that of tuned 2.23 and newer.
    let known = ["/usr/lib/tuned", "/usr/lib/tuned/profiles"].map(PathBuf::from);
    let found = folder.into_iter().chain(known);
    found.into_iter().find(|folder| folder.join("network-latency/tuned.conf").exists())
}

/// The settings that a profile makes: `[section] name`; boot parameters each by its own name.
fn settings(text: &str) -> BTreeSet<String> {
    let (mut section, mut all) = (String::new(), BTreeSet::new());
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            // `[vm.thunderx]` is `[vm]` for some processors.
            section = name.split('.').next().unwrap_or_default().to_owned();
            continue;
        }
        let Some((name, value)) = line.split_once('=').filter(|_| !line.starts_with('#')) else {
            continue;
        };
        let (name, value) = (name.trim(), value.trim().trim_start_matches('+'));
        // Not settings: descriptions, variables, and conditions.
        let is_meta = ["main", "variables"].contains(&section.as_str())
            || ["type", "uname_regex", "cpuinfo_regex", "priority"].contains(&name);
        if is_meta {
            continue;
        }
        if section == "bootloader" && name.starts_with("cmdline") {
            let words = value.replace("${cmd_isolcpus}", " isolcpus=");
            let names = words.split_whitespace().map(|word| word.split('=').next().unwrap_or(word));
            all.extend(names.map(|name| format!("[bootloader] {name}")));
        } else {
            all.insert(format!("[{section}] {name}"));
        }
    }
    all
}

/// The first column of the table of settings in docs/tune.md.
fn rows() -> BTreeSet<String> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tune.md");
    let text = fs::read_to_string(docs).unwrap();
    let (_, table) = text.split_once("\n### Beside tuned and perftune.py\n").unwrap();
    let cells = table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    cells.map(|(cell, _)| cell.to_owned()).collect()
}

#[test]
fn each_setting_of_tuneds_profiles_has_a_row() {
    let Some(folder) = profiles() else {
        return nearpath_testing::skip("tuned is not installed");
    };
    let rows = rows();
    let mut count = 0;
    for profile in PROFILES {
        let text = fs::read_to_string(folder.join(profile).join("tuned.conf")).unwrap();
        for setting in settings(&text) {
            assert!(rows.contains(&setting), "{profile}: {setting} has no row in docs/tune.md");
            count += 1;
        }
    }
    assert!(count > 30, "only {count} settings were found");
}

#[test]
fn settings_are_read_by_section() {
    let found = settings(
        "[main]\nsummary=x\n# a=b\n[sysctl.thunderx]\nuname_regex=a\nkernel.numa_balancing=0\n[bootloader]\n\
         cmdline_cpu_part=+nohz=on${cmd_isolcpus} nosoftlockup\n[vm]\ntransparent_hugepages => never\n",
    );
    let expected = [
        "[bootloader] isolcpus",
        "[bootloader] nohz",
        "[bootloader] nosoftlockup",
        "[sysctl] kernel.numa_balancing",
        "[vm] transparent_hugepages",
    ];
    assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    let rows = rows();
    assert!(
        rows.contains("[bootloader] nohz_full") && rows.contains("--mode sq_split"),
        "{rows:?}"
    );
}
