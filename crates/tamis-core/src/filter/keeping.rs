//! Only flags: which of many groups are kept, for callers that need no reasons or statistics.

use super::{Filter, GroupStatistics, Scope, Verdict};

/// Number of groups whose statistics are held at a time: few enough to stay in a cache.
const CHUNK: usize = 512;

/// Takes groups one by one and returns which of them [`judge_columns`](super::judge_columns) keeps.
///
/// A filter that judges each group by itself holds the statistics of some hundred groups at a time; one that
/// compares groups holds all until the end. The outcome scale only names reasons, so none is needed.
///
/// ```
/// use tamis_core::filter::{Keeping, Variance};
/// let filter = Variance::default();
/// let mut keeping = Keeping::new(&filter, 3);
/// for group in [[1.0, 0.0], [1.0, 1.0], [f64::NAN, 1.0]] {
///     keeping.push(&group);
/// }
/// assert_eq!(keeping.finish(), [true, false, false]);
/// ```
pub struct Keeping<'a> {
    filter: &'a dyn Filter,
    waiting: Vec<GroupStatistics>,
    kept: Vec<bool>,
}

impl<'a> Keeping<'a> {
    /// With room for the flags of `num_groups` groups.
    pub fn new(filter: &'a dyn Filter, num_groups: usize) -> Self {
        let waiting = Vec::with_capacity(num_groups.min(CHUNK));
        Self { filter, waiting, kept: Vec::with_capacity(num_groups) }
    }

    /// Takes the next group's metric \[G\].
    pub fn push(&mut self, group: &[f64]) {
        self.waiting.push(GroupStatistics::of(group, None));
        if self.waiting.len() >= CHUNK && self.filter.scope() == Scope::Point {
            self.judge();
        }
    }

    fn judge(&mut self) {
        self.kept.extend(self.filter.judge(&self.waiting, None).into_iter().map(Verdict::is_kept));
        self.waiting.clear();
    }

    /// One flag per group \[P\], in the order of the groups.
    pub fn finish(mut self) -> Vec<bool> {
        self.judge();
        self.kept
    }
}
