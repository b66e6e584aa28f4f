//! Quotes untrusted text (interface names, sentences of a plan) for the exported formats.

/// Maximum length of a sentence in a comment.
const LONGEST: usize = 400;

/// Text for a comment in any format: one line of printable ASCII.
pub(super) fn comment(text: &str) -> String {
    let plain = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
    text.chars().take(LONGEST).map(plain).collect()
}

/// Comment lines with their marker.
pub(super) fn comments<'a>(lines: impl IntoIterator<Item = &'a str>) -> String {
    let line = |text: &str| match text {
        "" => "#\n".to_owned(),
        text => format!("# {}\n", comment(text)),
    };
    lines.into_iter().map(line).collect()
}

/// Quotes any text without NUL as a word of a POSIX shell (2.2.2 of the Shell Command Language).
pub(super) fn sh(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Whether a name is literal in every format: no blank, quote, glob, `$`, `%` or backslash.
pub(super) fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-+@:".contains(c))
}

/// A unique file name for a path or name: everything but letters, digits, `.`, `_` and `-` is percent-encoded.
pub(super) fn file_name(text: &str) -> String {
    let byte = |b: u8| match b {
        b if b.is_ascii_alphanumeric() || b"._-".contains(&b) => char::from(b).to_string(),
        b => format!("%{b:02x}"),
    };
    text.bytes().map(byte).collect()
}

/// The device unit of a network interface (systemd.device(5), systemd-escape(1)).
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
        fn a_shell_reads_a_quoted_word_unchanged(text in "[^\\x00]{0,30}") {
            let echoed = Command::new("sh").args(["-c", &format!("printf %s {}", sh(&text))]).output();
            prop_assert_eq!(echoed.unwrap().stdout, text.as_bytes());
        }
    }
}
