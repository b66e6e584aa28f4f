//! What `steer --json` prints; the JSON of `steer status` is that of its own type.

use nearpath_model::Change;
use serde::Serialize;

/// `steer --json`.
#[derive(Debug, Serialize)]
pub struct Steered<'a> {
    /// Version of this form.
    pub schema: u32,
    /// Whether the changes were made; not in a dry run.
    pub applied: bool,
    /// The changes.
    pub changes: &'a [Change],
}

/// The document of changes that were made, or would be.
pub fn steered(applied: bool, changes: &[Change]) -> Steered<'_> {
    Steered { schema: 1, applied, changes }
}
