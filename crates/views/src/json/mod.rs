//! The JSON documents of `show`, described field by field in docs/json.md.
//!
//! Each borrows from the host and is printed as it stands; an unknown value is `null`. The JSON
//! of `measure stages` and of `diagnose` is that of their own types.

mod show;

pub use show::*;
