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

/// Runs a trial of nearpath with short blocks (`100ms`), and doubles their length each time the trial
/// reports too few packets in one; the packet rate depends on the machine.
///
/// `run` returns the result, or the error message of the trial.
///
/// # Panics
/// On any other error, or if the longest blocks are too short.
pub fn with_blocks_long_enough<T>(run: impl Fn(&str) -> Result<T, String>) -> T {
    for doubled in 0..8 {
        match run(&format!("{}ms", 100 << doubled)) {
            Ok(came) => return came,
            // On a busy machine a block may have no packets.
            Err(said) => assert!(
                said.contains("try a longer --block") || said.contains("no packet was seen"),
                "{said}"
            ),
        }
    }
    panic!("too few packets in blocks of 12.8 s");
}
