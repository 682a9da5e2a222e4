//! Self-contained pages of HTML: the template engine renders `html/page.html` with the data of a page, and
//! puts the style and the scripts into it.
//!
//! Completions are written by a model that is rewarded for whatever it writes. So the engine escapes every
//! text and shows control characters visibly, and the page allows the browser only its own style and its own
//! script.

mod shorten;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, Output, State, UndefinedBehavior, context, escape_formatter};
use serde::Serialize;
use tamis_core::figure::percent;
use tamis_core::printable::{cut_middle, lines};

use crate::Fault;
use crate::chart::number::figure as number;
use crate::chart::shade;
use shorten::{Answer, shorten};

const PAGE: &str = include_str!("html/page.html");
const STYLE: &str = include_str!("html/style.css");
/// The library that draws charts, as it is published. Its first line is a comment with an address.
const LIBRARY: &str = include_str!("../vendor/uplot/uPlot.iife.min.js");
const LIBRARY_STYLE: &str = include_str!("../vendor/uplot/uPlot.min.css");
const LICENCE: &str = include_str!("../vendor/uplot/LICENSE");
const CHARTS: &str = include_str!("html/charts.js");
const SCRIPT: &str = include_str!("html/script.js");

/// What a page is about; the template has a part for each.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Report,
    Comparison,
    Simulation,
}

/// A whole page.
///
/// # Errors
/// The template does not fit the data, which is a fault of this program.
pub(crate) fn document(kind: Kind, title: &str, data: &impl Serialize) -> Result<String, Fault> {
    render(kind, title, data).map_err(|error| Fault::failed("the page cannot be written").with_source(error))
}

fn render(kind: Kind, title: &str, data: &impl Serialize) -> Result<String, Error> {
    let library = LIBRARY.split_once('\n').map_or(LIBRARY, |(_, library)| library);
    let script = format!("/*! uPlot 1.6.32\n{LICENCE}*/\n{library}\n{CHARTS}{SCRIPT}");
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
    environment.set_formatter(write);
    environment.add_filter("number", |value: Option<f64>| number(value.unwrap_or(f64::NAN)));
    environment.add_filter("percent", percent);
    environment.add_filter("words", |name: &str| name.replace('_', " "));
    environment.add_filter("cut", cut_middle);
    environment.add_filter("shade", |value: f64, low: f64, high: f64| shade(value, (low, high)));
    environment.add_filter("pieces", pieces);
    environment.add_test("nan", f64::is_nan);
    environment.add_template("page.html", PAGE)?;
    let page = environment.get_template("page.html")?.render(context! {
        kind => Serde(kind), title, version => env!("CARGO_PKG_VERSION"),
        style => Value::from_safe_string([LIBRARY_STYLE, STYLE].join("\n")),
        script => Value::from_safe_string(script),
        data => Serde(data),
    })?;
    // The macros before the page leave empty lines.
    Ok(page.trim_start().to_owned())
}

/// Writes a value between tags or in an attribute. The engine's own escaping also escapes `/`, which no page
/// needs.
fn write(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.as_str().filter(|_| !value.is_safe()) {
        Some(text) => Ok(out.write_str(&escape(&lines(text)))?),
        None => escape_formatter(out, state, value),
    }
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + text.len() / 8);
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// A text in pieces, with the answer marked that the reward read or should have read.
fn pieces(text: &str, longest: usize, pred: Option<&str>, truth: Option<&str>, reward: f64) -> Value {
    Value::from(Serde(shorten(text, longest, Answer::new(pred, truth, reward))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_stays_text() {
        let hostile = "</script><img src=x onerror='alert(1)'>\" & \u{202e}txt\u{0}";
        let notes = [hostile];
        let data = serde_json::json!({ "keys": [], "tables": [], "notes": notes });
        let page = document(Kind::Comparison, "a<b {{ style }}", &data).expect("a page");
        assert!(page.contains("<title>a&lt;b {{ style }}</title>"));
        let shown = page.split("<li>").nth(1).and_then(|rest| rest.split("</li>").next()).expect("a note");
        assert_eq!(
            shown,
            r"&lt;/script&gt;&lt;img src=x onerror=&#39;alert(1)&#39;&gt;&quot; &amp; \u{202e}txt\u{0}"
        );
        for outside in ["http://", "https://", "@import", "src=\"", "url(\"", "fetch(", "XMLHttpRequest"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn data_that_do_not_fit_are_a_fault() {
        let fault = document(Kind::Report, "t", &serde_json::json!({})).expect_err("no page");
        assert_eq!(fault.to_string(), "the page cannot be written");
    }
}
