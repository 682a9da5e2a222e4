//! The numbers in a value, and whether they are in a key's range.

use serde_json::Value as Json;
use tamis_core::setting::{Check, Shape, TimeSpan};

/// The numbers in a value that a [`Check`] checks.
pub(super) struct Numbers {
    all: Vec<f64>,
    /// The numbers that the engine uses in single precision.
    pub(super) reals: Vec<f64>,
    is_empty: bool,
}

impl Numbers {
    /// The numbers of a value that was read by its shape; times are in seconds.
    pub(super) fn of(value: &Json, shape: &Shape) -> Self {
        let mut found = Self { all: Vec::new(), reals: Vec::new(), is_empty: false };
        let shape = shape.without_null();
        match value {
            Json::String(text) if matches!(shape, Shape::TimeSpan) => {
                found.all.extend(TimeSpan::parse(text).map(|TimeSpan(span)| span.as_secs_f64()));
            }
            Json::Number(number) => {
                found.all.extend(number.as_f64());
                found.reals.extend(number.as_f64().filter(|_| number.is_f64()));
            }
            Json::String(text) => found.is_empty = text.is_empty(),
            Json::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    let item = Self::of(item, &shape.of_key(&index.to_string()));
                    found.all.extend(item.all);
                    found.reals.extend(item.reals);
                }
                found.is_empty = items.is_empty();
            }
            Json::Null | Json::Bool(_) | Json::Object(_) => {}
        }
        found
    }

    pub(super) fn fulfil(&self, check: Check) -> bool {
        !(check == Check::NotEmpty && self.is_empty) && self.all.iter().all(|&number| check.holds(number))
    }

    pub(super) fn fit_single(&self, check: Check) -> bool {
        self.reals.iter().all(|&number| check.holds_single(number))
    }
}

#[cfg(test)]
#[allow(unreachable_pub, reason = "the macros define public types, as outside of tests")]
mod tests {
    use super::*;
    use crate::reader::Reader;
    use crate::source::{Source, SourceKind};
    use crate::value::{ByteSize, Frequency};

    tamis_core::settings! {
        /// Keys whose numbers are written with units.
        pub struct Own {
            /// A time.
            wait: TimeSpan = TimeSpan::seconds(5), Between(2.0, 60.0), Free;
            /// A time, or none.
            limit: Option<TimeSpan> = None, GreaterThan(1.0), Free;
            /// Times.
            several: Vec<TimeSpan> = vec![TimeSpan::seconds(3)], AtLeast(2.0);
            /// Memory.
            memory: ByteSize = ByteSize(1024), AtLeast(1024.0), Free;
            /// An interval.
            every: Frequency = Frequency::every(3), AtLeast(2.0), Free;
        }
    }

    #[test]
    fn ranges_hold_for_numbers_with_units() {
        let messages = |yaml: &str| {
            let node = crate::yaml::parse(&Source::new(SourceKind::Default, yaml)).expect(yaml);
            let mut reader = Reader::default();
            reader.read::<Own>(&node, "").expect("defaults stand in");
            reader.into_diagnostics().iter().map(|found| found.problem.to_string()).collect::<Vec<_>>()
        };
        for allowed in ["{}", "{wait: 60s, limit: 2s, memory: 2KiB, every: 2, several: [2, 1h]}"] {
            assert_eq!(messages(allowed), [""; 0], "{allowed}");
        }
        for (refused, condition) in [
            ("wait: 1s", "`wait` must be from 2 to 60, got 1s"),
            ("wait: 2m", "`wait` must be from 2 to 60, got 2m"),
            ("limit: 500ms", "`limit` must be greater than 1, got 500ms"),
            ("memory: 1000", "`memory` must be at least 1024, got 1000"),
            ("every: 1", "`every` must be at least 2, got 1"),
            ("several: [2s, 1s]", "`several` must be at least 2, got [\"2s\",\"1s\"]"),
        ] {
            assert_eq!(messages(refused), [condition], "{refused}");
        }
    }
}
