//! A host as a picture: packages hold nodes, nodes hold last-level caches, these hold cores, and
//! cores their SMT CPUs; NICs stand in their node, and each of their queues' interrupts is a
//! mark on the CPU that takes it.
//!
//! Input: a [`Host`]. Output: an SVG document. It is laid out in three steps: which CPU takes
//! which queue's interrupt ([`marks`]), boxes within boxes ([`blocks`], placed by [`layout`]),
//! elements ([`draw`]).
//!
//! Besides: the matrix of packet locality as a heat map ([`heat`]), and latencies along the path as a chart ([`spans`]).

mod arrows;
mod blocks;
mod draw;
mod heat;
mod layout;
mod marks;
mod spans;

pub use heat::locality;
use nearpath_model::Host;
pub use spans::spans;

/// Draws the host.
pub fn host(host: &Host) -> String {
    let marks = marks::Marks::of(host);
    let scale = layout::Scale::for_cpus(host.topology.cpus.len());
    let picture = blocks::picture(host, &marks, &scale);
    draw::document(host, &marks, &scale, &picture)
}
