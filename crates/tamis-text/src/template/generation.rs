//! `{% generation %}` blocks, which mark the assistant's tokens in training templates.

/// Replaces `generation` and `endgeneration` tags by an `if true` with the same whitespace control, on the
/// same line. So their content is rendered, and the lines in errors stay right.
pub(super) fn remove_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        out.push_str("{%");
        if let Some((left, keyword, right, length)) = parse(tag) {
            out.push_str(left);
            out.push_str(keyword);
            out.push_str(right);
            out.push_str("%}");
            rest = &tag[length..];
        } else {
            rest = &tag[2..];
        }
    }
    out.push_str(rest);
    out
}

/// Whitespace marks, replacement and length of a tag, if it is one of the two.
fn parse(tag: &str) -> Option<(&str, &'static str, &str, usize)> {
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
    let keyword = match body.trim() {
        "generation" => " if true ",
        "endgeneration" => " endif ",
        _ => return None,
    };
    if body.contains('\n') {
        return None;
    }
    Some((left, keyword, right, end + 4))
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
    }
}
