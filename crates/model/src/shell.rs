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
