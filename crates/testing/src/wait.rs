//! Waiting for asynchronous work of another process or the kernel.

use std::time::{Duration, Instant};

/// How long a test waits before it fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Polls until `look` returns something.
///
/// # Panics
/// After [`PATIENCE`] without a result.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
