//! The cost of an operation, from a few batches of many.

use crate::{Outcome, clock};
use serde::Serialize;

/// Batches that a sample is measured in.
const BATCHES: usize = 5;

/// Microseconds per operation: of the median batch, the fastest and the slowest.
#[derive(Serialize)]
pub struct Cost {
    pub microseconds: f64,
    pub microseconds_min: f64,
    pub microseconds_max: f64,
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
