//! Makes outside text safe to print: sampled, received or read text must not move the cursor, recolour the
//! terminal, forge a line or change the reading direction.

/// One line: every control character is written as an escape, including line ends and tabs.
///
/// ```
/// use tamis_core::printable::one_line;
/// assert_eq!(one_line("\u{1b}[31mred\tor\nnot"), r"\u{1b}[31mred\tor\nnot");
/// assert_eq!(one_line("grün, 数, é"), "grün, 数, é");
/// ```
pub fn one_line(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        push(&mut shown, character);
    }
    shown
}

/// Several lines: like [`one_line`], but line ends stay and tabs become four spaces.
///
/// ```
/// use tamis_core::printable::lines;
/// assert_eq!(lines("one\n\ttwo\r\u{202e}\n"), "one\n    two\\r\\u{202e}\n");
/// ```
pub fn lines(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' => shown.push('\n'),
            '\t' => shown.push_str("    "),
            other => push(&mut shown, other),
        }
    }
    shown
}

/// One line of at most `longest` characters: the middle of a longer text is left out.
///
/// ```
/// use tamis_core::printable::cut_middle;
/// assert_eq!(cut_middle("one two", 7), "one two");
/// assert_eq!(cut_middle("one two three four", 9), "one …four");
/// ```
pub fn cut_middle(text: &str, longest: usize) -> String {
    let num_characters = text.chars().count();
    if num_characters <= longest {
        return one_line(text);
    }
    let kept = longest.saturating_sub(1);
    let start: String = text.chars().take(kept / 2).collect();
    let end: String = text.chars().skip(num_characters - kept.div_ceil(2)).collect();
    format!("{}…{}", one_line(&start), one_line(&end))
}

/// One line of at most `longest` characters: the start of a longer text is left out.
///
/// ```
/// use tamis_core::printable::cut_start;
/// assert_eq!(cut_start("one two", 7), "one two");
/// assert_eq!(cut_start("one two three", 6), "…three");
/// ```
pub fn cut_start(text: &str, longest: usize) -> String {
    let num_characters = text.chars().count();
    if num_characters <= longest {
        return one_line(text);
    }
    let end: String = text.chars().skip(num_characters - longest.saturating_sub(1)).collect();
    format!("…{}", one_line(&end))
}

fn push(shown: &mut String, character: char) {
    if character.is_control() || turns_direction(character) {
        shown.extend(character.escape_default());
    } else {
        shown.push(character);
    }
}

/// Embeddings, overrides, isolates and marks of the bidirectional algorithm, and line separators that are not
/// control characters.
fn turns_direction(character: char) -> bool {
    matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_mark_of_direction_is_escaped() {
        let marks = "\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202e}\u{2066}\u{2069}";
        let escaped = r"\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202e}\u{2066}\u{2069}";
        assert_eq!((one_line(marks), lines(marks)), (escaped.to_owned(), escaped.to_owned()));
    }

    proptest! {
        #[test]
        fn nothing_that_a_terminal_obeys_is_left(text in "[\\x00-\\x{a0}\\x{610}-\\x{620}\\x{2020}-\\x{2070}\n\t]{0,40}") {
            let obeys = |character: char| character.is_control() || turns_direction(character);
            prop_assert!(!one_line(&text).contains(obeys));
            let several = lines(&text);
            prop_assert!(!several.replace('\n', "").contains(obeys));
            prop_assert_eq!(several.matches('\n').count(), text.matches('\n').count());
        }

        #[test]
        fn what_is_harmless_stays(text in "[ -~äöüßéа-я一-十]{0,40}") {
            prop_assert_eq!(one_line(&text), text.clone());
            prop_assert_eq!(lines(&text), text);
        }
    }
}
