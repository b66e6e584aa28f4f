//! A small HTTP server for scrapers: threads and `httparse`. Input: connections. Output: pages of a [`Pages`].
//!
//! One request a connection, GET and HEAD alone, at most [`CONNECTIONS_MAX`] connections at once; head, time and
//! answer are limited. If there are more, one that may see nothing yet ends.

mod access;
mod connections;
mod current;
mod request;
mod server;

pub use access::{Access, AccessError};
pub use connections::CONNECTIONS_MAX;
pub use current::{Change, CurrentAccess};
pub use request::{HEAD_MAX, Method, Refusal, Request, parse};
pub use server::{Server, serve};

use std::sync::Arc;

/// A page.
#[derive(Debug, Clone)]
pub struct Page {
    /// The status, such as 200.
    pub status: u16,
    /// `Content-Type`.
    pub content_type: &'static str,
    /// The content.
    pub body: Arc<[u8]>,
}

impl Page {
    /// Plain text; a line break is added.
    pub fn text(status: u16, text: &str) -> Self {
        let body = format!("{text}\n").into_bytes().into();
        Self { status, content_type: "text/plain; charset=utf-8", body }
    }
}

/// What is served.
pub trait Pages: Send + Sync {
    /// The page of a path without its query, in the format that `accept` prefers; `None` if there is none.
    fn page(&self, path: &str, accept: &str) -> Option<Page>;
}

/// The words of a status.
fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "Error",
    }
}
