//! The daemon: a thread for each instrument, one for facts and findings, and those of the server.
//!
//! Input: what to observe and how much it may cost. Output: pages for scrapers, renewed on a clock: all that scrape
//! between two ticks get the same. An instrument that the kernel refuses does not stop the others; it is tried again.

mod clock;
mod config;
mod daemon;
mod evidence;
mod explaining;
mod facts;
mod instruments;
mod observe;
mod pace;
mod pages;
mod records;
mod stop;
mod systemd;
mod threads;

pub use clock::Clock;
pub use config::{Config, Render, Source};
pub use daemon::{MonitorError, Outside, Ticks, once, record, run, watch};
pub(crate) use evidence::Since;
pub use instruments::Context;
pub use pace::Pace;
pub use pages::Monitored;
pub use stop::Stop;
