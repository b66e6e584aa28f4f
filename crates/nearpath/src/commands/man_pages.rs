//! `nearpath man-pages`: writes the manual page of each command, for packaging.

use crate::failure::Failure;
use crate::{manual, output};
use clap::Args;
use std::path::PathBuf;

/// Arguments of `man-pages`.
#[derive(Debug, Args)]
pub struct ManPages {
    /// Directory for nearpath.1 and the other pages
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

impl ManPages {
    pub(super) fn run(&self) -> Result<(), Failure> {
        for page in manual::pages(crate::command())? {
            output::file(&self.folder.join(page.name), &page.text)?;
        }
        Ok(())
    }
}
