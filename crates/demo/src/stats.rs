//! Order statistics over a handful of rounds.

use serde::Serialize;

/// Median and range of the values that the rounds gave.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    /// The middle value; the mean of the two middle ones if their number is even.
    pub median: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// Number of values; never 0.
    pub count: usize,
}

/// Summarises `values`; `None` if there are none. NaN sorts last.
#[must_use]
pub fn summary(values: &[f64]) -> Option<Summary> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (first, last) = (*sorted.first()?, *sorted.last()?);
    let middle = sorted.len() / 2;
    let median = if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    };
    Some(Summary { median, min: first, max: last, count: sorted.len() })
}

/// The `percent`-th percentile of `values` by nearest rank: the smallest value that at least
/// `percent` of all do not exceed. `None` if there are no values.
#[must_use]
pub fn percentile(values: &[f64], percent: usize) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * percent.min(100)).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Ratios of `ours` to `base` taken within each round, summarised. A round that lacks either value, or
/// whose base is 0, counts for nothing.
#[must_use]
pub fn paired_ratio(ours: &[Option<f64>], base: &[Option<f64>]) -> Option<Summary> {
    summary(&ratios(ours, base))
}

/// Those ratios themselves.
#[must_use]
pub fn ratios(ours: &[Option<f64>], base: &[Option<f64>]) -> Vec<f64> {
    ours.iter()
        .zip(base)
        .filter_map(|(a, b)| Some(((*a)?, (*b)?)))
        .filter(|&(_, b)| b != 0.0)
        .map(|(a, b)| a / b)
        .collect()
}

/// Whether `ratios` leave open which side of 1 their median lies on, and not for being close to it: the interval that
/// holds the median with at least 90 percent confidence reaches to both sides and is wider than a tenth. Fewer than
/// five ratios have no such interval and are never called undecided.
#[must_use]
pub fn is_undecided(ratios: &[f64]) -> bool {
    const TENTH: f64 = 0.1;
    interval(ratios).is_some_and(|(low, high)| low < 1.0 && high > 1.0 && high - low > TENTH)
}

/// The narrowest pair of equally deep order statistics that encloses the median with at least 90 percent confidence,
/// for any distribution: of five values the smallest and the largest.
#[must_use]
pub fn interval(values: &[f64]) -> Option<(f64, f64)> {
    const MISSES: f64 = 0.1;
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    // Chance that at most `depth` of `n` values lie below the median, from the binomial distribution.
    let (mut term, mut below) = (0.5_f64.powi(i32::try_from(n).ok()?), 0.0);
    let mut found = None;
    for depth in 0..n.div_ceil(2) {
        below += term;
        if below * 2.0 > MISSES {
            break;
        }
        found = Some((sorted[depth], sorted[n - 1 - depth]));
        term *= (n - depth) as f64 / (depth + 1) as f64;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_of_odd_even_and_none() {
        assert_eq!(summary(&[]), None);
        let odd = summary(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max, odd.count), (2.0, 1.0, 3.0, 3));
        let even = summary(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((even.median, even.min, even.max, even.count), (2.5, 1.0, 4.0, 4));
        assert_eq!(summary(&[7.0]).unwrap().median, 7.0);
    }

    #[test]
    fn percentiles_by_nearest_rank() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&values, 50), Some(50.0));
        assert_eq!(percentile(&values, 95), Some(95.0));
        assert_eq!(percentile(&values, 99), Some(99.0));
        assert_eq!(percentile(&values, 100), Some(100.0));
        assert_eq!(percentile(&values, 0), Some(1.0));
        assert_eq!(percentile(&[5.0, 9.0], 50), Some(5.0));
        assert_eq!(percentile(&[], 50), None);
    }

    #[test]
    fn intervals_of_the_median() {
        let to = |n: u32| (1..=n).map(f64::from).collect::<Vec<f64>>();
        assert_eq!(interval(&[]), None);
        assert_eq!(interval(&to(4)), None);
        // 1 - 2/2^5 = 93.75 %; 1 - 2 (1 + 8)/2^8 = 93.0 %; 1 - 2 (1 + 11 + 55)/2^11 = 93.5 %.
        assert_eq!(interval(&to(5)), Some((1.0, 5.0)));
        assert_eq!(interval(&to(8)), Some((2.0, 7.0)));
        assert_eq!(interval(&to(11)), Some((3.0, 9.0)));
    }

    #[test]
    fn wide_ratios_around_one_are_undecided() {
        assert!(is_undecided(&[0.8, 0.9, 1.0, 1.1, 1.2]));
        assert!(!is_undecided(&[0.97, 0.99, 1.0, 1.01, 1.03]), "equal");
        assert!(!is_undecided(&[0.5, 0.6, 0.7, 0.8, 0.9]), "better");
        assert!(!is_undecided(&[0.5, 1.5]), "too few to tell");
    }

    #[test]
    fn ratios_pair_within_a_round() {
        // The machine is twice as slow in round 2: the ratio does not notice.
        let ours = [Some(10.0), Some(20.0), None, Some(5.0)];
        let base = [Some(5.0), Some(10.0), Some(1.0), Some(0.0)];
        let ratio = paired_ratio(&ours, &base).unwrap();
        assert_eq!((ratio.median, ratio.min, ratio.max, ratio.count), (2.0, 2.0, 2.0, 2));
        assert_eq!(paired_ratio(&[None], &[Some(1.0)]), None);
    }
}
