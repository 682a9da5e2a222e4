//! Splits a sampled text into the pieces that a page shows: the answer is marked, the middle of a long text
//! is cut.

/// An answer that is looked for in a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer<'a> {
    text: &'a str,
    is_right: bool,
}

impl<'a> Answer<'a> {
    /// The answer that a reward read (`pred`), if it reports one; otherwise the right answer, if the
    /// completion scored. A wrong completion may hold the right answer by chance.
    pub(super) fn new(pred: Option<&'a str>, truth: Option<&'a str>, reward: f64) -> Option<Self> {
        let stripped = |text: Option<&'a str>| text.map(str::trim).filter(|text| !text.is_empty());
        let (pred, truth) = (stripped(pred), stripped(truth));
        match pred {
            Some(text) => Some(Self { text, is_right: truth == pred || reward > 0.0 }),
            None => truth.filter(|_| reward > 0.0).map(|text| Self { text, is_right: true }),
        }
    }

    /// The last occurrence that is no part of a longer word or number.
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

    /// A text in pieces, with the answer marked; `None` if the text does not contain it.
    fn marked(&self, within: &str) -> Option<Vec<Piece>> {
        let at = self.find(within)?;
        let (before, rest) = within.split_at(at);
        let (answer, after) = rest.split_at(self.text.len());
        let kind = if self.is_right { "right" } else { "read" };
        Some([("", before), (kind, answer), ("", after)].map(|(kind, text)| (kind, text.to_owned())).into())
    }
}

/// The kind of a piece, and the piece. `right` and `read` are answers; `cut` is a number of characters that
/// are left out.
pub(super) type Piece = (&'static str, String);

/// A text of several lines in pieces, with the answer marked and the middle of a long text left out.
pub(super) fn shorten(whole: &str, longest: usize, answer: Option<Answer<'_>>) -> Vec<Piece> {
    let num_characters = whole.chars().count();
    let marked = |part: &str| answer.and_then(|answer| answer.marked(part));
    let plain = |part: &str| vec![("", part.to_owned())];
    if num_characters <= longest {
        return marked(whole).unwrap_or_else(|| plain(whole));
    }
    let half = longest / 2;
    let cut = |characters: usize| whole.char_indices().nth(characters).map_or(whole.len(), |(at, _)| at);
    let (start, end) = (&whole[..cut(half)], &whole[cut(num_characters - half)..]);
    let marked_end = marked(end);
    let mut pieces = marked(start).filter(|_| marked_end.is_none()).unwrap_or_else(|| plain(start));
    pieces.push(("cut", (num_characters - 2 * half).to_string()));
    pieces.extend(marked_end.unwrap_or_else(|| plain(end)));
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces with their kinds in brackets.
    fn shown(text: &str, longest: usize, answer: Option<Answer<'_>>) -> String {
        let piece = |(kind, text): Piece| if kind.is_empty() { text } else { format!("[{kind} {text}]") };
        shorten(text, longest, answer).into_iter().map(piece).collect()
    }

    #[test]
    fn the_last_whole_answer_is_marked() {
        let shown = |text: &str| shown(text, 1000, Answer::new(None, Some(" 42 "), 1.0));
        assert_eq!(shown("42 or 142, 42.5, x42: so <42>"), "42 or 142, 42.5, x42: so <[right 42]>");
        assert_eq!(shown("It is 42."), "It is [right 42].");
        assert_eq!(shown("日42日"), "日42日");
        assert_eq!(shown("1.42 and 420"), "1.42 and 420");
    }

    #[test]
    fn what_was_read_goes_before_what_is_right() {
        let shown = |pred, truth, reward| shown("41, 42", 1000, Answer::new(pred, truth, reward));
        assert_eq!(shown(Some("41"), Some("42"), 0.0), "[read 41], 42");
        assert_eq!(shown(Some("42"), Some("42"), 0.0), "41, [right 42]");
        assert_eq!(shown(None, Some("42"), 0.0), "41, 42");
        assert_eq!(shown(Some(""), None, 1.0), "41, 42");
    }

    #[test]
    fn the_middle_of_a_long_text_is_left_out_and_that_is_said() {
        assert_eq!(shown("short", 10, None), "short");
        assert_eq!(shown(&"ab".repeat(50), 10, None), "ababa[cut 90]babab");
        let answer = Answer::new(Some("語"), None, 0.0);
        assert_eq!(shown("日。語日。語", 4, answer), "日。[cut 2]。[read 語]");
    }
}
