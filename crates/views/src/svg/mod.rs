//! A host as a picture: packages hold nodes, nodes hold last-level caches, these hold cores, and
//! cores their SMT CPUs; NICs stand in their node, and each of their queues' interrupts is a
//! mark on the CPU that takes it.
//!
//! Input: a [`Host`]. Output: an SVG document. It is laid out in three steps: which CPU takes
//! which queue's interrupt ([`marks`]), boxes within boxes ([`blocks`], placed by [`layout`]),
//! elements ([`draw`]).
//!
//! Besides: the matrix of packet locality as a heat map ([`heat`]), latencies along the path as a chart ([`spans`]) and over
//! time ([`history`]), what packets waited for ([`shares`]), and slow packets ([`timeline`]).

mod arrows;
mod blocks;
mod draw;
mod heat;
mod history;
mod layout;
mod marks;
mod shares;
mod spans;
mod timeline;

pub use heat::locality;
pub use history::{Interval, history};
use nearpath_model::Host;
pub use shares::causes;
pub use spans::spans;
pub use timeline::timeline;

/// Draws the host.
pub fn host(host: &Host) -> String {
    let marks = marks::Marks::of(host);
    let scale = layout::Scale::for_cpus(host.topology.cpus.len());
    let picture = blocks::picture(host, &marks, &scale);
    draw::document(host, &marks, &scale, &picture)
}
