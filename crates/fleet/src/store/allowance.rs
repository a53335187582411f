//! The part of a quota that a node may spend without asking again.

/// Least and largest allowance of a user with traffic, in bytes.
const LEAST: u64 = 16 << 20;
const MOST: u64 = 1 << 30;
/// A user near its end gets this much at once, in bytes, so that it reaches the end.
const LAST: u64 = 64 << 10;
/// A node gets so small a part of the rest: other nodes have theirs. Chosen by simulation with equal rates.
const PART: u64 = 8;

/// The bytes that a user may spend from here until the next answer, with `total` used of `quota` over all nodes.
///
/// `A = min(R / 8, L)`, `R = quota - total`, `L = clamp(quota / 200, 16 MiB, 1 GiB)`.
pub fn allowance(quota: u64, total: u64) -> u64 {
    let rest = quota.saturating_sub(total);
    (rest / PART).min(bound(quota)).max(rest.min(LAST))
}

/// The same for a user that the store has never been asked about from here, while it is away.
pub fn first_allowance(quota: u64, used: u64) -> u64 {
    bound(quota).min(LEAST).min(quota.saturating_sub(used))
}

/// The largest allowance for a quota.
fn bound(quota: u64) -> u64 {
    (quota / 200).clamp(LEAST, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn allowances() {
        assert_eq!(allowance(20 * GIB, 0), 20 * GIB / 200);
        assert_eq!(allowance(1000 * GIB, 0), GIB);
        assert_eq!(allowance(GIB, GIB - (80 << 20)), 10 << 20);
        assert_eq!(allowance(GIB, GIB - 1000), 1000, "the rest is reached");
        assert_eq!((allowance(GIB, GIB), allowance(GIB, 2 * GIB)), (0, 0));
        assert_eq!(first_allowance(20 * GIB, 0), 16 << 20);
        assert_eq!((first_allowance(1000, 0), first_allowance(1000, 5000)), (1000, 0));
    }

    /// Nodes that are cut off overshoot by no more than their allowances (fleet notes, 3.4).
    #[test]
    fn the_overshoot_is_bounded() {
        let quota = 2 * GIB;
        for (nodes, cut) in [(3_usize, 1_usize), (10, 5), (40, 10)] {
            let (rate, step) = (12_500_000_u64, 5_u64);
            let mut spent = vec![0_u64; nodes];
            let mut may = vec![first_allowance(quota, 0); nodes];
            let mut total = 0;
            for second in 0..2000_u64 {
                if second % step == 0 {
                    total = spent.iter().skip(if second > 0 { cut } else { 0 }).sum::<u64>();
                    for (node, may) in may.iter_mut().enumerate() {
                        if second == 0 || node >= cut {
                            *may = spent[node] + allowance(quota, total);
                        }
                    }
                }
                for (spent, may) in spent.iter_mut().zip(&may) {
                    *spent = (*spent + rate).min(*may);
                }
            }
            let all: u64 = spent.iter().sum();
            let most = (nodes - cut) as u64 * rate * step + cut as u64 * bound(quota);
            assert!(all <= quota + most, "{nodes} nodes, {cut} cut: {all} over {quota} + {most}");
            assert!(total >= quota - cut as u64 * bound(quota), "the end is reached: {total}");
        }
    }
}
