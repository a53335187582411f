//! A straight line through a figure over time.

/// A line by least squares.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trend {
    /// Mean of the values.
    pub(super) mean: f64,
    /// Rise in percent of the mean, by unit of time.
    pub(super) slope: f64,
    /// Two standard errors of the slope, as if the points did not depend on each other.
    pub(super) error: f64,
}

impl Trend {
    /// The line through points of time and value; `None` for fewer than ten, or if they say nothing.
    pub(super) fn of(points: &[(f64, f64)]) -> Option<Self> {
        const LEAST: usize = 10;
        let count = points.len() as f64;
        let mean_of = |pick: fn(&(f64, f64)) -> f64| points.iter().map(pick).sum::<f64>() / count;
        let (middle, mean) = (mean_of(|point| point.0), mean_of(|point| point.1));
        let spread: f64 = points.iter().map(|(time, _)| (time - middle).powi(2)).sum();
        if points.len() < LEAST || spread <= 0.0 || mean <= 0.0 {
            return None;
        }
        let slope = points.iter().map(|(time, value)| (time - middle) * (value - mean)).sum::<f64>() / spread;
        let rest: f64 =
            points.iter().map(|(time, value)| (value - mean - slope * (time - middle)).powi(2)).sum();
        let error = 2.0 * (rest / (count - 2.0) / spread).sqrt();
        let percent = 100.0 / mean;
        Some(Self { mean, slope: slope * percent, error: error * percent })
    }
}

/// Whether a figure rises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// By no more than it may.
    Flat,
    /// The slope is above the bar, but by less than its error.
    Unclear,
    /// Above the bar.
    Rises,
    /// There are too few samples.
    Short,
}

impl Verdict {
    /// Of a line that may rise by `most` percent.
    pub(super) fn of(trend: Option<Trend>, most: f64) -> Self {
        match trend {
            None => Self::Short,
            Some(trend) if trend.slope <= most => Self::Flat,
            Some(trend) if trend.slope - trend.error <= most => Self::Unclear,
            Some(_) => Self::Rises,
        }
    }

    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Flat => "flat",
            Self::Unclear => "within its error",
            Self::Rises => "rises",
            Self::Short => "too short to tell",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_slope_and_no_error() {
        let points: Vec<(f64, f64)> = (0..20).map(|n| (f64::from(n) / 10.0, 100.0 + f64::from(n))).collect();
        let trend = Trend::of(&points).unwrap();
        assert!(
            (trend.mean - 109.5).abs() < 1e-9 && (trend.slope - 1000.0 / 109.5).abs() < 1e-9,
            "{trend:?}"
        );
        assert!(trend.error < 1e-6);
        assert_eq!(Verdict::of(Some(trend), 9.0), Verdict::Rises);
        assert_eq!(Verdict::of(Some(trend), 9.2), Verdict::Flat);
    }

    #[test]
    fn noise_is_no_rise() {
        // Values jump by a tenth; the line rises by some percent, which says nothing.
        let noisy = |n: u32| 100.0 + if n.is_multiple_of(2) { 5.0 } else { -5.0 } + f64::from(n) / 5.0;
        let points: Vec<(f64, f64)> = (0..20).map(|n| (f64::from(n) / 20.0, noisy(n))).collect();
        assert_eq!(Verdict::of(Trend::of(&points), 0.1), Verdict::Unclear);
    }

    #[test]
    fn too_little_is_said_to_be_so() {
        assert!(Trend::of(&[]).is_none() && Trend::of(&[(0.0, 1.0); 9]).is_none());
        assert!(Trend::of(&[(1.0, 1.0); 20]).is_none(), "no time has passed");
        assert_eq!(Verdict::of(None, 1.0), Verdict::Short);
    }
}
