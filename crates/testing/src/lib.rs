//! Shared test support; never part of the program.
//!
//! A test first checks what it requires of the machine, and returns if that is not
//! available. Nothing is skipped silently: each unmet requirement is recorded with
//! its reason, and `make test` ends with the number of skipped tests by reason. A test
//! runs once: one that counts events of the kernel's is [`counted`].
//!
//! ```no_run
//! #[test]
//! fn a_namespace_has_its_own_loopback() {
//!     if !nearpath_testing::require_netns() || !nearpath_testing::require_program("ethtool") {
//!         return;
//!     }
//!     // … the test itself, which now must succeed
//! }
//! ```
//!
//! Use it as a dev-dependency: `nearpath-testing.workspace = true`.

mod begin;
mod bpf;
pub mod calls;
mod canary;
mod log;
mod require;
mod running;
pub mod tmux;
pub mod trees;
pub mod veth;
mod wait;

pub use begin::begin;
pub use canary::counted;
pub use log::skip;
pub use require::{
    hosts_dir, lengthy, require_bpf, require_kernel, require_lengthy, require_netns,
    require_program, require_root,
};
pub use running::{Running, other_build};
pub use wait::{PATIENCE, wait_for};
