//! What the tests of every crate share; never part of the program.
//!
//! A test that needs something of the machine asks for it first and returns if it is not
//! there. Nothing is skipped in silence: each requirement that is not met is recorded with
//! its reason, and `make test` ends with the count of the skipped tests by reason.
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

mod require;
mod skip;
pub mod trees;
pub mod veth;
mod wait;

pub use require::{
    hosts_dir, require_bpf, require_kernel, require_netns, require_program, require_root,
};
pub use skip::skip;
pub use wait::{PATIENCE, wait_for, with_blocks_long_enough};
