//! Kernel support shared by all instruments: which programs can be attached and where, loading and attaching,
//! maps as memory, and overhead.

mod attach_mode;
mod clocks;
mod cost;
mod dispatch;
mod maps;
mod percpu;
mod probe;
mod programs;
mod refusal;
mod symbols;

pub use attach_mode::{AttachMode, Kernel, has_btf};
pub use clocks::{clocks_now, clocks_since, monotonic_ns};
pub use cost::{Drain, Meter};
pub use maps::{Mapped, pack, words_of};
pub(crate) use maps::{pair_at, word_of};
pub use probe::{
    Point, Probe, at, better_at, by_kprobe, entry, entry_by, exit, helper_probe, of, or_at,
    pointed_to, probe, result, returns,
};
#[cfg(test)]
pub use programs::assert_has_programs;
pub use programs::{Attached, Chosen, attach, choose, in_best_mode, load_only, may_load, open};
pub use refusal::{listening, reason, refused};
pub use symbols::Symbols;
