//! The texts that each file accepts: what nearpath itself writes there, and nothing else. A drop-in could start
//! any program and a grub fragment is a shell script, so every line and character is checked.

use nearpath_model::{ConfigPlace, CpuSet, IRQBALANCE_ARGS, PoolCounts};

/// Maximum size of a text in bytes: several times the cpulists of any machine.
const LONGEST: usize = 64 << 10;

/// Checks a text for a place. The empty text means none, and is always accepted.
///
/// # Errors
/// The line that is not accepted.
pub(crate) fn check(place: ConfigPlace, text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Ok(());
    }
    if text.len() > LONGEST {
        return Err(format!("is longer than {} KiB", LONGEST >> 10));
    }
    let line_is_taken = match place {
        ConfigPlace::Irqbalance => {
            return match irqbalance_arguments(text) {
                Some(_) => Ok(()),
                None => Err(format!("is not a plain line {IRQBALANCE_ARGS}=\"…\"")),
            };
        }
        ConfigPlace::DropIn => drop_in_line,
        ConfigPlace::CommandLine => |line: &str| command_line_parameters(line).is_some(),
    };
    if !text.ends_with('\n') {
        return Err("must end with a newline".to_owned());
    }
    let refused = |line: &str| format!("must not have the line {line:?}");
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let resets = place == ConfigPlace::DropIn
            && lines.peek().is_some_and(|next| is_reset(line, next) && line_is_taken(next));
        if !is_comment(line) && !line_is_taken(line) && !resets {
            return Err(refused(line));
        }
    }
    Ok(())
}

/// Whether a line resets the list that the next one assigns: otherwise systemd merges the lists of all files
/// (`parse_cpu_set_extend` of src/shared/cpu-set-util.c).
fn is_reset(line: &str, next: &str) -> bool {
    ["CPUAffinity=", "NUMAMask="].contains(&line) && next.starts_with(line)
}

/// A comment or an empty line. A backslash at its end would continue it on the next line.
fn is_comment(line: &str) -> bool {
    let plain = line.bytes().all(|b| b.is_ascii_graphic() || b == b' ') && !line.ends_with('\\');
    line.is_empty() || (line.starts_with('#') && plain)
}

/// A line of the drop-in of a service (systemd.exec(5)).
fn drop_in_line(line: &str) -> bool {
    if line == "[Service]" {
        return true;
    }
    let numbers = |list: &str| CpuSet::from_list(list).is_ok_and(|set| !set.is_empty());
    let plain = |list: &str| list.bytes().all(|b| b.is_ascii_digit() || b == b',' || b == b'-');
    match line.split_once('=') {
        Some(("CPUAffinity" | "NUMAMask", list)) => plain(list) && numbers(list),
        Some(("NUMAPolicy", policy)) => {
            matches!(policy, "default" | "preferred" | "bind" | "interleave" | "local")
        }
        _ => false,
    }
}

/// Kernel parameters that may be written, and the form of their values
/// (Documentation/admin-guide/kernel-parameters.txt).
const PARAMETERS: &[(&str, Argument)] = &[
    ("isolcpus", Argument::Cpus),
    ("nohz_full", Argument::Cpus),
    ("rcu_nocbs", Argument::Cpus),
    ("irqaffinity", Argument::Cpus),
    ("skew_tick", Argument::Number),
    ("rcu_nocb_poll", Argument::None),
    ("nowatchdog", Argument::None),
    ("nmi_watchdog", Argument::Number),
    ("default_hugepagesz", Argument::Number),
    ("hugepagesz", Argument::Number),
    ("hugepages", Argument::Counts),
];

#[derive(Clone, Copy)]
enum Argument {
    None,
    /// Digits, with a unit.
    Number,
    /// A count, or counts by node: `0:512,1:512`.
    Counts,
    /// Flags and a cpulist.
    Cpus,
}

/// The parameters added by a line of a grub fragment: `GRUB_CMDLINE_LINUX_DEFAULT="$… nohz_full=2"`.
pub(crate) fn command_line_parameters(line: &str) -> Option<Vec<&str>> {
    let added = line
        .strip_prefix("GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT ")?
        .strip_suffix('"')?;
    let parameters: Vec<&str> = added.split(' ').collect();
    parameters.iter().all(|parameter| is_parameter(parameter)).then_some(parameters)
}

fn is_parameter(parameter: &str) -> bool {
    let (name, value) = match parameter.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (parameter, None),
    };
    let made_of = |value: &str, of: fn(u8) -> bool| !value.is_empty() && value.bytes().all(of);
    match (PARAMETERS.iter().find(|(known, _)| *known == name), value) {
        (Some((_, Argument::None)), None) => true,
        (Some((_, Argument::Number)), Some(value)) => {
            made_of(value, |b| b.is_ascii_digit() || b"KMG".contains(&b))
        }
        (Some((_, Argument::Counts)), Some(value)) => value.parse::<PoolCounts>().is_ok(),
        (Some((_, Argument::Cpus)), Some(value)) => {
            made_of(value, |b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_,-".contains(&b))
        }
        _ => false,
    }
}

/// The arguments in irqbalance's line; `None` if it is another line, or one that only a shell can parse.
pub(crate) fn irqbalance_arguments(line: &str) -> Option<Vec<&str>> {
    let value = line.trim_start_matches([' ', '\t']);
    let value =
        value.strip_prefix(IRQBALANCE_ARGS)?.strip_prefix('=')?.trim_end_matches([' ', '\t']);
    let quoted = |quote: char| value.strip_prefix(quote)?.strip_suffix(quote);
    let inner = match quoted('"').or_else(|| quoted('\'')) {
        Some(inner) => inner,
        // Unquoted, it is a single word for a shell.
        None if value.contains(' ') => return None,
        None => value,
    };
    let plain = |b: u8| b.is_ascii_alphanumeric() || b" =_,./:-".contains(&b);
    inner.bytes().all(plain).then(|| inner.split(' ').filter(|word| !word.is_empty()).collect())
}

/// irqbalance's line with these arguments.
pub(crate) fn irqbalance_line(arguments: &[String]) -> String {
    format!("{IRQBALANCE_ARGS}=\"{}\"", arguments.join(" "))
}

/// Whether an argument of irqbalance may be added: only those that name neither a file nor a program.
pub(crate) fn is_safe_argument(argument: &str) -> bool {
    let (name, value) = match argument.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (argument, None),
    };
    match (name, value) {
        ("--banirq", Some(irq)) => !irq.is_empty() && irq.bytes().all(|b| b.is_ascii_digit()),
        (
            "--banmod" | "--hintpolicy" | "--powerthresh" | "--deepestcache" | "--interval",
            value,
        ) => value.is_some_and(|value| !value.contains('/')),
        ("--oneshot" | "--journal" | "--foreground", None) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearpaths_own_texts_are_accepted() {
        let drop_in = "# Written by nearpath.\n\n[Service]\nCPUAffinity=\nCPUAffinity=0-3,8\n\
                       NUMAPolicy=bind\nNUMAMask=\nNUMAMask=0\n";
        assert_eq!(check(ConfigPlace::DropIn, drop_in), Ok(()));
        // From journals of older versions.
        let older = drop_in.replace("CPUAffinity=\n", "").replace("NUMAMask=\n", "");
        assert_eq!(check(ConfigPlace::DropIn, &older), Ok(()));
        let line = "GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT \
                    isolcpus=managed_irq,domain,2-3 nohz_full=2-3 rcu_nocb_poll nmi_watchdog=0 \
                    hugepagesz=1G hugepages=8\"";
        assert_eq!(check(ConfigPlace::CommandLine, &format!("# Ours.\n{line}\n")), Ok(()));
        assert_eq!(command_line_parameters(line).unwrap().len(), 6);
        assert_eq!(
            check(ConfigPlace::Irqbalance, "IRQBALANCE_ARGS=\"--banirq=4 --oneshot\""),
            Ok(())
        );
        for place in [ConfigPlace::DropIn, ConfigPlace::CommandLine, ConfigPlace::Irqbalance] {
            assert_eq!(check(place, ""), Ok(()));
        }
    }

    #[test]
    fn texts_that_could_run_a_program_are_refused() {
        for text in [
            "[Service]\nExecStartPre=/bin/x\n",
            "[Service]\nCPUAffinity=0\\\nExecStart=/bin/x\n",
            "# a \\\nExecStart=/bin/x\n",
            "[Service]\nCPUAffinity=\n",
            "[Service]\nCPUAffinity=0\nCPUAffinity=\n",
            "[Service]\nCPUAffinity=\nNUMAMask=0\n",
            "[Service]\nCPUAffinity=\nCPUAffinity=\nCPUAffinity=0\n",
            "[Service]\nNUMAPolicy=\nNUMAPolicy=bind\n",
            "[Service]\nExecStartPre=\nExecStartPre=/bin/x\n",
            "[Service]\nCPUAffinity=numa\n",
            "[Service]\nNUMAPolicy=any\n",
            "[Service]",
            "[Unit]\n",
        ] {
            assert!(check(ConfigPlace::DropIn, text).is_err(), "{text:?}");
        }
        for added in [
            "init=/bin/sh",
            "nohz_full=$(x)",
            "nohz_full=2\" x=\"",
            "nohz_full",
            "quiet",
            "",
            "nowatchdog=",
        ] {
            let line =
                format!("GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT {added}\"\n");
            assert!(check(ConfigPlace::CommandLine, &line).is_err(), "{line:?}");
        }
        for text in ["x\n", "GRUB_CMDLINE_LINUX=\"quiet\"\n", "\t\n", "#\u{7}\n"] {
            assert!(check(ConfigPlace::CommandLine, text).is_err(), "{text:?}");
        }
        for text in [
            "IRQBALANCE_ARGS=\"$(x)\"",
            "IRQBALANCE_ARGS=a b",
            "IRQBALANCE_ARGS=\"a\" b=\"c\"",
            "IRQBALANCE_ARGS=\"a\nb\"",
            "LD_PRELOAD=x",
        ] {
            assert!(check(ConfigPlace::Irqbalance, text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn irqbalance_arguments_are_parsed() {
        let of = |line| irqbalance_arguments(line);
        assert_eq!(of("IRQBALANCE_ARGS=\"--a --b=1\" "), Some(vec!["--a", "--b=1"]));
        assert_eq!(of("IRQBALANCE_ARGS='--a'"), Some(vec!["--a"]));
        assert_eq!(of("IRQBALANCE_ARGS="), Some(vec![]));
        assert_eq!(of("IRQBALANCE_ARGS=\""), None);
        for safe in ["--banirq=4", "--banmod=virtio", "--oneshot", "--hintpolicy=exact"] {
            assert!(is_safe_argument(safe), "{safe}");
        }
        for unsafe_ in ["--policyscript=/x", "--banirq=", "--banirq=x", "--pid=/x", "--banmod=/x"] {
            assert!(!is_safe_argument(unsafe_), "{unsafe_}");
        }
    }
}
