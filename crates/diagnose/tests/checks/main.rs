//! Tests of all checks through the registry: on their fixtures, on this machine, and on anything.

mod fixtures;
mod healthy;
mod live;
mod properties;
mod screen;
mod support;
