//! The answer in a completion, marked.

use std::fmt::Write as _;

use crate::html::text;

/// An answer that is looked for in a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer<'a> {
    text: &'a str,
    is_right: bool,
}

impl<'a> Answer<'a> {
    /// What a reward read as the answer (`pred`), if it says so; otherwise the right answer of a completion
    /// that scored. A wrong completion may hold the right answer by chance.
    pub(crate) fn new(pred: Option<&'a str>, truth: Option<&'a str>, reward: f64) -> Option<Self> {
        let stripped = |text: Option<&'a str>| text.map(str::trim).filter(|text| !text.is_empty());
        let (pred, truth) = (stripped(pred), stripped(truth));
        match pred {
            Some(text) => Some(Self { text, is_right: truth == pred || reward > 0.0 }),
            None => truth.filter(|_| reward > 0.0).map(|text| Self { text, is_right: true }),
        }
    }

    /// The last place at which it stands, not as a part of a longer word or number.
    fn find(&self, within: &str) -> Option<usize> {
        let is_apart = |at: usize| {
            let (before, after) = (&within[..at], &within[at + self.text.len()..]);
            let is_joined = |mut characters: [Option<char>; 2]| {
                let [next, beyond] = &mut characters;
                next.is_some_and(char::is_alphanumeric)
                    || matches!(next, Some('.' | ',')) && beyond.is_some_and(|beyond| beyond.is_ascii_digit())
            };
            let (mut back, mut forth) = (before.chars().rev(), after.chars());
            !is_joined([back.next(), back.next()]) && !is_joined([forth.next(), forth.next()])
        };
        within.rmatch_indices(self.text).map(|(at, _)| at).find(|at| is_apart(*at))
    }

    /// A text with it marked, as HTML; `None` if it is not in there.
    fn marked(&self, within: &str) -> Option<String> {
        let at = self.find(within)?;
        let (class, title) = if self.is_right {
            ("right", "the right answer")
        } else {
            ("read", "read as the answer, and wrong")
        };
        Some(format!(
            "{}<mark class=\"{class}\" title=\"{title}\">{}</mark>{}",
            text(&within[..at]),
            text(self.text),
            text(&within[at + self.text.len()..])
        ))
    }
}

/// A text of several lines as HTML, the middle of a long one left out, with the answer marked.
pub(crate) fn shorten(whole: &str, longest: usize, answer: Option<Answer<'_>>) -> String {
    let num_characters = whole.chars().count();
    let marked = |part: &str| answer.and_then(|answer| answer.marked(part));
    if num_characters <= longest {
        return marked(whole).unwrap_or_else(|| text(whole));
    }
    let half = longest / 2;
    let cut = |characters: usize| whole.char_indices().nth(characters).map_or(whole.len(), |(at, _)| at);
    let (start, end) = (&whole[..cut(half)], &whole[cut(num_characters - half)..]);
    let marked_end = marked(end);
    let mut html = marked(start).filter(|_| marked_end.is_none()).unwrap_or_else(|| text(start));
    let _ = write!(
        html,
        "<span class=\"cut\"> … {} characters are left out here … </span>{}",
        num_characters - 2 * half,
        marked_end.unwrap_or_else(|| text(end))
    );
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_whole_answer_is_marked() {
        let right = Answer::new(None, Some(" 42 "), 1.0);
        let shown = |text: &str| shorten(text, 1000, right);
        assert_eq!(
            shown("42 or 142, 42.5, x42: so <42>"),
            "42 or 142, 42.5, x42: so &lt;<mark class=\"right\" title=\"the right answer\">42</mark>&gt;"
        );
        assert!(shown("It is 42.").ends_with("42</mark>.") && shown("日42日").contains("日42日"));
        assert_eq!(shown("1.42 and 420"), "1.42 and 420");
    }

    #[test]
    fn what_was_read_goes_before_what_is_right() {
        let shown = |pred, truth, reward| shorten("41, 42", 1000, Answer::new(pred, truth, reward));
        assert!(shown(Some("41"), Some("42"), 0.0).starts_with("<mark class=\"read\""));
        assert!(shown(Some("42"), Some("42"), 0.0).starts_with("41, <mark class=\"right\""));
        assert_eq!(shown(None, Some("42"), 0.0), "41, 42");
        assert_eq!(shown(Some(""), None, 1.0), "41, 42");
    }

    #[test]
    fn the_middle_of_a_long_text_is_left_out_and_that_is_said() {
        assert_eq!(shorten("short", 10, None), "short");
        let shown = shorten(&"ab".repeat(50), 10, None);
        assert_eq!(shown, "ababa<span class=\"cut\"> … 90 characters are left out here … </span>babab");
        let answer = Answer::new(Some("語"), None, 0.0);
        assert_eq!(
            shorten("日。語日。語", 4, answer),
            "日。<span class=\"cut\"> … 2 characters are left out here … </span>。<mark class=\"read\" title=\"read as the answer, and wrong\">語</mark>"
        );
    }
}
