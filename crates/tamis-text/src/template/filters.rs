//! The filters and tests that templates can use, each with its limits.

use minijinja::value::{Rest, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, Value, filters, tests as kinds};
use minijinja_contrib::filters as contrib;

use super::limits::{add_filter, add_test};
use super::{json, python, text};

/// Adds filters and tests to an environment that has the limits.
pub(super) fn install(environment: &mut Environment<'static>) {
    for (name, filter) in priced_filters() {
        add_filter(environment, name, filter);
    }
    for (name, test) in priced_tests() {
        add_test(environment, name, test);
    }
    for (name, reason) in UNSUPPORTED {
        environment.add_filter(name, move |_: &Value, _: Rest<ValueOrKwargs>| -> Result<Value, Error> {
            let detail = format!("the filter `{name}` of Jinja2 is not supported in chat templates{reason}");
            Err(Error::new(ErrorKind::UnknownFilter, detail))
        });
    }
}

/// Filters of Jinja2 that are not supported, and why.
const UNSUPPORTED: [(&str, &str); 5] = [
    ("random", ": a prompt is the same in every run"),
    ("urlencode", ""),
    ("urlize", ""),
    ("wordwrap", ""),
    ("xmlattr", ""),
];

/// Every filter that a template can use; [`python`] replaces some of the engine's.
fn priced_filters() -> Vec<(&'static str, Value)> {
    vec![
        ("abs", Value::from_function(filters::abs)),
        ("attr", Value::from_function(filters::attr)),
        ("batch", Value::from_function(filters::batch)),
        ("bool", Value::from_function(filters::bool)),
        ("capitalize", Value::from_function(filters::capitalize)),
        ("center", Value::from_function(python::center)),
        ("chain", Value::from_function(filters::chain)),
        ("count", Value::from_function(python::length)),
        ("d", Value::from_function(filters::default)),
        ("default", Value::from_function(filters::default)),
        ("dictsort", Value::from_function(filters::dictsort)),
        ("e", Value::from_function(filters::escape)),
        ("escape", Value::from_function(filters::escape)),
        ("filesizeformat", Value::from_function(contrib::filesizeformat)),
        ("first", Value::from_function(python::first)),
        ("float", Value::from_function(python::float)),
        ("format", Value::from_function(text::format)),
        ("forceescape", Value::from_function(filters::escape)),
        ("groupby", Value::from_function(filters::groupby)),
        ("indent", Value::from_function(python::indent)),
        ("int", Value::from_function(python::int)),
        ("items", Value::from_function(python::items)),
        ("join", Value::from_function(text::join)),
        ("last", Value::from_function(python::last)),
        ("length", Value::from_function(python::length)),
        ("lines", Value::from_function(filters::lines)),
        ("list", Value::from_function(filters::list)),
        ("lower", Value::from_function(filters::lower)),
        ("map", Value::from_function(filters::map)),
        ("max", Value::from_function(filters::max)),
        ("min", Value::from_function(filters::min)),
        ("pluralize", Value::from_function(contrib::pluralize)),
        ("pprint", Value::from_function(filters::pprint)),
        ("reject", Value::from_function(filters::reject)),
        ("rejectattr", Value::from_function(filters::rejectattr)),
        ("replace", Value::from_function(filters::replace)),
        ("reverse", Value::from_function(filters::reverse)),
        ("round", Value::from_function(filters::round)),
        ("safe", Value::from_function(filters::safe)),
        ("select", Value::from_function(filters::select)),
        ("selectattr", Value::from_function(filters::selectattr)),
        ("slice", Value::from_function(filters::slice)),
        ("sort", Value::from_function(filters::sort)),
        ("split", Value::from_function(filters::split)),
        ("string", Value::from_function(filters::string)),
        ("striptags", Value::from_function(contrib::striptags)),
        ("sum", Value::from_function(text::sum)),
        ("title", Value::from_function(filters::title)),
        ("tojson", Value::from_function(json::tojson)),
        ("trim", Value::from_function(filters::trim)),
        ("truncate", Value::from_function(contrib::truncate)),
        ("unique", Value::from_function(filters::unique)),
        ("upper", Value::from_function(filters::upper)),
        ("wordcount", Value::from_function(text::wordcount)),
        ("zip", Value::from_function(filters::zip)),
    ]
}

/// The tests that read their value; the others only check its kind.
fn priced_tests() -> Vec<(&'static str, Value)> {
    let mut all = vec![
        ("endingwith", Value::from_function(kinds::is_endingwith)),
        ("in", Value::from_function(kinds::is_in)),
        ("lower", Value::from_function(kinds::is_lower)),
        ("startingwith", Value::from_function(kinds::is_startingwith)),
        ("upper", Value::from_function(kinds::is_upper)),
    ];
    let comparisons = [
        (&["eq", "equalto", "=="][..], Value::from_function(kinds::is_eq)),
        (&["ne", "!="], Value::from_function(kinds::is_ne)),
        (&["lt", "lessthan", "<"], Value::from_function(kinds::is_lt)),
        (&["le", "<="], Value::from_function(kinds::is_le)),
        (&["gt", "greaterthan", ">"], Value::from_function(kinds::is_gt)),
        (&["ge", ">="], Value::from_function(kinds::is_ge)),
    ];
    for (names, test) in comparisons {
        all.extend(names.iter().map(|name| (*name, test.clone())));
    }
    all
}
