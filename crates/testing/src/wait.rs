//! Waiting for what another process or the kernel does in its own time.

use std::time::{Duration, Instant};

/// The shortest block of a trial, and the longest that is tried, in ms.
const BLOCKS_MS: [u32; 2] = [100, 12_800];

/// How long a test waits before it fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Looks again and again until there is something.
///
/// # Panics
/// After [`PATIENCE`] without it.
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

/// Runs a trial of nearpath with short blocks (`100ms`), and with blocks twice as long each time that it
/// says that too few packets came in one: how many do is a matter of the machine.
///
/// `run` returns what came out, or what the trial said when it failed.
///
/// # Panics
/// When it says anything else, or the longest are too short.
pub fn with_blocks_long_enough<T>(run: impl Fn(&str) -> Result<T, String>) -> T {
    let [mut block_ms, longest_ms] = BLOCKS_MS;
    loop {
        match run(&format!("{block_ms}ms")) {
            Ok(came) => return came,
            Err(said) => {
                let is_short = said.contains("try a longer --block") && block_ms < longest_ms;
                assert!(is_short, "with blocks of {block_ms} ms: {said}");
            }
        }
        block_ms *= 2;
    }
}
