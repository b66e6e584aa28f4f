//! Fuzzes exports: exporting a plan in each form neither panics nor puts a control character into a
//! file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_model::Plan;
use nearpath_tune::exporters::{EXPORTERS, export};
use std::collections::BTreeMap;

fuzz_target!(|bytes: &[u8]| {
    let Ok(plan) = serde_json::from_slice::<Plan>(bytes) else { return };
    for form in EXPORTERS {
        let Ok(made) = export(form, &plan.changes, &BTreeMap::new(), vec![]) else { continue };
        for document in made.documents {
            assert!(!document.text.contains(|c: char| c.is_control() && c != '\n'));
        }
    }
});
