//! The program under test, and a child process that ends with its test.

use std::path::PathBuf;
use std::process::Child;

/// Another build of nearpath than that of the tests, if `NEARPATH_BINARY` names one: an optimised one, for figures.
#[must_use]
pub fn other_build() -> Option<PathBuf> {
    std::env::var_os("NEARPATH_BINARY").map(Into::into)
}

/// A running program; killed on drop, also if the test fails.
#[derive(Debug)]
pub struct Running(pub Child);

impl Running {
    /// Ends it with SIGTERM.
    ///
    /// # Panics
    /// It has ended before, or its status is not 0.
    pub fn end(mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
