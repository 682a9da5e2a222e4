//! Pages of HTML that need nothing else: the frame around them, and text from outside.
//!
//! Completions are written by a model that is rewarded for whatever it writes. So every text goes through
//! [`escape`] or [`text`], and the page forbids the browser everything but its own style and its own script.

use std::fmt::Write as _;

use tamis_core::printable::lines;

const PAGE: &str = include_str!("html/page.html");
const STYLE: &str = include_str!("html/style.css");
/// The library that draws charts, as it is published. Its first line is a comment with an address.
const LIBRARY: &str = include_str!("../vendor/uplot/uPlot.iife.min.js");
const LIBRARY_STYLE: &str = include_str!("../vendor/uplot/uPlot.min.css");
const LICENCE: &str = include_str!("../vendor/uplot/LICENSE");
const CHARTS: &str = include_str!("html/charts.js");
const SCRIPT: &str = include_str!("html/script.js");

/// A text as HTML and XML hold it, between tags and in attributes.
pub fn escape(text: &str) -> String {
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

/// A text of several lines that was sampled or read: characters that control a reader are shown, not obeyed.
pub fn text(text: &str) -> String {
    escape(&lines(text))
}

/// A row of a table: its first cell names it.
pub fn row(cells: &[String]) -> String {
    let mut row = "<tr>".to_owned();
    for (place, cell) in cells.iter().enumerate() {
        let tag = if place == 0 { "<th scope=\"row\">" } else { "<td>" };
        let _ = write!(row, "{tag}{cell}");
    }
    row
}

/// The head of a table.
pub fn head(cells: &[String]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| format!("<th scope=\"col\">{cell}")).collect();
    format!("<thead><tr>{}<tbody>", cells.concat())
}

/// A whole page.
pub fn document(title: &str, body: &str) -> String {
    let title = escape(title);
    let library = LIBRARY.split_once('\n').map_or(LIBRARY, |(_, library)| library);
    let script = format!("/*! uPlot 1.6.32\n{LICENCE}*/\n{library}\n{CHARTS}{SCRIPT}");
    let style = [LIBRARY_STYLE, STYLE].join("\n");
    let parts =
        [("{{title}}", title.as_str()), ("{{style}}", &style), ("{{body}}", body), ("{{script}}", &script)];
    // Markers are found in the template only, never in what was put in.
    let (mut page, mut rest) = (String::new(), PAGE);
    for (marker, part) in parts {
        if let Some((before, after)) = rest.split_once(marker) {
            page.push_str(before);
            page.push_str(part);
            rest = after;
        }
    }
    page + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_stays_text() {
        let hostile = "</script><img src=x onerror='alert(1)'>\" & \u{202e}txt\u{0}";
        let shown = text(hostile);
        assert!(!shown.contains(['<', '>', '"', '\'', '\u{202e}', '\u{0}']), "{shown}");
        assert!(shown.contains("&lt;/script&gt;") && shown.contains("&amp;"));
        assert_eq!(text("a\n\tb"), "a\n    b");
    }

    #[test]
    fn a_page_reaches_for_nothing() {
        let page = document("a<b {{body}}", "<p>x {{script}}</p>");
        assert!(
            page.contains("<title>a&lt;b {{body}}</title>") && page.contains("<p>x {{script}}</p><script")
        );
        for outside in ["http://", "https://", "@import", "src=", "url(\"", "fetch(", "XMLHttpRequest"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
