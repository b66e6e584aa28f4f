//! Compares output with readable files in `golden/`. After an intended change,
//! `NEARPATH_BLESS=1 cargo test -p nearpath-views` rewrites them; review the diff.

use serde::Serialize;
use std::path::PathBuf;

/// Fails unless the text, without its colours, is that of the file.
pub fn golden(name: &str, printed: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let printed = anstream::adapter::strip_str(printed).to_string();
    if std::env::var_os("NEARPATH_BLESS").is_some() {
        std::fs::write(&path, &printed).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(printed == expected, "{name} differs; now it is\n{printed}");
}

/// The same for a JSON document.
#[allow(dead_code, reason = "some tests that share this have none")]
pub fn golden_json(name: &str, document: &impl Serialize) {
    golden(name, &(serde_json::to_string_pretty(document).unwrap() + "\n"));
}
