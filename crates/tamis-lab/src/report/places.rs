//! The places of a chart: steps, or several steps to a place if there are too many.

use super::run::Run;
use crate::chart::lines::Point;

/// Largest number of places in a chart.
const MOST: usize = 200;

/// Equal ranges of steps, from the first on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Places {
    first: u64,
    pub(crate) width: u64,
    pub(crate) count: usize,
}

impl Places {
    /// At most so many places for the steps between these two.
    pub(crate) fn new(first: u64, last: u64, most: usize) -> Self {
        let num_steps = last.saturating_sub(first).saturating_add(1);
        let width = num_steps.div_ceil(most.max(1) as u64).max(1);
        Self { first, width, count: num_steps.div_ceil(width) as usize }
    }

    /// For charts of several runs, or of one.
    pub(crate) fn of_runs(runs: &[Run]) -> Self {
        let steps = || runs.iter().flat_map(Run::steps);
        Self::new(steps().min().unwrap_or(0), steps().max().unwrap_or(0), MOST)
    }

    /// For charts of one run. Its validation before the first step has nothing that they show.
    pub(crate) fn of_run(run: &Run) -> Self {
        let steps = || run.steps().filter(|step| *step > 0);
        Self::new(steps().min().unwrap_or(0), steps().max().unwrap_or(0), MOST)
    }

    /// The place of a step; `None` outside.
    pub(crate) fn of(self, step: u64) -> Option<usize> {
        let place = (step.checked_sub(self.first)? / self.width) as usize;
        (place < self.count).then_some(place)
    }

    /// The position of a place on the axis: the middle of its steps.
    pub(crate) fn at(self, place: usize) -> f64 {
        self.first as f64 + place as f64 * self.width as f64 + (self.width - 1) as f64 / 2.0
    }

    /// Its name in a table: `7`, or `7–9` for several steps.
    pub(crate) fn name(self, place: usize) -> String {
        let first = self.first + place as u64 * self.width;
        if self.width == 1 { first.to_string() } else { format!("{first}–{}", first + self.width - 1) }
    }

    /// The name of the place at that position on the axis.
    pub(crate) fn name_at(self, at: f64) -> String {
        self.of(at as u64).map_or_else(String::new, |place| self.name(place))
    }

    /// All places: the position of each, and its name.
    pub(crate) fn named(self) -> Vec<(f64, String)> {
        (0..self.count).map(|place| (self.at(place), self.name(place))).collect()
    }

    /// The ends of the axis: the first and the last step of all places.
    pub(crate) fn bounds(self) -> (f64, f64) {
        let last = (self.count as u64 * self.width).saturating_sub(1);
        (self.first as f64, (self.first + last) as f64)
    }

    /// Values of steps by place: their mean, with the smallest and the largest. A place with an infinite
    /// value is infinite.
    pub(crate) fn gather(self, values: impl Iterator<Item = (u64, f64)>) -> Vec<Option<Point>> {
        let mut sums: Vec<Option<(f64, f64, Point)>> = vec![None; self.count];
        for (step, value) in values.filter(|(_, value)| !value.is_nan()) {
            let Some(place) = self.of(step) else { continue };
            let Some(slot) = sums.get_mut(place) else { continue };
            let (sum, count, point) = slot.unwrap_or((0.0, 0.0, Point::one(self.at(place), value)));
            let point = Point { least: point.least.min(value), most: point.most.max(value), ..point };
            *slot = Some((sum + value, count + 1.0, point));
        }
        let mean = |(sum, count, point): (f64, f64, Point)| {
            let mean = sum / count;
            // Infinities of both signs have no mean.
            let value = if mean.is_nan() { point.most } else { mean };
            Point { value, ..point }
        };
        sums.into_iter().map(|slot| slot.map(mean)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_steps_to_a_place_as_it_takes() {
        let few = Places::new(1, 10, 20);
        assert_eq!(
            (few.width, few.count, few.of(1), few.of(10), few.of(0), few.of(11)),
            (1, 10, Some(0), Some(9), None, None)
        );
        assert_eq!(few.name(3), "4");
        let many = Places::new(1, 10, 4);
        assert_eq!(
            (many.width, many.count, many.of(3), many.of(4), many.of(10)),
            (3, 4, Some(0), Some(1), Some(3))
        );
        assert_eq!((many.name(0), many.at(0)), ("1–3".to_owned(), 2.0));
        let of_two = Places::new(1, 4, 2);
        assert_eq!(of_two.named(), [(1.5, "1–2".to_owned()), (3.5, "3–4".to_owned())]);
        assert_eq!([1.5, 3.5].map(|at| of_two.name_at(at)), ["1–2", "3–4"]);
        assert_eq!(Places::new(5, 5, 100).bounds(), (5.0, 5.0));
    }

    #[test]
    fn a_place_has_the_mean_of_its_steps_and_their_bounds() {
        let places = Places::new(1, 4, 2);
        let found = places.gather([(1, 1.0), (2, 3.0), (4, f64::INFINITY), (3, f64::NAN)].into_iter());
        assert_eq!(found[0], Some(Point { at: 1.5, value: 2.0, least: 1.0, most: 3.0 }));
        assert_eq!(found[1].map(|point| point.value), Some(f64::INFINITY));
        assert_eq!(places.gather([(9, 1.0)].into_iter()), [None, None]);
    }
}
