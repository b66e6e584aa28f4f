//! Views: what people and programs see of the facts, measurements and findings.
//!
//! Input: plain data ([`nearpath_model::Host`], [`nearpath_model::Measurement`],
//! [`nearpath_model::Diagnosis`]). Output: text, JSON or a picture. Nothing here reads the
//! machine or writes to it. Text may hold ANSI colours: a caller that does not print to a
//! terminal strips them. Names from the host (interfaces, interrupts, processes) are untrusted
//! and shown with control characters escaped.

pub mod html;
pub mod json;
mod matrix;
mod outlier;
mod queues;
pub mod svg;
pub mod terminal;
pub mod text;
