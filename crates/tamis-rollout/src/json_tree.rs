//! JSON into a tree whose size in memory is bounded.
//!
//! A tree takes up to sixty times the bytes of its text (`[0,0,0]`: a value for every two bytes). So a
//! limit on the text is not enough, and the tree has its own.

use std::cell::Cell;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Bytes of a value within a list.
const VALUE: usize = size_of::<Value>();

/// Bytes of an object beside its values: its table has room for four entries at least.
const OBJECT: usize = 4 * (size_of::<String>() + VALUE + size_of::<usize>()) + 128;

/// Bytes of a key of an object, with the room of its text.
const KEY: usize = size_of::<String>() + 2 * size_of::<usize>() + 16;

/// Bytes of a tree, at most, beside those of its texts, which its own text bounds: 1.8 million numbers.
pub const MOST_TREE_BYTES: usize = 128 << 20;

/// Reads JSON.
///
/// # Errors
/// Text that is not JSON, and JSON whose tree would take more than `most` bytes. If `refuses_repeated`,
/// also an object with a repeated key, because its value is ambiguous.
pub fn read(text: &[u8], most: usize, refuses_repeated: bool) -> Result<Value, serde_json::Error> {
    let left = Cell::new(most);
    let mut source = serde_json::Deserializer::from_slice(text);
    let tree = Tree { left: &left, most, refuses_repeated }.deserialize(&mut source)?;
    source.end()?;
    Ok(tree)
}

/// Reads a value and subtracts its size from the remaining limit.
#[derive(Clone, Copy)]
struct Tree<'a> {
    left: &'a Cell<usize>,
    most: usize,
    refuses_repeated: bool,
}

impl Tree<'_> {
    fn take<E: Error>(self, bytes: usize) -> Result<(), E> {
        let left = self.left.get().checked_sub(bytes).ok_or_else(|| {
            let most = self.most >> 20;
            E::custom(format!("it has so many values that they would take more than {most} MiB of memory"))
        })?;
        self.left.set(left);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Value, D::Error> {
        self.take(VALUE)?;
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        self.take(OBJECT)?;
        let mut object = Map::new();
        while let Some(name) = entries.next_key::<String>()? {
            if self.refuses_repeated && object.contains_key(&name) {
                return Err(A::Error::custom(format!("key `{name}` occurs twice in one object")));
            }
            self.take(KEY)?;
            let value = entries.next_value_seed(self)?;
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_serde_json_reads() {
        for text in [
            "null",
            " [1, -2, 3.5, 1e300, 18446744073709551615, true, false, null, \"\\u00e9\"] ",
            "{\"a\": {\"b\": [{}, []]}, \"\": \"x\", \"a\": 1}",
            "",
            "[1,]",
            "{\"a\" 1}",
            "[1] 2",
            "\"\\ud800\"",
        ] {
            let expected: Result<Value, _> = serde_json::from_str(text);
            let found = read(text.as_bytes(), 1 << 20, false);
            let shown = |read: Result<Value, serde_json::Error>| read.map_err(|error| error.to_string());
            assert_eq!(shown(found), shown(expected), "{text}");
        }
    }

    #[test]
    fn a_tree_that_is_too_large_is_refused_before_it_is_there() {
        let list = format!("[{}0]", "0,".repeat(999));
        assert!(read(list.as_bytes(), 1001 * VALUE, false).is_ok());
        let error = read(list.as_bytes(), 1001 * VALUE - 1, false).unwrap_err().to_string();
        assert!(error.contains("so many values that they would take more than 0 MiB"), "{error}");
        let objects = format!("[{}{{}}]", "{},".repeat(999));
        assert!(read(objects.as_bytes(), 1001 * VALUE + 999 * OBJECT, false).is_err());
        let keys: Vec<String> = (0..1000).map(|key| format!("\"{key}\":0")).collect();
        let keys = format!("{{{}}}", keys.join(","));
        assert!(read(keys.as_bytes(), 1001 * VALUE + OBJECT, false).is_err());
        assert!(read(keys.as_bytes(), 1001 * VALUE + OBJECT + 1000 * KEY, false).is_ok());
        // Nested too deep for a stack.
        let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
        assert!(read(deep.as_bytes(), MOST_TREE_BYTES, false).is_err());
    }

    #[test]
    fn a_key_that_stands_twice_is_refused_if_asked_for() {
        let text = b"{\"a\": {\"b\": 1, \"b\": 2}}";
        assert_eq!(read(text, 1 << 20, false).unwrap()["a"]["b"], 2);
        let error = read(text, 1 << 20, true).unwrap_err().to_string();
        assert!(error.contains("key `b` occurs twice"), "{error}");
    }
}
