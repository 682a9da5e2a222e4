//! Settings that describe themselves: everything that `tamis-config` needs to read a type of this crate from
//! a configuration.
//!
//! An algorithm's keys are written once, in its own file, with one of three macros:
//!
//! | macro | what it defines | example |
//! |---|---|---|
//! | [`choice!`](crate::choice) | named values | `filter.singleton: keep` or `drop` |
//! | [`settings!`](crate::settings) | a struct whose fields are keys | the keys of the filter `variance` |
//! | [`tagged!`](crate::tagged) | an enum whose variants are such structs, chosen by the key `kind` | `filter: {kind: variance, tolerance: 0.1}` |
//!
//! The definition yields the Rust type, its serialised form, its default and its [`Shape`]. The configuration
//! reader takes types, conditions and defaults from the shape; the JSON Schema, the reference pages and
//! `tamis explain` are generated from it.

mod macros;
mod shape;
mod value;

use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::ser::SerializeMap;
use serde::{Deserialize as _, Deserializer, Serialize};
use thiserror::Error;

use crate::figure::shortest;

pub use value::{ModelPlace, PYTHON_OF_RUN, Program, TimeSpan};

pub use shape::{Check, Form, KeySpec, PathKind, Resume, Shape, Variant, doc_text, or_null};

/// A type that a configuration key can have, described by its owner.
///
/// The serialised form of a value is what a configuration would hold. The reader checks a configuration
/// against the shape and fills in defaults before it deserialises, so a type only has to describe its form.
pub trait Described: Serialize + DeserializeOwned {
    /// Shape of the type.
    fn shape() -> Shape;

    /// The numbers in the value to which a range applies. A length of time counts in seconds.
    fn numbers(&self) -> Vec<f64> {
        Vec::new()
    }
}

macro_rules! numbers {
    ($($type:ty = $shape:ident),*) => {$(
        impl Described for $type {
            fn shape() -> Shape {
                Shape::$shape
            }

            #[allow(clippy::cast_lossless, reason = "some of the types cannot be converted without")]
            fn numbers(&self) -> Vec<f64> {
                vec![*self as f64]
            }
        }
    )*};
}

numbers! { u8 = Integer, u32 = Integer, u64 = Integer, usize = Integer, f64 = Number }

impl Described for bool {
    fn shape() -> Shape {
        Shape::Bool
    }
}

impl Described for String {
    fn shape() -> Shape {
        Shape::Text("text")
    }
}

impl Described for PathBuf {
    fn shape() -> Shape {
        Shape::Path(PathKind::Path)
    }
}

impl Described for serde_json::Map<String, serde_json::Value> {
    fn shape() -> Shape {
        Shape::Free
    }
}

impl<T: Described> Described for Option<T> {
    fn shape() -> Shape {
        Shape::Nullable(Box::new(T::shape()))
    }

    fn numbers(&self) -> Vec<f64> {
        self.as_ref().map(T::numbers).unwrap_or_default()
    }
}

impl Described for [f64; 2] {
    fn shape() -> Shape {
        Shape::Tuple(Box::new(Shape::Number), 2)
    }

    fn numbers(&self) -> Vec<f64> {
        self.to_vec()
    }
}

impl<T: Described> Described for Vec<T> {
    fn shape() -> Shape {
        Shape::List(Box::new(T::shape()))
    }

    fn numbers(&self) -> Vec<f64> {
        self.iter().flat_map(T::numbers).collect()
    }
}

/// Keys with their values, as a configuration or a state file writes them.
pub type Keys = serde_json::Map<String, serde_json::Value>;

/// A struct that [`settings!`](crate::settings) defines, as a part of a mapping. The mapping may also hold
/// the keys of another such struct and the `kind` of a tagged section.
pub trait Settings: Described {
    /// Whether its keys come before those of a struct that includes it, as a `kind` does.
    const LEADS: bool = false;

    /// Writes its keys.
    fn write_keys<M: SerializeMap>(&self, keys: &mut M) -> Result<(), M::Error>;

    /// Takes its keys out of a mapping. A missing key gets its default.
    ///
    /// # Errors
    /// A key without a default is missing, or its type does not accept the value.
    fn take_keys(keys: &mut Keys) -> Result<Self, String>;
}

/// A struct that [`settings!`](crate::settings) defines, whose values may be out of range. Configurations are
/// checked when they are read; code that fills in the fields calls [`Ranged::check_ranges`].
pub trait Ranged {
    /// Whether every number is finite and fulfils the check of its key.
    fn check_ranges(&self) -> Result<(), OutOfRange>;
}

/// A setting outside its range.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
#[error("setting `{key}` is {}; expected a finite number{}", shortest(*.value), .check.describe().map_or_else(String::new, |check| format!(", {check}")))]
pub struct OutOfRange {
    /// Name of the key.
    pub key: &'static str,
    /// The value given.
    pub value: f64,
    /// The key's check.
    pub check: Check,
}

/// Whether every number of a key's value is in range.
pub fn check_range<T: Described>(key: &'static str, value: &T, check: Check) -> Result<(), OutOfRange> {
    let outside = value.numbers().into_iter().find(|value| !(value.is_finite() && check.holds(*value)));
    outside.map_or(Ok(()), |value| Err(OutOfRange { key, value, check }))
}

/// A struct that [`tagged!`](crate::tagged) registers under a name.
pub trait Named {
    /// The name, as a configuration writes it under `kind`.
    fn name(&self) -> &'static str;
}

/// Removes a key from the mapping and returns its value; `None` if it is missing.
///
/// # Errors
/// The name of the key, if its type does not accept the value.
pub fn take_key<T: DeserializeOwned>(keys: &mut Keys, key: &str) -> Result<Option<T>, String> {
    let value = keys.remove(key).map(serde_json::from_value).transpose();
    value.map_err(|error| format!("`{key}`: {error}"))
}

/// Removes a key that has no default, and returns its value.
pub fn take_required<T: DeserializeOwned>(keys: &mut Keys, key: &str) -> Result<T, String> {
    take_key(keys, key)?.ok_or_else(|| format!("`{key}` is missing"))
}

/// Settings from a mapping that holds their keys and no others.
pub fn of_keys<T: Settings>(mut keys: Keys) -> Result<T, String> {
    let settings = T::take_keys(&mut keys)?;
    match keys.keys().next() {
        None => Ok(settings),
        Some(unknown) => {
            let known: Vec<_> = keys_of::<T>().iter().map(|spec| spec.name).collect();
            Err(format!("there is no key `{unknown}`: there are {}", known.join(", ")))
        }
    }
}

/// The keys of a type that [`settings!`](crate::settings) defines.
pub fn keys_of<T: Described>() -> Vec<KeySpec> {
    match T::shape() {
        Shape::Section { keys, .. } => keys,
        _ => Vec::new(),
    }
}

/// The shape of a struct that includes the keys of another struct, or of an enum with its `kind`.
pub fn taking_in(doc: &'static str, mut keys: Vec<KeySpec>, rest: Shape) -> Shape {
    match rest {
        Shape::Tagged { mut common, variants, default, .. } => {
            common.append(&mut keys);
            Shape::Tagged { doc, common, variants, default }
        }
        rest => {
            if let Shape::Section { keys: mut shared, .. } = rest {
                keys.append(&mut shared);
            }
            Shape::Section { doc, keys }
        }
    }
}

/// Whether a value is equal to what the name of its kind gives without further keys.
pub fn is_plain_kind<T: DeserializeOwned + PartialEq>(value: &T, kind: &str) -> bool {
    serde_json::from_value(serde_json::json!({ "kind": kind })).is_ok_and(|plain: T| plain == *value)
}

/// The keys of a tagged section, in which the name of a kind may replace the section.
pub fn keys_or_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Keys, D::Error> {
    match serde_json::Value::deserialize(deserializer)? {
        serde_json::Value::Object(keys) => Ok(keys),
        name => Ok(Keys::from_iter([("kind".to_owned(), name)])),
    }
}

/// The default of a key as a configuration writes it. For a section: the keys that differ from their own
/// defaults.
///
/// `written` is the source text of the value; a number is shown in the form that it has there.
pub fn default_of<T: Described>(value: &T, written: &str) -> String {
    let json = serde_json::to_value(value).unwrap_or_default();
    match json {
        serde_json::Value::Number(number) if number.is_f64() => {
            let written = written.trim_end_matches("_f64").replace('_', "");
            let is_number = written.parse::<f64>().ok() == number.as_f64();
            if is_number { written } else { json_text(&number.into()) }
        }
        // An empty section does not ask for its shape, which may contain this very type.
        serde_json::Value::Object(keys) if !keys.is_empty() => json_text(&changed(keys, &T::shape())),
        json => json_text(&json),
    }
}

/// The keys of a section that are not at their defaults.
fn changed(keys: Keys, shape: &Shape) -> serde_json::Value {
    let kind = keys.get("kind").and_then(serde_json::Value::as_str).unwrap_or_default();
    let specs: Vec<KeySpec> = match shape.without_null() {
        Shape::Section { keys, .. } => keys.clone(),
        Shape::Tagged { common, .. } => common.iter().cloned().chain(shape.keys_of_kind(kind)).collect(),
        _ => return serde_json::Value::Object(keys),
    };
    let changed = keys.into_iter().filter_map(|(name, value)| {
        let spec = specs.iter().find(|spec| spec.name == name)?;
        let value = match value {
            serde_json::Value::Object(keys) => changed(keys, &(spec.shape)()),
            value => value,
        };
        (json_text(&value) != spec.default).then_some((name, value))
    });
    serde_json::Value::Object(changed.collect())
}

/// A value as a configuration writes it.
pub fn default_text<T: Serialize>(value: &T) -> String {
    json_text(&serde_json::to_value(value).unwrap_or_default())
}

fn json_text(json: &serde_json::Value) -> String {
    use serde_json::Value as Json;
    match json {
        Json::Array(items) => format!("[{}]", items.iter().map(json_text).collect::<Vec<_>>().join(", ")),
        Json::Object(keys) if !keys.is_empty() => {
            let keys: Vec<String> =
                keys.iter().map(|(key, value)| format!("{key}: {}", json_text(value))).collect();
            format!("{{{}}}", keys.join(", "))
        }
        Json::String(text) if is_plain(text) => text.clone(),
        Json::String(text) if text.parse::<f64>().is_ok() => format!("'{text}'"),
        // 0.000001 reads worse than 1e-6.
        Json::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(real) if real != 0.0 && (real.abs() < 1e-3 || real.abs() >= 1e5) => format!("{real:e}"),
            _ => number.to_string(),
        },
        _ => json.to_string(),
    }
}

/// Whether YAML takes an unquoted text for itself: the names of choices, and times such as `30s`.
fn is_plain(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.parse::<f64>().is_err()
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '@'))
        && !matches!(text, "null" | "true" | "false")
}

#[cfg(test)]
#[allow(unreachable_pub, dead_code, reason = "the macros define public types, as outside of tests")]
mod tests {
    use super::*;

    crate::choice! {
        /// A colour.
        pub enum Colour {
            /// As blood.
            Red = "red",
            /// As grass.
            Green = "dark-green",
        }
    }

    crate::settings! {
        /// Keys of every form.
        pub struct Shared {
            /// Thickness.
            width: f64 = 2.0, Positive;
        }
    }

    crate::settings! {
        /// A circle.
        pub struct Circle {
            /// Its radius.
            radius: f64, Positive;
            /// Its colour.
            colour: Colour = Colour::Green, Any, Free;
            ..shared: Shared;
        }
    }

    crate::settings! {
        /// Nothing.
        pub struct Point {}
    }

    /// A form in the plane.
    pub trait Form {
        /// Its area.
        fn area(&self) -> f64;
    }

    impl Form for Circle {
        fn area(&self) -> f64 {
            std::f64::consts::PI * self.radius * self.radius
        }
    }

    impl Form for Point {
        fn area(&self) -> f64 {
            0.0
        }
    }

    crate::tagged! {
        /// A form.
        pub enum AnyForm: Form, default Point {
            /// Round.
            Circle(Circle) = "circle",
            /// Small.
            Point(Point) = "point",
        }
    }

    #[test]
    fn a_definition_is_type_shape_and_serialised_form() {
        let Shape::Tagged { variants, default, .. } = AnyForm::shape() else { panic!("tagged") };
        assert_eq!(default, Some("point"));
        let keys: Vec<_> = variants[0].keys.iter().map(|key| (key.name, &*key.default)).collect();
        assert_eq!(keys, [("radius", ""), ("colour", "dark-green"), ("width", "2.0")]);
        assert!(variants[0].keys[0].is_required() && !variants[0].keys[1].is_required());
        let resume: Vec<Resume> = variants[0].keys.iter().map(|key| key.resume).collect();
        assert_eq!(resume, [Resume::Fixed, Resume::Free, Resume::Fixed]);

        let circle = AnyForm::Circle(Circle { radius: 1.0, colour: Colour::Red, shared: Shared::default() });
        let json = serde_json::json!({"kind": "circle", "radius": 1.0, "colour": "red", "width": 2.0});
        assert_eq!(serde_json::to_value(&circle).expect("json"), json);
        assert_eq!(serde_json::from_value::<AnyForm>(json).expect("a form"), circle);
        assert_eq!((circle.as_str(), AnyForm::default().as_str()), ("circle", "point"));
        assert!(circle.area() > 3.0 && AnyForm::default().area() == 0.0);
    }

    #[test]
    fn keys_are_taken_or_refused_by_name() {
        let error = |json: &str| serde_json::from_str::<AnyForm>(json).expect_err(json).to_string();
        let circle: AnyForm = serde_json::from_str(r#"{"radius": 1, "kind": "circle"}"#).expect("a form");
        let defaults = Circle { radius: 1.0, colour: Colour::Green, shared: Shared::default() };
        assert_eq!(circle, AnyForm::Circle(defaults));
        for (json, message) in [
            (
                r#"{"kind": "circle", "radius": 1, "widht": 3}"#,
                "`circle`: there is no key `widht`: there are radius, colour, width",
            ),
            (r#"{"kind": "point", "radius": 1}"#, "`point`: there is no key `radius`: there are "),
            (r#"{"kind": "circle"}"#, "`circle`: `radius` is missing"),
            (
                r#"{"kind": "circle", "radius": 1, "colour": "blue"}"#,
                "`circle`: `colour`: unknown variant `blue`, expected `red` or `dark-green`",
            ),
            (r#"{"kind": "square"}"#, "`square`: there is no such kind: there are circle, point"),
            (r#"{"radius": 1}"#, "`kind` is missing"),
        ] {
            assert_eq!(error(json), message);
        }
        assert!(serde_json::from_str::<Circle>(r#"{"radius": 1, "kind": "circle"}"#).is_err());
    }

    #[test]
    fn a_range_holds_for_every_number_of_a_value() {
        let check = Check::Between(2.0, 60.0);
        let outside = |found: Result<(), OutOfRange>| found.err().map(|found| found.value);
        for seconds in [2, 60] {
            assert_eq!(check_range("key", &TimeSpan::seconds(seconds), check), Ok(()));
        }
        assert_eq!(outside(check_range("key", &TimeSpan::seconds(1), check)), Some(1.0));
        assert_eq!(outside(check_range("key", &Some(TimeSpan::seconds(61)), check)), Some(61.0));
        assert_eq!(outside(check_range("key", &vec![2.0, 3.0, 1.5], check)), Some(1.5));
        assert_eq!(check_range("key", &(None::<f64>), check), Ok(()));
        assert_eq!(check_range("key", &"text".to_owned(), check), Ok(()));
    }

    #[test]
    fn a_range_is_said_and_holds_no_number_that_is_none() {
        for (check, outside, expected) in [
            (Check::Any, f64::NAN, "NaN; expected a finite number"),
            (Check::AtLeast(1.0), 0.5, "0.5; expected a finite number, at least 1"),
            (Check::GreaterThan(1.0), 1.0, "1; expected a finite number, greater than 1"),
            (Check::Between(0.0, 1.0), -0.1, "-0.1; expected a finite number, from 0 to 1"),
            (Check::ZeroOrBetween(2.0, 3.0), 1.0, "1; expected a finite number, 0 or from 2 to 3"),
            (Check::FromBelow(0.0, 1.0), 1.0, "1; expected a finite number, from 0 to below 1"),
            (Check::Positive, 0.0, "0; expected a finite number, greater than 0"),
            (Check::NonNegative, -1e-9, "-1e-9; expected a finite number, 0 or more"),
            (Check::Probability, 1.5, "1.5; expected a finite number, greater than 0 and at most 1"),
        ] {
            let message = check_range("key", &outside, check).expect_err("outside").to_string();
            assert_eq!(message, format!("setting `key` is {expected}"));
            for none in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                assert!(check_range("key", &none, check).is_err(), "{check:?} {none}");
            }
        }
    }

    #[test]
    fn defaults_are_written_as_in_yaml() {
        assert_eq!(default_text(&1e-6), "1e-6");
        assert_eq!(default_text(&0.05), "0.05");
        assert_eq!(default_text(&None::<f64>), "null");
        assert_eq!(default_text(&"a b"), "\"a b\"");
        assert_eq!(default_text(&Colour::Green), "dark-green");
        assert_eq!(default_text(&TimeSpan::seconds(30)), "30s");
        assert_eq!(default_text(&Program("python3".into())), "python3");
        assert_eq!(default_text(&"30"), "'30'");
        assert_eq!(default_text(&[Point {}, Point {}]), "[{}, {}]");
        assert_eq!(default_text(&vec![AnyForm::default()]), "[{kind: point}]");
    }
}
