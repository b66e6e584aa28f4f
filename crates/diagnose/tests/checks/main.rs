//! Tests of all checks through the registry: on their fixtures, on this machine, and on anything.

mod connections;
mod fixtures;
mod healthy;
mod hosts;
mod live;
mod lived_in;
mod properties;
mod screen;
mod support;
