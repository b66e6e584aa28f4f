//! One variable in a file with others, as read by shells and by systemd's `EnvironmentFile=`.
//!
//! Input: the file's bytes. Output: the variable's line, or the same bytes with that line replaced. Removing a
//! line that was added restores the original bytes, even if the file does not end with a newline.

use std::ops::Range;

/// The range of the variable's line, without its newline; `None` if there is none.
///
/// # Errors
/// It is set more than once, or continues on the next line.
pub(crate) fn find(bytes: &[u8], variable: &str) -> Result<Option<Range<usize>>, String> {
    let mut found = None;
    let mut start = 0;
    for line in bytes.split(|&b| b == b'\n') {
        let range = start..start + line.len();
        start = range.end + 1;
        let name = line.trim_ascii_start().strip_prefix(variable.as_bytes());
        if !name.is_some_and(|rest| rest.starts_with(b"=")) {
            continue;
        }
        if found.is_some() {
            return Err(format!("{variable} is set more than once"));
        }
        if line.ends_with(b"\\") {
            return Err(format!("the line of {variable} continues on the next"));
        }
        found = Some(range);
    }
    Ok(found)
}

/// The bytes with this line for the variable; without a line if it is empty.
///
/// # Errors
/// As [`find`], or the last line would continue into this one.
pub(crate) fn with_line(bytes: &[u8], variable: &str, line: &str) -> Result<Vec<u8>, String> {
    let part = |range: Range<usize>| bytes.get(range).unwrap_or_default();
    let ends = bytes.is_empty() || bytes.ends_with(b"\n");
    let should_continue = bytes.trim_ascii_end().ends_with(b"\\");
    Ok(match (find(bytes, variable)?, line.is_empty()) {
        (None, true) => bytes.to_vec(),
        // It would become part of the previous line.
        (None, false) if should_continue => {
            return Err("the last line continues on the next".to_owned());
        }
        (Some(at), false) => {
            [part(0..at.start), line.as_bytes(), part(at.end..bytes.len())].concat()
        }
        (None, false) if ends => [bytes, line.as_bytes(), b"\n"].concat(),
        (None, false) => [bytes, b"\n", line.as_bytes()].concat(),
        // Its newline is removed too; for a last line without one, the newline before it.
        (Some(at), true) if at.end < bytes.len() => {
            [part(0..at.start), part(at.end + 1..bytes.len())].concat()
        }
        (Some(at), true) => part(0..at.start.saturating_sub(1)).to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with(text: &str, line: &str) -> String {
        String::from_utf8(with_line(text.as_bytes(), "A", line).unwrap()).unwrap()
    }

    #[test]
    fn a_line_is_replaced_added_and_removed() {
        assert_eq!(with("X=1\nA=2\nY=3\n", "A=9"), "X=1\nA=9\nY=3\n");
        assert_eq!(with("#A=2\n", "A=9"), "#A=2\nA=9\n");
        assert_eq!(with("", "A=9"), "A=9\n");
        assert_eq!(with("X=1", "A=9"), "X=1\nA=9");
        assert_eq!(with("X=1\nA=9", ""), "X=1");
        assert_eq!(with("A=9\nX=1\n", ""), "X=1\n");
        assert_eq!(with("X=1\n", ""), "X=1\n");
    }

    #[test]
    fn ambiguous_files_are_refused() {
        for text in ["A=1\nA=2\n", "A=1 \\\n 2\n", " A=1\nA=2"] {
            assert!(find(text.as_bytes(), "A").is_err(), "{text:?}");
        }
        assert!(with_line(b"X=1\\\n", "A", "A=9").is_err());
        assert_eq!(find(b"AA=1\nXA=2\nA =3\n", "A"), Ok(None));
    }

    proptest! {
        #[test]
        fn the_original_is_restored(lines in prop::collection::vec("(A=[a-z ]{0,4}|[A-C]{0,2}=?[a-z]{0,3})", 0..6), ends: bool) {
            let mut text = lines.join("\n");
            if ends && !text.is_empty() {
                text.push('\n');
            }
            let bytes = text.as_bytes();
            if let Ok(place) = find(bytes, "A") {
                let before = place.map_or("", |at| &text[at]).to_owned();
                let after = with_line(bytes, "A", "A=new").unwrap();
                prop_assert_eq!(find(&after, "A").unwrap().map(|at| &after[at]), Some(&b"A=new"[..]));
                prop_assert_eq!(with_line(&after, "A", &before).unwrap(), bytes);
            }
        }
    }
}
