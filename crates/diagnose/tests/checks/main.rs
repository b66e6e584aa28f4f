//! Tests of all checks through the registry: on their fixtures, and on anything.

mod fixtures;
mod properties;
mod support;
