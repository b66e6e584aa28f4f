//! The binary `nearpath`: passes the command line to the library and returns its exit status.

use std::process::ExitCode;

fn main() -> ExitCode {
    nearpath::run(std::env::args_os())
}
