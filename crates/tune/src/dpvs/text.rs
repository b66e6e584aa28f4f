//! Lines and tokens of a DPVS configuration, split as DPVS does (src/parser.c: `read_line`, `tokenize_string`,
//! `set_value`).
//!
//! Input: the bytes of a file. Output: for each line its tokens, or why reading it crashes DPVS. A line ends at `\n` or
//! `\r`; one that the file does not end with a newline is never read.

use std::ops::Range;

/// Size in bytes of DPVS's line buffer (`CFG_FILE_MAX_BUF_SZ`): of a longer line the next byte is lost and what follows
/// is a line of its own, even if the line began as a comment.
const BUFFER: usize = 1024;

/// A line as DPVS reads it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line<'a> {
    /// Its number in the file, counting newlines from 1.
    pub number: u32,
    pub text: &'a [u8],
    /// It is longer than DPVS's buffer.
    pub is_cut: bool,
    /// The file ends within it, so that DPVS does not read it.
    pub is_unterminated: bool,
}

/// The lines of a file.
pub(super) struct Lines<'a> {
    rest: &'a [u8],
    number: u32,
}

impl<'a> Lines<'a> {
    pub(super) fn new(file: &'a [u8]) -> Self {
        Self { rest: file, number: 1 }
    }
}

impl<'a> Iterator for Lines<'a> {
    type Item = Line<'a>;

    fn next(&mut self) -> Option<Line<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        let number = self.number;
        let end = self.rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
        let length = end.unwrap_or(self.rest.len());
        let is_cut = length > BUFFER;
        let (text, rest) = self.rest.split_at(length.min(BUFFER));
        let (ends_with, rest) = rest.split_first().map_or((None, rest), |(b, r)| (Some(*b), r));
        self.rest = rest;
        self.number = number.saturating_add(u32::from(ends_with == Some(b'\n')));
        // A NUL ends the string in C.
        let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
        Some(Line { number, text, is_cut, is_unterminated: !is_cut && end.is_none() })
    }
}

/// The tokens of a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Tokens<'a> {
    /// Nothing, or a comment.
    Blank,
    /// Only an attribute such as `<init>`: DPVS takes the first token of none, and crashes.
    Crash,
    /// At least one.
    Some(Vec<&'a [u8]>),
}

/// Splits a line. `"` is a token of its own, `<…>` is skipped, and `!` or `#` at the start of a token begins a comment.
pub(super) fn tokens(line: &[u8]) -> Tokens<'_> {
    let mut at = spaces(line, 0);
    if is_end(line, at) {
        return Tokens::Blank;
    }
    let mut found = Vec::new();
    while !is_end(line, at) {
        let token = token(line, at);
        if line.get(at) == Some(&b'<') {
            // Skipped up to a `>`, wherever that is: `<init>worker` swallows the rest of the line.
            at = token.end;
            while line.get(at.wrapping_sub(1)) != Some(&b'>') && at < line.len() {
                at += 1;
            }
        } else {
            at = token.end;
            found.extend(line.get(token));
        }
        at = spaces(line, at);
    }
    if found.is_empty() { Tokens::Crash } else { Tokens::Some(found) }
}

/// The value of a statement: its second token, or all of a quoted string.
///
/// `None` where DPVS aborts: there is no value.
pub(super) fn value(tokens: &[&[u8]]) -> Option<Vec<u8>> {
    let (&first, quoted) = tokens.get(1..)?.split_first()?;
    if first != b"\"" {
        return Some(first.to_vec());
    }
    // The last token is taken for the closing quote, whatever it is; the blank before it is not.
    let (last, inside) = quoted.split_last()?;
    let mut value = Vec::new();
    for (i, token) in inside.iter().enumerate() {
        let is_after_word = i > 0 && inside.get(i - 1).is_some_and(|before| *before != b"\"");
        if is_after_word && *token != b"\"" {
            value.push(b' ');
        }
        value.extend_from_slice(token);
    }
    if *last != b"\"" && inside.last().is_some_and(|before| *before != b"\"") {
        value.push(b' ');
    }
    Some(value)
}

/// The C library's `atoi`: 0 without a number, the low 32 bits of one that is too large.
pub(super) fn atoi(text: &[u8]) -> i32 {
    let text = text.trim_ascii_start();
    let (is_negative, digits) = match text.split_first() {
        Some((b'-', rest)) => (true, rest),
        Some((b'+', rest)) => (false, rest),
        _ => (false, text),
    };
    let mut value = 0i64;
    for digit in digits.iter().take_while(|byte| byte.is_ascii_digit()) {
        value = value.saturating_mul(10).saturating_add(i64::from(digit - b'0'));
    }
    if is_negative {
        value = value.saturating_neg();
    }
    // As the C library: strtol() clamped to a long, then cut to an int.
    #[allow(clippy::cast_possible_truncation)]
    let low = value as i32;
    low
}

/// Whether all of it is digits, as `strspn(str, "0123456789") == strlen(str)`.
pub(super) fn is_digits(text: &[u8]) -> bool {
    text.iter().all(u8::is_ascii_digit)
}

fn token(line: &[u8], start: usize) -> Range<usize> {
    if line.get(start) == Some(&b'"') {
        return start..start + 1;
    }
    let length = line.iter().skip(start).take_while(|byte| !is_space(**byte) && **byte != b'"');
    start..start + length.count()
}

fn spaces(line: &[u8], start: usize) -> usize {
    start + line.iter().skip(start).take_while(|byte| is_space(**byte)).count()
}

fn is_end(line: &[u8], at: usize) -> bool {
    matches!(line.get(at), None | Some(b'!' | b'#'))
}

/// `isspace` in the C locale.
fn is_space(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(line: &str) -> Vec<String> {
        match tokens(line.as_bytes()) {
            Tokens::Blank => vec!["BLANK".to_owned()],
            Tokens::Crash => vec!["CRASH".to_owned()],
            Tokens::Some(tokens) => {
                tokens.iter().map(|token| String::from_utf8_lossy(token).into_owned()).collect()
            }
        }
    }

    fn value_of(line: &str) -> Option<String> {
        match tokens(line.as_bytes()) {
            Tokens::Some(tokens) => {
                value(&tokens).map(|value| String::from_utf8_lossy(&value).into_owned())
            }
            _ => None,
        }
    }

    #[test]
    fn attributes_and_comments_are_no_tokens() {
        assert_eq!(split("  <init> worker cpu0 {"), ["worker", "cpu0", "{"]);
        assert_eq!(split("cpu_id\t1 # the first"), ["cpu_id", "1"]);
        assert_eq!(split("cpu_id 1#x"), ["cpu_id", "1#x"]);
        assert_eq!(split("mode 4 <0-6> here"), ["mode", "4", "here"]);
        assert_eq!(split("mode 4 <0 - 6> !"), ["mode", "4"]);
        for blank in ["", " \t", "! a", "# b", "  !<init>"] {
            assert_eq!(split(blank), ["BLANK"], "{blank}");
        }
        for crash in ["<init>", "<init> # c", "<init>worker cpu0 {", "<", "<a"] {
            assert_eq!(split(crash), ["CRASH"], "{crash}");
        }
    }

    #[test]
    fn quotes_are_joined_with_spaces() {
        assert_eq!(value_of("type \"slave\"").as_deref(), Some("slave"));
        assert_eq!(value_of("name \"a b  c\"").as_deref(), Some("a b c"));
        assert_eq!(value_of("type \"slave").as_deref(), Some(""), "the last token is dropped");
        assert_eq!(value_of("name \"a b").as_deref(), Some("a "), "but not the blank before it");
        assert_eq!(value_of("secret \"\"").as_deref(), Some(""));
        assert_eq!(value_of("type \""), None);
        assert_eq!(value_of("type"), None);
        assert_eq!(value_of("type slave 1").as_deref(), Some("slave"));
    }

    #[test]
    fn numbers_are_read_as_in_c() {
        let cases: [(&str, i32); 9] = [
            ("8", 8),
            ("8x", 8),
            ("0-3", 0),
            ("1,2", 1),
            ("x", 0),
            ("-1", -1),
            ("4294967297", 1),
            ("2147483648", i32::MIN),
            ("99999999999999999999", -1),
        ];
        for (text, number) in cases {
            assert_eq!(atoi(text.as_bytes()), number, "{text}");
        }
    }

    #[test]
    fn lines_end_as_in_dpvs() {
        let lines: Vec<_> = Lines::new(b"a\r\nb\nc").collect();
        let numbers: Vec<_> = lines.iter().map(|line| (line.number, line.text)).collect();
        assert_eq!(numbers, [(1, &b"a"[..]), (1, b""), (2, b"b"), (3, b"c")]);
        let unterminated: Vec<_> = lines.iter().map(|line| line.is_unterminated).collect();
        assert_eq!(unterminated, [false, false, false, true]);

        let long = [vec![b'!'; 1025], b" lost\nnext\n".to_vec()].concat();
        let lines: Vec<_> = Lines::new(&long).collect();
        let seen: Vec<_> =
            lines.iter().map(|line| (line.number, line.text.len(), line.is_cut)).collect();
        assert_eq!(seen, [(1, 1024, true), (1, 5, false), (2, 4, false)]);
        assert_eq!(Lines::new(b"a\0b\n").next().unwrap().text, b"a");
    }
}
