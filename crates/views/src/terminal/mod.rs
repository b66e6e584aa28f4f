//! The terminal view: a host at a moment, drawn to a screen of any size.
//!
//! Input: a [`Host at a moment`](nearpath_model::frame::Frame), what is chosen ([`View`]) and how it is observed
//! ([`Status`]). Output: a screen. Keys change the view ([`View::press`]); nothing here reads the terminal or the host.
//!
//! ```text
//!   Frame ─ overview, lists, heat, detail ─> lines ─> draw
//!   key ─> View ────────┘
//! ```

mod bars;
mod detail;
mod draw;
mod grid;
mod heat;
mod lists;
mod overview;
mod style;
mod view;

pub use draw::draw;
pub use style::Palette;
pub use view::{Action, Key, Mode, Status, Tab, View};
