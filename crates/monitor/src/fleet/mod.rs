//! Many hosts, from what a Prometheus has scraped of them.
//!
//! Input: the JSON of Prometheus' HTTP API, from a file; nearpath opens no connection. Output: hosts, the worst first, and how
//! they changed.

mod answer;
mod difference;
mod rank;

pub use answer::{AnswerError, BYTES_MAX, SELECTOR};
pub use difference::difference;
pub use rank::rank;
