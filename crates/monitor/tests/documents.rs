//! Files of the repository that are generated from the registry. `NEARPATH_BLESS=1` writes them.

use std::path::Path;

/// Compares a file of the repository with what it should be, or writes it.
fn compare(file: &str, wanted: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    if std::env::var_os("NEARPATH_BLESS").is_some() {
        std::fs::write(&path, wanted).unwrap();
    }
    let have = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(have, wanted, "{file} is outdated: NEARPATH_BLESS=1 cargo test -p nearpath-monitor");
}

#[test]
fn the_page_of_metrics_is_generated() {
    compare("docs/metrics.md", &nearpath_monitor::metrics::markdown());
}

#[test]
fn the_tables_of_recordings_are_generated() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/recordings.md");
    let have = std::fs::read_to_string(&path).unwrap();
    let generated = nearpath_monitor::recording::markdown();
    let mark = generated.lines().next().unwrap();
    let by_hand = have.split(mark).next().unwrap();
    compare("docs/recordings.md", &format!("{by_hand}{generated}"));
}
