//! Words of shell commands. Names of interfaces, units and files come from untrusted hosts: what a shell would
//! interpret is quoted.

/// The text as one word of a POSIX shell; control characters are left out.
pub fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.,:=+@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    let printable: String = text.chars().filter(|c| !c.is_control()).collect();
    format!("'{}'", printable.replace('\'', "'\\''"))
}

/// The path of a network namespace, as for `--netns`, if it is not one by name in `/run/netns`.
pub fn netns_path(netns: &str) -> Option<String> {
    let pid = netns.strip_prefix("pid:").and_then(|pid| pid.parse::<u32>().ok());
    let path = pid.map(|pid| format!("/proc/{pid}/ns/net"));
    path.or_else(|| netns.contains('/').then(|| netns.to_owned()))
}

/// A command that runs in a network namespace, given as for `--netns`.
pub fn in_netns(netns: &str, command: &str) -> String {
    match netns_path(netns) {
        Some(path) => format!("nsenter --net={} {command}", word(&path)),
        None => format!("ip netns exec {} {command}", word(netns)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_shell_interprets_is_quoted() {
        for (text, quoted) in [
            ("eth0.100", "eth0.100"),
            ("", "''"),
            ("a b", "'a b'"),
            ("$(reboot);", "'$(reboot);'"),
            ("it's", "'it'\\''s'"),
            ("a\nb", "'ab'"),
        ] {
            assert_eq!(word(text), quoted);
        }
    }
}
