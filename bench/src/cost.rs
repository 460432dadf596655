//! The cost of an operation, from a few batches of many.

use crate::{Outcome, clock};
use serde::{Deserialize, Serialize};

/// Batches that a sample is measured in.
const BATCHES: usize = 5;

/// Microseconds per operation: of the median batch, the fastest and the slowest.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Cost {
    pub microseconds: f64,
    pub microseconds_min: f64,
    pub microseconds_max: f64,
}

impl Cost {
    /// Of several samples, one after the other: the median of their medians, and all extremes. `None`: there are none.
    pub fn of_all(mut samples: Vec<Self>) -> Option<Self> {
        samples.sort_by(|a, b| a.microseconds.total_cmp(&b.microseconds));
        let microseconds = samples.get(samples.len() / 2)?.microseconds;
        let microseconds_min = samples.iter().map(|sample| sample.microseconds_min).fold(f64::INFINITY, f64::min);
        let microseconds_max = samples.iter().map(|sample| sample.microseconds_max).fold(0.0, f64::max);
        Some(Self { microseconds, microseconds_min, microseconds_max })
    }
}

/// Does the work for each, in five batches one after the other. Stops at the first failure.
pub fn batches<T>(all: &[T], mut work: impl FnMut(&T) -> Outcome) -> Outcome<Cost> {
    let length = all.len().div_ceil(BATCHES).max(1);
    let mut costs = Vec::new();
    for batch in all.chunks(length) {
        let begin = clock::now();
        batch.iter().try_for_each(&mut work)?;
        costs.push((clock::now() - begin) * 1e6 / batch.len() as f64);
    }
    costs.sort_by(f64::total_cmp);
    let at = |index: usize| costs.get(index).copied().unwrap_or(0.0);
    Ok(Cost {
        microseconds: at(costs.len() / 2),
        microseconds_min: at(0),
        microseconds_max: at(costs.len().saturating_sub(1)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_become_one_with_all_extremes() {
        let cost = |microseconds, microseconds_min, microseconds_max| Cost {
            microseconds,
            microseconds_min,
            microseconds_max,
        };
        let all = Cost::of_all(vec![cost(9.0, 2.0, 9.0), cost(3.0, 3.0, 4.0), cost(5.0, 1.0, 6.0)]);
        assert_eq!(all, Some(cost(5.0, 1.0, 9.0)));
        assert_eq!(Cost::of_all(Vec::new()), None);
    }
}
