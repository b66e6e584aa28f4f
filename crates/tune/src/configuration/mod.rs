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

use serde::{Deserialize, Serialize};
use std::fmt;

/// A file of nearpath's own below `/etc`, or a variable in somebody else's.
///
/// As text: the path, for a variable followed by a space and its name. Its value is the whole text of
/// the file, or the variable's whole line; empty where there is none.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ConfigFile {
    /// The path: `/etc/systemd/system/nginx.service.d/50-nearpath.conf`.
    pub path: String,
    /// The variable, in a file that has others, too: `IRQBALANCE_ARGS`.
    pub variable: Option<String>,
}

impl fmt::Display for ConfigFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.variable {
            None => f.write_str(&self.path),
            Some(variable) => write!(f, "{} {variable}", self.path),
        }
    }
}

/// What may be written below `/etc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// A drop-in of a systemd service.
    DropIn,
    /// A fragment that grub-mkconfig reads.
    CommandLine,
    /// The arguments of irqbalance: plans name them no more, but older journals do.
    Irqbalance,
}

impl Place {
    /// Its name in plans.
    pub fn kind(self) -> &'static str {
        match self {
            Self::DropIn => "unit_drop_in",
            Self::CommandLine => "kernel_command_line",
            Self::Irqbalance => "irqbalance_arguments",
        }
    }
}

/// nearpath's fragment of the kernel command line (grub-mkconfig as Debian has it).
pub(crate) const COMMAND_LINE: &str = "/etc/default/grub.d/50-nearpath.cfg";
/// Where distributions keep the arguments of irqbalance: Debian and SUSE, Red Hat.
pub(crate) const IRQBALANCE: [&str; 2] = ["/etc/default/irqbalance", "/etc/sysconfig/irqbalance"];
/// The variable in it.
pub(crate) const IRQBALANCE_ARGS: &str = "IRQBALANCE_ARGS";
/// The folder of drop-ins that outlast a reboot (systemd.unit(5)).
const DROP_INS: &str = "/etc/systemd/system/";
const DROP_IN: &str = ".d/50-nearpath.conf";

impl ConfigFile {
    /// The drop-in of a service; `None` for what is no name of one.
    pub(crate) fn drop_in(service: &str) -> Option<Self> {
        let path = format!("{DROP_INS}{service}{DROP_IN}");
        is_service(service).then_some(Self { path, variable: None })
    }

    /// From the text of a plan; `None` for what is no place that may be written.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (path, variable) = match text.split_once(' ') {
            Some((path, variable)) => (path, Some(variable.to_owned())),
            None => (text, None),
        };
        let file = Self { path: path.to_owned(), variable };
        file.place().map(|_| file)
    }

    /// Which place it is.
    pub(crate) fn place(&self) -> Option<Place> {
        let path = self.path.as_str();
        match self.variable.as_deref() {
            None if path == COMMAND_LINE => Some(Place::CommandLine),
            None => self.service().map(|_| Place::DropIn),
            Some(IRQBALANCE_ARGS) if IRQBALANCE.contains(&path) => Some(Place::Irqbalance),
            Some(_) => None,
        }
    }

    /// The service that it is a drop-in of.
    pub(crate) fn service(&self) -> Option<&str> {
        let service = self.path.strip_prefix(DROP_INS)?.strip_suffix(DROP_IN)?;
        is_service(service).then_some(service)
    }
}

/// Whether systemd takes it as the name of a service (`unit_name_is_valid` of
/// src/basic/unit-name.c), which leads out of no folder.
pub(crate) fn is_service(name: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || b":-_.\\@".contains(&b);
    name.len() < 250
        && name.strip_suffix(".service").is_some_and(|prefix| !prefix.is_empty())
        && !name.starts_with(['.', '@'])
        && name.bytes().all(known)
}

/// As [`crate::fuzzing_targets`].
pub(crate) fn fuzzing(text: &str) {
    for place in [Place::DropIn, Place::CommandLine, Place::Irqbalance] {
        let _ = grammar::check(place, text);
    }
    let line = irqbalance_line(&["--banirq=7".to_owned()]);
    if let Ok(new) = lines::with_line(text.as_bytes(), IRQBALANCE_ARGS, &line) {
        let found = lines::find(&new, IRQBALANCE_ARGS).ok().flatten();
        assert_eq!(found.and_then(|at| new.get(at)), Some(line.as_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_known_by_their_text() {
        for (text, place) in [
            ("/etc/systemd/system/nginx.service.d/50-nearpath.conf", Place::DropIn),
            ("/etc/systemd/system/a@b\\x2dc.service.d/50-nearpath.conf", Place::DropIn),
            ("/etc/default/grub.d/50-nearpath.cfg", Place::CommandLine),
            ("/etc/default/irqbalance IRQBALANCE_ARGS", Place::Irqbalance),
            ("/etc/sysconfig/irqbalance IRQBALANCE_ARGS", Place::Irqbalance),
        ] {
            let file = ConfigFile::parse(text).unwrap();
            assert_eq!((file.place(), file.to_string()), (Some(place), text.to_owned()));
        }
        let drop_in = ConfigFile::drop_in("nginx.service").unwrap();
        assert_eq!(drop_in.service(), Some("nginx.service"));
    }

    #[test]
    fn nothing_else_is_a_place() {
        for text in [
            "",
            "/etc/passwd",
            "/etc/default/grub",
            "/etc/default/irqbalance",
            "/etc/default/irqbalance LD_PRELOAD",
            "/etc/default/irqbalance IRQBALANCE_ARGS ",
            "/etc/default/grub.d/50-nearpath.cfg IRQBALANCE_ARGS",
            "/etc/systemd/system/nginx.service.d/override.conf",
            "/etc/systemd/system/.service.d/50-nearpath.conf",
            "/etc/systemd/system/..service.d/50-nearpath.conf",
            "/etc/systemd/system/system.slice.d/50-nearpath.conf",
            "/etc/systemd/system/a/../b.service.d/50-nearpath.conf",
            "/etc/systemd/system/a\nb.service.d/50-nearpath.conf",
            "etc/default/grub.d/50-nearpath.cfg",
        ] {
            assert_eq!(ConfigFile::parse(text), None, "{text}");
        }
        for name in ["nginx", "", ".service", "@.service", "a b.service", "a/b.service"] {
            assert_eq!(ConfigFile::drop_in(name), None, "{name}");
        }
    }
}
