//! The command line: parse, call, render.
fn main() {}
