//! Steering: a connection or datagram goes to the worker nearest to the receiving CPU. The REUSEPORT group of a
//! running server gets a program that selects the socket; the server is neither changed nor restarted.
//!
//! ```text
//! groups ──> plan ──> executor ──> Groups (pidfd_getfd, setsockopt)
//!   │                    │
//!   └──────> status <── journal
//! ```

mod ebpf;
mod group;
mod live;
mod nearest;
mod pins;
mod plan;
mod sockets;
mod status;

pub use group::{Found, Request, groups, select};
pub(crate) use live::Groups;
pub use nearest::nearest;
pub use pins::{pins, pins_of};
pub use plan::{Method, plan};
pub use status::{boot, entry_of, status};
