//! The binary `nearpath`: hands the command line to the library and its outcome to the shell.

use std::process::ExitCode;

fn main() -> ExitCode {
    nearpath::run(std::env::args_os())
}
