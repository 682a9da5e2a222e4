//! Fields of a JSON body. Each one's type is checked, and an error names the field.

use serde_json::{Map, Value};

use super::error::ApiError;

/// A field that this server does not support, a test for values without effect, and the hint.
pub type Refused = (&'static str, fn(&Value) -> bool, &'static str);

/// Stop strings of a request, at most.
const MOST_STOPS: usize = 64;

/// An object of a request; a field that is `null` is absent.
#[derive(Clone, Copy)]
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// Prefix of the field's name in messages (`sampling_params.`).
    within: &'static str,
}

impl<'a> Fields<'a> {
    /// The fields of a body.
    pub fn of(body: &'a Value) -> Result<Self, ApiError> {
        let map = body.as_object().ok_or_else(|| ApiError::bad("the body must be a JSON object"))?;
        Ok(Self { map, within: "" })
    }

    /// The value of a field.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// A field's name as messages have it.
    pub fn name(&self, field: &str) -> String {
        format!("{}{field}", self.within)
    }

    fn wrong(&self, field: &str, expected: &str, actual: &Value) -> ApiError {
        let mut shown = actual.to_string();
        if let Some((end, _)) = shown.char_indices().nth(60) {
            shown.truncate(end);
            shown.push('…');
        }
        let name = self.name(field);
        ApiError::field(&name, format!("`{name}` must be {expected}, got {shown}"))
    }

    fn read<T>(
        &self,
        field: &str,
        expected: &str,
        of: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        self.get(field).map(|value| of(value).ok_or_else(|| self.wrong(field, expected, value))).transpose()
    }

    /// An object.
    pub fn object(&self, field: &str, within: &'static str) -> Result<Option<Self>, ApiError> {
        let map = self.read(field, "an object", Value::as_object)?;
        Ok(map.map(|map| Self { map, within }))
    }

    /// The names of all fields.
    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        self.map.keys().map(String::as_str)
    }

    /// A number.
    pub fn number(&self, field: &str) -> Result<Option<f64>, ApiError> {
        self.read(field, "a number", Value::as_f64)
    }

    /// A whole number; `4.0` is one.
    pub fn integer(&self, field: &str) -> Result<Option<i64>, ApiError> {
        self.read(field, "a whole number", |value| {
            let whole = |x: &f64| x.fract() == 0.0 && x.abs() < 9e15;
            value.as_i64().or_else(|| value.as_f64().filter(whole).map(|x| x as i64))
        })
    }

    /// A whole number from `least` to `most`.
    pub fn count(&self, field: &str, least: i64, most: i64) -> Result<Option<usize>, ApiError> {
        let Some(count) = self.integer(field)? else { return Ok(None) };
        if (least..=most).contains(&count) {
            return Ok(Some(count as usize));
        }
        let name = self.name(field);
        Err(ApiError::field(&name, format!("`{name}` must be from {least} to {most}, got {count}")))
    }

    /// A boolean field; false if absent.
    pub fn flag(&self, field: &str) -> Result<bool, ApiError> {
        Ok(self.read(field, "true or false", Value::as_bool)?.unwrap_or(false))
    }

    /// Yes or no.
    pub fn optional_flag(&self, field: &str) -> Result<Option<bool>, ApiError> {
        self.read(field, "true or false", Value::as_bool)
    }

    /// A text.
    pub fn text(&self, field: &str) -> Result<Option<&'a str>, ApiError> {
        self.read(field, "a text", Value::as_str)
    }

    /// A text or a list of texts.
    pub fn texts(&self, field: &str) -> Result<Vec<String>, ApiError> {
        let texts = self.read(field, "a text or a list of texts", |value| match value {
            Value::String(text) => Some(vec![text.clone()]),
            Value::Array(values) => values.iter().map(|value| value.as_str().map(str::to_owned)).collect(),
            _ => None,
        })?;
        Ok(texts.unwrap_or_default())
    }

    /// A list of token ids.
    pub fn token_ids(&self, field: &str) -> Result<Option<Vec<u32>>, ApiError> {
        self.read(field, "a list of token ids", token_ids)
    }

    /// A list of objects.
    pub fn list(&self, field: &str) -> Result<Option<&'a [Value]>, ApiError> {
        self.read(field, "a list", |value| value.as_array().map(Vec::as_slice))
    }

    /// Refuses unsupported fields that would change the answer, unless their value has no effect.
    pub fn refuse(&self, refused: &[Refused]) -> Result<(), ApiError> {
        for &(field, is_harmless, instead) in refused {
            if self.get(field).is_some_and(|value| !is_harmless(value)) {
                return Err(ApiError::unsupported(&self.name(field), instead));
            }
        }
        Ok(())
    }
}

/// Nothing is in it.
pub fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

/// It is 0.
pub fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

/// It is 1.
pub fn is_one(value: &Value) -> bool {
    value.as_i64() == Some(1)
}

/// It is `false`.
pub fn is_false(value: &Value) -> bool {
    value == &Value::Bool(false)
}

/// No value is harmless.
pub fn is_never(_: &Value) -> bool {
    false
}

/// Reads the texts that end a completion: none of them empty, and not too many, because each token is
/// checked against all of them.
pub fn read_stops(fields: Fields<'_>) -> Result<Vec<String>, ApiError> {
    let stops = fields.texts("stop")?;
    let wrong = |message: String| Err(ApiError::field(fields.name("stop"), message));
    if stops.len() > MOST_STOPS {
        let name = fields.name("stop");
        return wrong(format!("`{name}` must have at most {MOST_STOPS} entries, got {}", stops.len()));
    }
    match stops.iter().position(String::is_empty) {
        Some(place) => {
            let name = fields.name("stop");
            wrong(format!(
                "`{name}` has an empty text at place {place}, which every answer contains: leave it out"
            ))
        }
        None => Ok(stops),
    }
}

/// The text of a message in parts, one a line. The error is the place of a part that is not text.
pub fn joined_text(parts: &[Value]) -> Result<String, usize> {
    let text = |(i, part): (usize, &Value)| {
        let is_text = part["type"] == "text" || part["type"].is_null();
        part["text"].as_str().map(str::to_owned).filter(|_| is_text).ok_or(i)
    };
    let texts: Result<Vec<String>, usize> = parts.iter().enumerate().map(text).collect();
    texts.map(|texts| texts.join("\n"))
}

/// A list of token ids.
pub fn token_ids(value: &Value) -> Option<Vec<u32>> {
    value.as_array()?.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
}
