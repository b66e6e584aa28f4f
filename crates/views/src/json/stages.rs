//! `measure stages --list-stages --json`: how each stage is observed on a kernel.

use nearpath_model::StageListing;
use serde::Serialize;

/// Version of the JSON form of [`Stages`].
const SCHEMA: u32 = 1;

/// All stages in the order of the path, receive first.
#[derive(Debug, Serialize)]
pub struct Stages<'a> {
    schema: u32,
    stages: &'a [StageListing],
}

/// The document of a listing.
pub fn stages(listing: &[StageListing]) -> Stages<'_> {
    Stages { schema: SCHEMA, stages: listing }
}
