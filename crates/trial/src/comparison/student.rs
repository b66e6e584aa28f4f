//! Student's t distribution with a whole number of degrees of freedom. Input: t, or a probability. Output: the
//! other.
//!
//! The closed form of Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.

/// Probability that |T| is at most `t`.
fn within(t: f64, freedom: usize) -> f64 {
    let angle = (t.abs() / (freedom as f64).sqrt()).atan();
    let (sin, cos) = (angle.sin(), angle.cos());
    if freedom == 1 {
        return 2.0 * angle / std::f64::consts::PI;
    }
    // 1 + (1/2) cos² + (1·3)/(2·4) cos⁴ + …, or cos + (2/3) cos³ + … with an odd number.
    let odd = freedom % 2 == 1;
    let mut term = if odd { cos } else { 1.0 };
    let mut sum = term;
    let first = if odd { 2 } else { 1 };
    for numerator in (first..).step_by(2).take_while(|numerator| numerator + 2 < freedom + 1) {
        term *= cos * cos * numerator as f64 / (numerator + 1) as f64;
        sum += term;
    }
    if odd { 2.0 / std::f64::consts::PI * (angle + sin * sum) } else { sin * sum }
}

/// Probability that |T| exceeds `t`, by chance.
pub(super) fn two_sided(t: f64, freedom: usize) -> f64 {
    if t.is_infinite() {
        return 0.0;
    }
    (1.0 - within(t, freedom.max(1))).clamp(0.0, 1.0)
}

/// The t that |T| exceeds with this probability.
pub(super) fn quantile(two_sided_share: f64, freedom: usize) -> f64 {
    let (mut low, mut high) = (0.0, 1e6);
    for _ in 0..80 {
        let middle = f64::midpoint(low, high);
        if two_sided(middle, freedom) > two_sided_share { low = middle } else { high = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        // Fisher and Yates, table III: two-sided 5% and 10%.
        for (freedom, five, ten) in [
            (1, 12.706, 6.314),
            (2, 4.303, 2.920),
            (3, 3.182, 2.353),
            (4, 2.776, 2.132),
            (5, 2.571, 2.015),
            (11, 2.201, 1.796),
            (30, 2.042, 1.697),
            (120, 1.980, 1.658),
        ] {
            assert!((quantile(0.05, freedom) - five).abs() < 6e-4, "{freedom}");
            assert!((quantile(0.10, freedom) - ten).abs() < 6e-4, "{freedom}");
        }
        assert!((two_sided(0.0, 5) - 1.0).abs() < 1e-12);
        assert!(two_sided(1e9, 5) < 1e-12 && two_sided(f64::INFINITY, 5) == 0.0);
    }
}
