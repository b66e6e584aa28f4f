//! Files of configuration below `/etc`, by which a placement outlasts a restart or a reboot: systemd
//! drop-ins of nearpath's own, its fragment of the kernel command line, and one variable in
//! irqbalance's file.
//!
//! [`PLACES`] is the whole list. Plans and journals are files that somebody may have edited, so a path
//! that is no place of it is not opened, and a text that the place does not take ([`grammar`]) is not
//! written, whoever asks for it.

mod disk;
mod grammar;
mod lines;

pub(crate) use disk::Etc;
pub(crate) use grammar::{check, command_line_parameters, irqbalance_line};

use nearpath_model::{ConfigPlace, IRQBALANCE_ARGS};

/// As [`crate::fuzzing_targets`].
pub(crate) fn fuzzing(text: &str) {
    for place in [ConfigPlace::DropIn, ConfigPlace::CommandLine, ConfigPlace::Irqbalance] {
        let _ = grammar::check(place, text);
    }
    let line = irqbalance_line(&["--banirq=7".to_owned()]);
    if let Ok(new) = lines::with_line(text.as_bytes(), IRQBALANCE_ARGS, &line) {
        let found = lines::find(&new, IRQBALANCE_ARGS).ok().flatten();
        assert_eq!(found.and_then(|at| new.get(at)), Some(line.as_bytes()));
    }
}
