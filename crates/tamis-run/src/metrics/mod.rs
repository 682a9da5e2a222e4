//! The metrics of one step, by name.
//!
//! Data flows one way. The step computes numbers (batch, objective, [`timings`]) and sets them here
//! under a name that the [`catalogue`] defines. [`Metrics::add_aliases`] repeats some under the name
//! that TRL's users know, and the [loggers](crate::log) write them.

use std::collections::BTreeMap;

pub mod catalogue;
pub mod summary;
pub mod timings;

/// What `acc` means beside pass@k, in one sentence. `is_graded`: it has other values than 0 and 1.
pub fn about_acc(is_graded: bool) -> &'static str {
    if is_graded {
        "acc has other values than 0 and 1 here: its mean is no accuracy, and pass@k counts a completion as right if acc is at \
         least 1"
    } else {
        "acc is 1 for a right completion and 0 for a wrong one: its mean, the accuracy, is pass@1, and pass@k is the chance that one \
         of k is right"
    }
}

/// Named numbers in the order in which they were set.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Metrics {
    entries: Vec<(String, f64)>,
    places: BTreeMap<String, usize>,
}

impl Metrics {
    /// No metrics.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a metric; a name set before keeps its place and takes the new value.
    ///
    /// # Panics
    /// In builds with debug assertions, if the catalogue does not define the name: a test that emits it
    /// fails. In a release build such a metric is kept.
    pub fn set(&mut self, name: impl Into<String>, value: f64) {
        let name = name.into();
        debug_assert!(catalogue::find(&name).is_some(), "the catalogue does not define the metric `{name}`");
        self.insert(name, value);
    }

    fn insert(&mut self, name: String, value: f64) {
        if let Some(&place) = self.places.get(&name) {
            self.entries[place].1 = value;
        } else {
            self.places.insert(name.clone(), self.entries.len());
            self.entries.push((name, value));
        }
    }

    /// Sets a metric if there is a value.
    pub fn set_some(&mut self, name: impl Into<String>, value: Option<f64>) {
        if let Some(value) = value {
            self.set(name, value);
        }
    }

    /// Sets several metrics.
    pub fn extend<N: Into<String>>(&mut self, named: impl IntoIterator<Item = (N, f64)>) {
        for (name, value) in named {
            self.set(name, value);
        }
    }

    /// The value under a name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.places.get(name).map(|&place| self.entries[place].1)
    }

    /// Names and values in the order in which they were set.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.entries.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// Number of metrics.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds, for every metric that has one, the second name of the catalogue's table of aliases, with the
    /// same value. A name that is set already keeps its value.
    pub fn add_aliases(&mut self) {
        for (alias, original) in catalogue::aliases() {
            if let (None, Some(value)) = (self.get(alias), self.get(original)) {
                self.insert(alias.to_owned(), value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_replacement() {
        let mut metrics = Metrics::new();
        metrics.set("actor/lr", 1.0);
        metrics.set("actor/grad_norm", 2.0);
        metrics.set("actor/lr", 3.0);
        assert_eq!(metrics.iter().collect::<Vec<_>>(), [("actor/lr", 3.0), ("actor/grad_norm", 2.0)]);
        assert_eq!(metrics.get("actor/lr"), Some(3.0));
        assert_eq!(metrics.get("actor/entropy"), None);
    }

    #[test]
    #[should_panic(expected = "does not define the metric `actor/lrr`")]
    fn a_name_outside_the_catalogue_fails_a_test() {
        Metrics::new().set("actor/lrr", 1.0);
    }

    #[test]
    fn aliases_repeat_values() {
        let mut metrics = Metrics::new();
        metrics.set("actor/lr", 0.25);
        metrics.set("critic/rewards/mean", 0.5);
        metrics.add_aliases();
        assert_eq!(metrics.get("learning_rate"), Some(0.25));
        assert_eq!(metrics.get("reward"), Some(0.5));
        assert_eq!(metrics.get("grad_norm"), None, "nothing to repeat");
        metrics.set("learning_rate", 7.0);
        metrics.add_aliases();
        assert_eq!(metrics.get("learning_rate"), Some(7.0));
    }
}
