//! `measure stages --list-stages --json`: how each stage is observed on a kernel.

use nearpath_model::StageListing;
use serde::Serialize;

/// Version of the JSON form of [`Stages`].
const SCHEMA: u32 = 1;

/// All stages in the order of the path, receive first, and the steps from a tap into a guest.
#[derive(Debug, Serialize)]
pub struct Stages<'a> {
    schema: u32,
    stages: &'a [StageListing],
    into_guests: &'a [StageListing],
}

/// The document of a listing.
pub fn stages<'a>(stages: &'a [StageListing], into_guests: &'a [StageListing]) -> Stages<'a> {
    Stages { schema: SCHEMA, stages, into_guests }
}
