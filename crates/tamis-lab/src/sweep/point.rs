//! The points of a sweep, in the order in which they run.
//!
//! Axes that the baseline names are innermost, together with axes that depend on these. So each combination
//! of the outer axes has its own baseline, which runs before the points that are compared with it. A sweep
//! without a baseline compares with its first point. At a baseline, a dependent axis gets its value from its
//! own conditions. It has no value if the outer axes leave it without one.

use super::file::{Argument, Axis, AxisValue, Explicit, SweepFile, Values, Written};

/// One point: a configuration that runs once for each seed.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepPoint {
    /// Labels of the axes that have a value here.
    pub labels: Vec<(String, String)>,
    /// Overrides on top of the base.
    pub set: Vec<Argument>,
    /// Index of the point that it is compared with. A baseline has its own index.
    pub baseline: usize,
}

impl SweepPoint {
    /// The label of an axis.
    pub fn label(&self, axis: &str) -> Option<&str> {
        self.labels.iter().find(|(name, _)| name == axis).map(|(_, label)| label.as_str())
    }

    /// Whether it has one of the requested values of each axis.
    pub fn fulfils(&self, values: &Values) -> bool {
        fulfils(&self.labels, values)
    }
}

/// One of several values of an axis.
type Condition = (Written, Vec<Written>);

fn holds(labels: &[(String, String)], (axis, wanted): &Condition) -> bool {
    let label = labels.iter().find(|(name, _)| *name == axis.text).map(|(_, label)| label);
    wanted.iter().any(|wanted| Some(&wanted.text) == label)
}

fn fulfils(labels: &[(String, String)], values: &Values) -> bool {
    values.iter().all(|condition| holds(labels, condition))
}

/// Values chosen so far, and their overrides.
#[derive(Clone, Default)]
struct Chosen {
    labels: Vec<(String, String)>,
    set: Vec<Argument>,
}

impl Chosen {
    fn with(&self, axis: &Axis, value: &AxisValue) -> Self {
        let mut chosen = self.clone();
        chosen.labels.push((axis.name.text.clone(), value.label.text.clone()));
        chosen.set.extend(value.set.iter().cloned());
        chosen
    }

    /// Adds a listed point. `has_value` returns whether an axis that it names has a value.
    fn with_explicit(
        &self,
        explicit: &Explicit,
        sweep: &SweepFile,
        has_value: impl Fn(&Written) -> bool,
    ) -> Self {
        let mut chosen = self.clone();
        for (name, values) in explicit.at.iter().filter(|(name, _)| has_value(name)) {
            let (Some(axis), Some(value)) =
                (sweep.axes.iter().find(|axis| axis.name.text == name.text), values.first())
            else {
                continue;
            };
            let known =
                axis.cases.iter().flat_map(|case| &case.values).find(|known| known.label.text == value.text);
            let value = known.cloned().unwrap_or_else(|| sweep.value_of(axis, value));
            chosen = chosen.with(axis, &value);
        }
        for (name, values) in explicit.labels.iter().filter(|(name, _)| has_value(name)) {
            if let Some(value) = values.first() {
                chosen.labels.push((name.text.clone(), value.text.clone()));
            }
        }
        chosen.set.extend(explicit.set.iter().cloned());
        chosen
    }
}

/// All combinations of some axes, the first the slowest. An axis without a fulfilled condition has no value.
fn combine(axes: &[&Axis], chosen: &Chosen, found: &mut Vec<Chosen>) {
    let Some((axis, rest)) = axes.split_first() else {
        found.push(chosen.clone());
        return;
    };
    let cases = axis.cases.iter().filter(|case| fulfils(&chosen.labels, &case.when));
    let values: Vec<&AxisValue> = cases.flat_map(|case| &case.values).collect();
    if values.is_empty() {
        combine(rest, chosen, found);
    }
    for value in values {
        combine(rest, &chosen.with(axis, value), found);
    }
}

/// The points of a sweep. Grid points with a baseline's values are not repeated.
pub fn points(sweep: &SweepFile) -> Vec<SweepPoint> {
    let named: Vec<&str> = sweep.baseline.as_ref().map(Explicit::axes).unwrap_or_default();
    let mut inner_names = named.clone();
    // Axes that depend on one of them are inner axes, too.
    for axis in &sweep.axes {
        let mut conditions = axis.cases.iter().flat_map(|case| &case.when);
        if conditions.any(|(name, _)| inner_names.contains(&name.text.as_str())) {
            inner_names.push(&axis.name.text);
        }
    }
    let (inner, outer): (Vec<&Axis>, Vec<&Axis>) =
        sweep.axes.iter().partition(|axis| inner_names.contains(&axis.name.text.as_str()));
    let dependent: Vec<&Axis> =
        inner.iter().copied().filter(|axis| !named.contains(&axis.name.text.as_str())).collect();
    let mut found: Vec<SweepPoint> = Vec::new();
    let mut outer_points = Vec::new();
    combine(&outer, &Chosen::default(), &mut outer_points);
    for at in outer_points {
        let mut baseline = 0;
        let mut inside = Vec::new();
        if let Some(explicit) = &sweep.baseline {
            baseline = found.len();
            // If an axis has no value beside those of the outer axes, it has none at the baseline either.
            let has_value = |name: &Written| {
                sweep.axes.iter().filter(|axis| axis.name.text == name.text).all(|axis| {
                    let is_outer = |(name, _): &&Condition| !inner_names.contains(&name.text.as_str());
                    axis.cases.is_empty()
                        || axis.cases.iter().any(|case| {
                            case.when.iter().filter(is_outer).all(|condition| holds(&at.labels, condition))
                        })
                })
            };
            let own = at.with_explicit(explicit, sweep, has_value);
            combine(&dependent, &own, &mut inside);
        }
        // A sweep without axes has no grid. It has one point, unless the file lists others.
        if !(sweep.axes.is_empty() && (sweep.baseline.is_some() || !sweep.list.is_empty())) {
            combine(&inner, &at, &mut inside);
        }
        for Chosen { labels, set } in inside {
            let is_there = |point: &SweepPoint| same(&point.labels, &labels);
            if sweep.baseline.is_none() || !found.iter().any(is_there) {
                found.push(SweepPoint { labels, set, baseline });
            }
        }
    }
    for explicit in &sweep.list {
        let Chosen { labels, set } = Chosen::default().with_explicit(explicit, sweep, |_| true);
        // The baseline with the same values on the outer axes.
        let agrees = |point: &SweepPoint| {
            outer.iter().all(|axis| {
                let of = |labels: &[(String, String)]| {
                    labels.iter().find(|(name, _)| *name == axis.name.text).map(|(_, label)| label.clone())
                };
                of(&point.labels) == of(&labels)
            })
        };
        let own = found.iter().enumerate().find(|(at, point)| point.baseline == *at && agrees(point));
        let baseline = own.map_or(0, |(at, _)| at);
        found.push(SweepPoint { labels, set, baseline });
    }
    found
}

/// Whether two points have the same values in any order.
fn same(left: &[(String, String)], right: &[(String, String)]) -> bool {
    left.len() == right.len() && left.iter().all(|pair| right.contains(pair))
}
