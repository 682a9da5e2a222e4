//! The last `\boxed{...}` of a text.

/// The last `count` characters (Unicode scalar values, as Python counts) of a text.
pub fn last_chars(text: &str, count: usize) -> &str {
    match count.checked_sub(1).map(|skip| text.char_indices().rev().nth(skip)) {
        Some(Some((start, _))) => &text[start..],
        Some(None) => text,
        None => "",
    }
}

/// The inside of the last `\boxed{...}`, braces balanced; `None` if there is none or the last one does not
/// close.
///
/// ```
/// use tamis_env::reward::boxed::last_boxed;
/// assert_eq!(last_boxed(r"\boxed{1} or \boxed{\frac{2}{3}}."), Some(r"\frac{2}{3}"));
/// assert_eq!(last_boxed(r"\boxed{1} or \boxed{2"), None);
/// ```
pub fn last_boxed(text: &str) -> Option<&str> {
    const OPENING: &str = r"\boxed{";
    let start = text.rfind(OPENING)? + OPENING.len();
    let mut depth = 1usize;
    for (offset, byte) in text.as_bytes()[start..].iter().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return text.get(start..start + offset);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts() {
        assert_eq!(last_chars("aé數b", 2), "數b");
        assert_eq!(last_chars("ab", 5), "ab");
        assert_eq!(last_chars("ab", 0), "");
        assert_eq!(last_boxed(r"\boxed{}"), Some(""));
        assert_eq!(last_boxed(r"\boxed 5"), None);
        assert_eq!(last_boxed(r"\boxed{\boxed{5}}"), Some("5"));
    }
}
