//! `nearpath completions`: prints a shell completion script.

use crate::failure::Failure;
use crate::output;
use clap::Args;
use clap_complete::Shell;

const AFTER_HELP: &str = "\
The distribution packages install these scripts for bash, zsh and fish.

EXAMPLES
  nearpath completions bash > ~/.local/share/bash-completion/completions/nearpath
  nearpath completions zsh > ~/.zfunc/_nearpath          with ~/.zfunc in fpath
  nearpath completions fish > ~/.config/fish/completions/nearpath.fish";

/// Arguments of `completions`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct Completions {
    /// Shell to print the script for
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut crate::command(), "nearpath", &mut script);
        output::text(&String::from_utf8_lossy(&script))
    }
}
