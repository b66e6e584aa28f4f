//! The list of tables in docs/recordings.md, generated.

use super::table::{COMMON, Kind, TABLES};
use std::fmt::Write;

/// The part of the page below this line is generated.
pub const MARK: &str = "<!-- generated from crates/monitor/src/recording/table.rs -->\n";

/// The list.
pub fn markdown() -> String {
    let mut text = MARK.to_owned();
    text.push_str("\nEach table begins with:\n\n| column | type | |\n|---|---|---|\n");
    for (name, kind, help) in COMMON {
        // Writing to a string does not fail.
        let _ = writeln!(text, "| `{name}` | {kind} | {help} |");
    }
    for spec in TABLES {
        let _ = writeln!(text, "\n### {}\n\n{}\n", spec.name, spec.help);
        text.push_str("| column | type | |\n|---|---|---|\n");
        for column in spec.columns {
            let kind = match column.kind {
                Kind::Count => "count",
                Kind::Real => "real",
                Kind::Text => "text",
            };
            let _ = writeln!(text, "| `{}` | {kind} | {} |", column.name, column.help);
        }
    }
    text
}
