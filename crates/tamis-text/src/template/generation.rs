//! `{% generation %}` blocks, which mark the assistant's tokens in training templates.

use std::ops::Range;

/// Written around the content of a block to find its place. No conversation has them: control characters
/// and private ones.
const MARKS: [&str; 2] = ["\u{2}\u{f8f0}generation\u{3}", "\u{2}\u{f8f1}generation\u{3}"];

/// Whether a template has `generation` blocks.
pub(super) fn has_tags(source: &str) -> bool {
    source.match_indices("{%").any(|(start, _)| parse(&source[start..]).is_some())
}

/// Replaces `generation` and `endgeneration` tags by an `if true` with the same whitespace control, on the
/// same line. So their content is rendered, and the lines in errors stay right.
pub(super) fn remove_tags(source: &str) -> String {
    replace_tags(source, |tag| format!("{{%{} {} {}%}}", tag.left, tag.keyword(), tag.right))
}

/// [`remove_tags`], with marks around the content of each block. The marks are between two tags, of which
/// the first has the whitespace control of the text before and the second that of the text after.
pub(super) fn mark_tags(source: &str) -> String {
    replace_tags(source, |tag| {
        let mark = MARKS[usize::from(tag.is_end)];
        let (left, right) = (tag.left, tag.right);
        if tag.is_end {
            format!("{{%{left} endif %}}{{{{ '{mark}' }}}}{{% endif {right}%}}")
        } else {
            format!("{{%{left} if true %}}{{{{ '{mark}' }}}}{{% if true {right}%}}")
        }
    })
}

/// A rendered text without the marks, and the places between them in bytes of it; `None` if the marks do
/// not come in pairs.
pub(super) fn without_marks(text: &str) -> Option<(String, Vec<Range<usize>>)> {
    let (mut plain, mut places) = (String::with_capacity(text.len()), Vec::new());
    let mut rest = text;
    while let Some((before, inside)) = rest.split_once(MARKS[0]) {
        let (inside, after) = inside.split_once(MARKS[1])?;
        plain.push_str(before);
        let start = plain.len();
        plain.push_str(inside);
        places.push(start..plain.len());
        rest = after;
    }
    plain.push_str(rest);
    let is_whole = !MARKS.iter().any(|mark| plain.contains(mark));
    is_whole.then_some((plain, places))
}

/// A tag of a block.
struct Tag<'s> {
    /// Whitespace marks.
    left: &'s str,
    right: &'s str,
    is_end: bool,
    length: usize,
}

impl Tag<'_> {
    fn keyword(&self) -> &'static str {
        if self.is_end { "endif" } else { "if true" }
    }
}

fn replace_tags(source: &str, text: impl Fn(&Tag<'_>) -> String) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        if let Some(found) = parse(tag) {
            out.push_str(&text(&found));
            rest = &tag[found.length..];
        } else {
            out.push_str("{%");
            rest = &tag[2..];
        }
    }
    out.push_str(rest);
    out
}

/// The tag that a text begins with, if it is one of the two.
fn parse(tag: &str) -> Option<Tag<'_>> {
    let inside = tag.strip_prefix("{%")?;
    let end = inside.find("%}")?;
    let body = inside.get(..end)?;
    let (left, body) = match body.as_bytes().first() {
        Some(b'-' | b'+') => body.split_at(1),
        _ => ("", body),
    };
    let (body, right) = match body.as_bytes().last() {
        Some(b'-' | b'+') => body.split_at(body.len() - 1),
        _ => (body, ""),
    };
    let is_end = match body.trim() {
        "generation" => false,
        "endgeneration" => true,
        _ => return None,
    };
    (!body.contains('\n')).then_some(Tag { left, right, is_end, length: end + 4 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_keep_their_whitespace_control() {
        assert_eq!(
            remove_tags("a{%- generation %}b{%endgeneration-%}c{% set generation = 1 %}"),
            "a{%- if true %}b{% endif -%}c{% set generation = 1 %}"
        );
        assert_eq!(remove_tags("{% unclosed"), "{% unclosed");
        assert!(has_tags("{% if x %}{% generation %}") && !has_tags("{% set generation = 1 %}"));
    }

    #[test]
    fn marks_are_taken_out_of_the_text_and_give_its_places() {
        let [begin, end] = MARKS;
        let text = format!("é{begin}ab{end}c{begin}{end}");
        assert_eq!(without_marks(&text), Some(("éabc".to_owned(), vec![2..4, 5..5])));
        for odd in [format!("{begin}a"), format!("a{end}"), format!("{begin}a{begin}b{end}")] {
            assert_eq!(without_marks(&odd), None, "{odd:?}");
        }
    }
}
