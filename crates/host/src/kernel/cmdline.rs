//! The kernel's command line: values of a parameter, and CPU sets in the formats that it accepts
//! (Documentation/admin-guide/kernel-parameters.rst, lib/bitmap-str.c).

use nearpath_model::{CpuId, CpuSet, ParseCpuSetError};

/// The values of a parameter, in order; one without `=` has an empty value.
///
/// As in the kernel (kernel/params.c), `-` and `_` in names are equal, double quotes protect white space, and
/// everything after `--` is for init.
pub(super) fn values(line: &str, name: &str) -> Vec<String> {
    let same_name = |written: &str| written.replace('-', "_") == name;
    let value = |word: String| match word.split_once('=') {
        Some((written, value)) if same_name(written) => Some(value.trim_matches('"').to_owned()),
        None if same_name(&word) => Some(String::new()),
        _ => None,
    };
    words(line).into_iter().take_while(|word| word != "--").filter_map(value).collect()
}

fn words(line: &str) -> Vec<String> {
    let mut quoted = false;
    let words = line.split(|c: char| {
        quoted ^= c == '"';
        !quoted && c.is_whitespace()
    });
    let unquoted = words.filter(|word| !word.is_empty()).map(|word| {
        let inner = word.strip_prefix('"').and_then(|word| word.strip_suffix('"'));
        inner.unwrap_or(word).to_owned()
    });
    unquoted.collect()
}

/// A CPU list in which `N` is the last possible CPU and `all` are all CPUs.
pub(super) fn cpus(text: &str, possible: &CpuSet) -> Result<CpuSet, ParseCpuSetError> {
    let last = possible.iter().last().unwrap_or(CpuId(0)).to_string();
    let part = |part: &str| match part.trim() {
        part if part.eq_ignore_ascii_case("all") => format!("0-{last}"),
        // The kernel expands `all:1/2` to `0-N:1/2`.
        part => part.replace("all:", &format!("0-{last}:")).replace('N', &last),
    };
    let list = text.split(',').map(part).collect::<Vec<_>>().join(",");
    let named = CpuSet::from_list(&list)?;
    // CPUs that the kernel cannot have are not isolated; if the CPUs of the host are unknown, none are
    // excluded.
    Ok(if possible.is_empty() { named } else { named.intersection(possible) })
}

/// The value of `isolcpus=`: flags, then CPUs (kernel/sched/isolation.c
/// `housekeeping_isolcpus_setup`).
pub(super) struct IsolCpus<'a> {
    /// Whether the CPUs leave the scheduler's domains, as shown by `/sys/…/isolated`.
    pub(super) domain: bool,
    /// Whether they are also `nohz_full`.
    pub(super) nohz: bool,
    /// The CPUs, as written.
    pub(super) cpus: &'a str,
}

/// Separates the flags from the CPUs.
pub(super) fn isolcpus(value: &str) -> IsolCpus<'_> {
    let (mut cpus, mut domain, mut nohz, mut managed_irq) = (value, false, false, false);
    while cpus.starts_with(|c: char| c.is_ascii_alphabetic()) {
        let Some((flag, rest)) = cpus.split_once(',') else { break };
        match flag {
            "domain" => domain = true,
            "nohz" => nohz = true,
            "managed_irq" => managed_irq = true,
            // Unknown flags are skipped, as in the kernel.
            _ => {}
        }
        cpus = rest;
    }
    IsolCpus { domain: domain || !(nohz || managed_irq), nohz, cpus }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_parameter() {
        let line = "quiet rcu_nocbs=1 a=\"x rcu_nocbs=9 y\" rcu-nocbs=\"2-3\" rcu_nocbs \
                    \"rcu_nocbs=5 \" xrcu_nocbs=8 -- rcu_nocbs=7";
        assert_eq!(values(line, "rcu_nocbs"), ["1", "2-3", "", "5 "]);
        assert!(values("", "rcu_nocbs").is_empty());
        assert!(values("\"", "rcu_nocbs").is_empty());
    }

    #[test]
    fn forms_of_cpu_lists() {
        let possible = CpuSet::from_list("0-7").unwrap();
        for (text, expected) in [
            ("all", "0-7"),
            ("0-N", "0-7"),
            ("N", "7"),
            ("1,N", "1,7"),
            ("0-7:1/2", "0,2,4,6"),
            ("all:1/2", "0,2,4,6"),
            ("1-3,100", "1-3"),
            ("", ""),
        ] {
            assert_eq!(cpus(text, &possible).unwrap().to_string(), expected, "{text}");
        }
        assert!(cpus("x", &possible).is_err());
        assert_eq!(cpus("3", &CpuSet::new()).unwrap().to_string(), "3");
    }

    #[test]
    fn flags_of_isolcpus() {
        for (value, domain, nohz, cpus) in [
            ("1-3", true, false, "1-3"),
            ("managed_irq,domain,1-3", true, false, "1-3"),
            ("nohz,managed_irq,2", false, true, "2"),
            ("novelty,4", true, false, "4"),
            ("domain", true, false, "domain"),
        ] {
            let parsed = isolcpus(value);
            assert_eq!((parsed.domain, parsed.nohz, parsed.cpus), (domain, nohz, cpus), "{value}");
        }
    }
}
