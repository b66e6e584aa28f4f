//! What every instrument needs of the running kernel: which of its programs can be attached and where,
//! loading and attaching them, their maps as memory, and what they cost.

mod cost;
mod dispatch;
mod maps;
mod percpu;
mod probe;
mod programs;
mod reach;
mod refusal;
mod symbols;

pub use cost::Meter;
pub use maps::{Mapped, pack, words_of};
pub(crate) use maps::{pair_at, word_of};
#[cfg(test)]
pub use probe::At;
pub use probe::{
    Point, Probe, at, better_at, entry, entry_by, exit, keeper, of, or_at, pointed_to, probe,
    result, returns,
};
pub use programs::{Attached, Chosen, attach, choose, load_only, may_load, open, within_reach};
pub use reach::{Functions, Kernel, Reach, Way, has_btf};
pub use refusal::{listening, refused};
pub use symbols::Symbols;
