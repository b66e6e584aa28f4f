//! Words for findings: lists of CPUs and of things, and names from an untrusted host made harmless; figures are those
//! of every crate.

use nearpath_model::CpuSet;
pub(crate) use nearpath_model::units::{
    bytes, counted as count, digits, percent, seconds, short, time,
};

/// `CPU 3`, `CPUs 0-3,8`, or `no CPU`.
pub(crate) fn cpus(set: &CpuSet) -> String {
    match set.len() {
        0 => "no CPU".to_owned(),
        1 => format!("CPU {set}"),
        _ => format!("CPUs {set}"),
    }
}

/// The same for a title: a long list is cut.
pub(crate) fn cpus_brief(set: &CpuSet) -> String {
    match set.len() {
        0 | 1 => cpus(set),
        _ => format!("CPUs {}", set.brief()),
    }
}

/// `369k packets`.
pub(crate) fn packets(n: u64) -> String {
    format!("{} packets", short(n))
}

/// Things in a sentence: `a`, `a and b`, `a, b and c`.
pub(crate) fn list<T: std::fmt::Display>(things: &[T]) -> String {
    match things {
        [] => "none".to_owned(),
        [one] => one.to_string(),
        [most @ .., last] => {
            let most: Vec<String> = most.iter().map(ToString::to_string).collect();
            format!("{} and {last}", most.join(", "))
        }
    }
}

/// With a capital first letter.
pub(crate) fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// Text of an untrusted host in one harmless line: control characters become spaces, and it is
/// cut at 200 characters.
pub(crate) fn clean(text: &str) -> String {
    text.chars().take(200).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_harmless() {
        assert_eq!(clean("a\u{1b}[31m\nb"), "a [31m b");
        assert_eq!(clean(&"x".repeat(1000)).len(), 200);
        assert_eq!(list(&["a", "b", "c"]), "a, b and c");
        assert_eq!(cpus(&CpuSet::from_list("0-3").unwrap()), "CPUs 0-3");
    }
}
