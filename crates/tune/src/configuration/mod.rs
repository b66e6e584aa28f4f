//! Configuration files below `/etc` that make a placement survive a restart or a reboot: nearpath's own systemd
//! drop-ins, its fragment of the kernel command line, and one variable in irqbalance's file.
//!
//! [`PLACES`] is the whole list. Plans and journals are untrusted input: a path that is not in the list is not
//! opened, and a text that the place does not accept ([`grammar`]) is never written.

mod disk;
mod grammar;
mod lines;

pub(crate) use disk::Etc;
pub(crate) use grammar::{check, command_line_parameters, irqbalance_line};

use nearpath_model::{ConfigPlace, IRQBALANCE_ARGS};

/// See [`crate::fuzzing_targets`].
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
