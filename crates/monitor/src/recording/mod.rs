//! Measurements over time on disk: tall tables in Parquet files, and a log of what is not in them yet.
//!
//! ```text
//!   instruments ─ rows ─> Batch ─> Recorder ─┬─> SEGMENT.log             each batch, durable at once
//!                                            └─> TABLE/SEGMENT.parquet   when the segment's time is over
//!                                  Recording ─> replay, frame, facts  <─ both
//!                         Batch ─> History ────────> frame
//! ```

mod batch;
mod cached;
mod doc;
mod facts;
pub mod file;
mod folder;
mod frame;
mod history;
pub mod log;
mod reader;
mod recorder;
mod replay;
pub mod rows;
mod rows_of;
mod table;

pub use batch::{Batch, Cell, Row};
pub use cached::Cached;
pub use doc::markdown;
pub use facts::{ReadFacts, facts};
pub use file::Recorded;
pub use frame::frame;
pub use history::History;
pub use reader::{Recording, Rows};
pub use recorder::{RecordError, Recorder, Sealer, Settings};
pub use replay::{Replay, replay};
pub use rows_of::Source;
pub use table::{COMMON, Column, Kind, SCHEMA, TABLES, Table, TableSpec};
