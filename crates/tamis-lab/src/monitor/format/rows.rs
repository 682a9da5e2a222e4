//! Rows of metrics, one JSON object a line: `{"step":3,"critic/score/mean":0.5}` of tamis,
//! `{"step":3,"data":{...}}` of verl, `{"step":3,"critic":{"score":{"mean":0.5}}}` of EasyR1.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::compare::series::{read_number, read_object};
use crate::monitor::fact::Fact;

pub(super) fn read(line: &str) -> Vec<Fact> {
    let Ok(object) = read_object(line) else { return Vec::new() };
    let mut values = BTreeMap::new();
    let inner = object.get("data").and_then(Value::as_object);
    flatten("", inner.unwrap_or(&object), &mut values);
    let step = object.get("step").and_then(Value::as_f64);
    let step = step.or_else(|| values.get("training/global_step").copied()).filter(|step| *step >= 0.0);
    values.remove("step");
    step.map(|step| vec![Fact::Trained { step: step as u64, values }]).unwrap_or_default()
}

fn flatten(above: &str, object: &Map<String, Value>, into: &mut BTreeMap<String, f64>) {
    for (name, value) in object {
        let whole = if above.is_empty() { name.clone() } else { format!("{above}/{name}") };
        match value {
            Value::Object(below) => flatten(&whole, below, into),
            Value::String(text) if text == "NaN" => drop(into.insert(whole, f64::NAN)),
            other => drop(read_number(other).map(|value| into.insert(whole, value))),
        }
    }
}
