//! For fuzz targets.

use crate::configuration;
use nearpath_model::{ClassCpus, QdiscTree, Target, Value};

/// Parses the first line as the target of a plan, the rest as a value and as a file. A valid target must
/// round-trip through its text, and a variable's line that was set must be found again.
pub fn fuzzing_targets(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    if let Some(target) = Target::parse(first, None) {
        assert_eq!(Target::parse(&target.to_plan(), None).as_ref(), Some(&target));
        if let Some(value) = Value::parse(&target, rest) {
            let _ = target.set_of(&value);
        }
    }
    if let Ok(classes) = rest.parse::<ClassCpus>() {
        assert_eq!(classes.to_string().parse(), Ok(classes));
    }
    if let Ok(tree) = rest.parse::<QdiscTree>() {
        assert_eq!(tree.to_string().parse(), Ok(tree));
    }
    configuration::fuzzing(rest);
}
