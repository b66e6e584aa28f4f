//! Text of strangers (names of interfaces, sentences of a plan) as the exported forms take it.

/// Longest sentence that goes into a comment.
const LONGEST: usize = 400;

/// Text for a comment of any form: one line of printable ASCII.
pub(super) fn comment(text: &str) -> String {
    let plain = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
    text.chars().take(LONGEST).map(plain).collect()
}

/// Lines of comment behind a sign.
pub(super) fn comments<'a>(lines: impl IntoIterator<Item = &'a str>) -> String {
    let line = |text: &str| match text {
        "" => "#\n".to_owned(),
        text => format!("# {}\n", comment(text)),
    };
    lines.into_iter().map(line).collect()
}

/// A word of a POSIX shell, whatever it holds but NUL (2.2.2 of the Shell Command Language).
pub(super) fn sh(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Whether a name means only itself in every form: no blank, quote, glob, `$`, `%` or backslash.
pub(super) fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-+@:".contains(c))
}

/// A file's name that stands for a path or name and no other: all but letters, digits, `.`, `_` and
/// `-` as `%` with the byte's number.
pub(super) fn file_name(text: &str) -> String {
    let byte = |b: u8| match b {
        b if b.is_ascii_alphanumeric() || b"._-".contains(&b) => char::from(b).to_string(),
        b => format!("%{b:02x}"),
    };
    text.bytes().map(byte).collect()
}

/// The unit that systemd has for a network interface (systemd.device(5), systemd-escape(1)).
pub(super) fn device_unit(interface: &str) -> String {
    let escaped: String = interface
        .bytes()
        .map(|b| match b {
            b if b.is_ascii_alphanumeric() || b":_.".contains(&b) => char::from(b).to_string(),
            b => format!("\\x{b:02x}"),
        })
        .collect();
    format!("sys-subsystem-net-devices-{escaped}.device")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command;

    #[test]
    fn names_are_escaped_as_systemd_does() {
        assert_eq!(device_unit("eth0.5"), "sys-subsystem-net-devices-eth0.5.device");
        assert_eq!(device_unit("br-lan"), r"sys-subsystem-net-devices-br\x2dlan.device");
        assert_eq!(device_unit("é%"), r"sys-subsystem-net-devices-\xc3\xa9\x25.device");
    }

    #[test]
    fn comments_are_one_line() {
        assert_eq!(comment("a\nrm -rf /\u{1b}é"), "a?rm -rf /??");
        assert_eq!(comments(["", "a\nb"]), "#\n# a?b\n");
    }

    #[test]
    fn different_texts_have_different_file_names() {
        assert_eq!(file_name("/sys/a b"), "%2fsys%2fa%20b");
        assert_ne!(file_name("%2f"), file_name("/"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn a_shell_reads_a_word_as_it_was(text in "[^\\x00]{0,30}") {
            let echoed = Command::new("sh").args(["-c", &format!("printf %s {}", sh(&text))]).output();
            prop_assert_eq!(echoed.unwrap().stdout, text.as_bytes());
        }
    }
}
