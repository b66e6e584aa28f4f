//! Natural order of names: `cpu2` before `cpu10`.

use std::cmp::Ordering;

/// Compares two names, with each run of digits as a number. Names that differ only in leading zeros are ordered
/// by their bytes, so that the order is total.
pub(super) fn natural(a: &str, b: &str) -> Ordering {
    let (mut x, mut y) = (a.as_bytes(), b.as_bytes());
    while let (Some(&c), Some(&d)) = (x.first(), y.first()) {
        if c.is_ascii_digit() && d.is_ascii_digit() {
            let (m, n);
            (m, x) = number(x);
            (n, y) = number(y);
            match m.len().cmp(&n.len()).then_with(|| m.cmp(n)) {
                Ordering::Equal => {}
                unequal => return unequal,
            }
        } else if c == d {
            (x, y) = (&x[1..], &y[1..]);
        } else {
            return c.cmp(&d);
        }
    }
    x.len().cmp(&y.len()).then_with(|| a.cmp(b))
}

/// The leading digits of a name, without leading zeros, and the rest.
fn number(name: &[u8]) -> (&[u8], &[u8]) {
    let end = name.iter().position(|c| !c.is_ascii_digit()).unwrap_or(name.len());
    let (digits, rest) = name.split_at(end);
    let zeros = digits.iter().take_while(|&&c| c == b'0').count();
    (&digits[zeros..], rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_numbers() {
        let mut names = ["cpu10", "cpu2", "cpu", "tx-0", "rx-11", "rx-2", "cpu02", "cpu2a", "10"];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(
            names,
            ["10", "cpu", "cpu02", "cpu2", "cpu2a", "cpu10", "rx-2", "rx-11", "tx-0"]
        );
    }
}
