//! Reading and writing of the plain types of configuration keys: the implementations of [`Setting`].

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value as Json;

use crate::reader::{Reader, Setting};
use tamis_core::setting::{PathKind, Shape, TimeSpan};

use crate::path::PathText as _;
use crate::tree::{Node, Value, parse_bool, parse_float};

/// Types that are described by [`tamis_core::setting`] are read by their shape.
macro_rules! owned {
    ($($owned:ty),* $(,)?) => {$(
        impl $crate::reader::Setting for $owned {
            fn shape() -> tamis_core::setting::Shape {
                <$owned as tamis_core::setting::Described>::shape()
            }

            fn read(
                node: &$crate::tree::Node,
                path: &str,
                reader: &mut $crate::reader::Reader,
            ) -> Option<Self> {
                let shape = <$owned as tamis_core::setting::Described>::shape();
                let json = reader.read_shaped(node, path, &shape)?;
                reader.built(node, path, json)
            }

            fn to_json(&self) -> serde_json::Value {
                serde_json::to_value(self).unwrap_or_default()
            }
        }
    )*};
}

pub(crate) use owned;

impl Setting for bool {
    fn shape() -> Shape {
        Shape::Bool
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        let text = reader.scalar(node, path, &Shape::Bool)?;
        let value = parse_bool(text);
        if value.is_none() {
            reader.wrong_type(node, path, &Shape::Bool);
        }
        value
    }

    fn to_json(&self) -> Json {
        Json::Bool(*self)
    }
}

impl Setting for u64 {
    fn shape() -> Shape {
        Shape::Integer
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        let text = reader.scalar(node, path, &Shape::Integer)?;
        // 1e6 and 8.0 are whole numbers too; 2^53 bounds what a float holds exactly.
        let value = text.parse::<u64>().ok().or_else(|| {
            parse_float(text)
                .filter(|value| value.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(value))
                .map(|value| value as u64)
        });
        if value.is_none() {
            reader.wrong_type(node, path, &Shape::Integer);
        }
        value
    }

    fn to_json(&self) -> Json {
        Json::from(*self)
    }

    fn numbers(&self) -> Vec<f64> {
        vec![*self as f64]
    }
}

impl Setting for usize {
    fn shape() -> Shape {
        Shape::Integer
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        let value = u64::read(node, path, reader)?;
        let value = usize::try_from(value).ok();
        if value.is_none() {
            reader.wrong_type(node, path, &Shape::Integer);
        }
        value
    }

    fn to_json(&self) -> Json {
        Json::from(*self as u64)
    }

    fn numbers(&self) -> Vec<f64> {
        vec![*self as f64]
    }
}

impl Setting for f64 {
    fn shape() -> Shape {
        Shape::Number
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        let text = reader.scalar(node, path, &Shape::Number)?;
        let value = parse_float(text);
        if value.is_none() {
            reader.wrong_type(node, path, &Shape::Number);
        }
        value
    }

    fn to_json(&self) -> Json {
        serde_json::Number::from_f64(*self).map_or(Json::Null, Json::Number)
    }

    fn numbers(&self) -> Vec<f64> {
        vec![*self]
    }

    fn reals(&self) -> Vec<f64> {
        vec![*self]
    }
}

impl Setting for String {
    fn shape() -> Shape {
        Shape::Text("text")
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        match &node.value {
            Value::Scalar { text, .. } if !node.is_null() => Some(text.clone()),
            _ => {
                reader.wrong_type(node, path, &Shape::Text("text"));
                None
            }
        }
    }

    fn to_json(&self) -> Json {
        Json::String(self.clone())
    }

    fn is_empty(&self) -> bool {
        String::is_empty(self)
    }
}

impl Setting for PathBuf {
    fn shape() -> Shape {
        Shape::Path(PathKind::Path)
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        match &node.value {
            Value::Scalar { text, .. } if !node.is_null() => Some(PathKind::Path.resolve(text, &node.origin)),
            _ => {
                reader.wrong_type(node, path, &Shape::Path(PathKind::Path));
                None
            }
        }
    }

    fn to_json(&self) -> Json {
        Json::String(self.to_string_lossy().into_owned())
    }

    fn is_empty(&self) -> bool {
        self.as_os_str().is_empty()
    }
}

impl Setting for Duration {
    fn shape() -> Shape {
        Shape::TimeSpan
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        let value = match &node.value {
            Value::Scalar { text, .. } => TimeSpan::parse(text),
            Value::List(_) | Value::Map(_) => None,
        };
        if value.is_none() {
            reader.wrong_type(node, path, &Self::shape());
        }
        value.map(|TimeSpan(duration)| duration)
    }

    fn to_json(&self) -> Json {
        Json::String(TimeSpan(*self).to_string())
    }

    fn numbers(&self) -> Vec<f64> {
        vec![self.as_secs_f64()]
    }
}

impl<T: Setting> Setting for Option<T> {
    fn shape() -> Shape {
        Shape::Nullable(Box::new(T::shape()))
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        if node.is_null() {
            return Some(None);
        }
        reader.or_null(path, |reader| T::read(node, path, reader)).map(Some)
    }

    fn to_json(&self) -> Json {
        self.as_ref().map_or(Json::Null, Setting::to_json)
    }

    fn numbers(&self) -> Vec<f64> {
        self.as_ref().map(Setting::numbers).unwrap_or_default()
    }

    fn reals(&self) -> Vec<f64> {
        self.as_ref().map(Setting::reals).unwrap_or_default()
    }

    fn is_empty(&self) -> bool {
        self.as_ref().is_some_and(Setting::is_empty)
    }
}

impl<T: Setting> Setting for Vec<T> {
    fn shape() -> Shape {
        Shape::List(Box::new(T::shape()))
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        let Value::List(items) = &node.value else {
            reader.wrong_type(node, path, &Self::shape());
            return None;
        };
        // All items are read before any failure counts, so that all violations are reported.
        let values: Vec<Option<T>> = items
            .iter()
            .enumerate()
            .map(|(index, item)| T::read(item, &format!("{path}[{index}]"), reader))
            .collect();
        values.into_iter().collect()
    }

    fn to_json(&self) -> Json {
        self.iter().map(Setting::to_json).collect()
    }

    fn numbers(&self) -> Vec<f64> {
        self.iter().flat_map(Setting::numbers).collect()
    }

    fn reals(&self) -> Vec<f64> {
        self.iter().flat_map(Setting::reals).collect()
    }

    fn is_empty(&self) -> bool {
        Vec::is_empty(self)
    }
}

impl Setting for [f64; 2] {
    fn shape() -> Shape {
        Shape::Tuple(Box::new(Shape::Number), 2)
    }

    fn read(node: &Node, path: &str, reader: &mut Reader) -> Option<Self> {
        if let Value::List(items) = &node.value
            && let [first, second] = items.as_slice()
        {
            let first = f64::read(first, &format!("{path}[0]"), reader);
            let second = f64::read(second, &format!("{path}[1]"), reader);
            return Some([first?, second?]);
        }
        reader.wrong_type(node, path, &Self::shape());
        None
    }

    fn to_json(&self) -> Json {
        self.iter().map(Setting::to_json).collect()
    }

    fn numbers(&self) -> Vec<f64> {
        self.to_vec()
    }

    fn reals(&self) -> Vec<f64> {
        self.to_vec()
    }
}
