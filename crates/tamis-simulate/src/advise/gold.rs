//! Completions that look right although they were judged wrong.

/// Characters at the end of a completion in which an answer stands.
const TAIL: usize = 200;

/// Whether the end of a completion holds the answer that rewards compare with, as a word of its own. Case,
/// spaces around it and commas between digits do not count; of a solution that ends in `#### answer` that is
/// the answer.
///
/// ```
/// use tamis_simulate::advise::shows_gold;
/// assert!(shows_gold("so the answer is 1,024.", "1024"));
/// assert!(shows_gold("\\boxed{x+1}", "x+1") && shows_gold("#### 7", "3 + 4 = 7\n#### 7"));
/// assert!(!shows_gold("the answer is 17", "7") && !shows_gold("2.75", "2.7") && !shows_gold("12", " "));
/// ```
pub fn shows_gold(completion: &str, truth: &str) -> bool {
    let truth = plain(truth.rsplit("####").next().unwrap_or(truth));
    if truth.is_empty() {
        return false;
    }
    let start = completion.char_indices().rev().nth(TAIL - 1).map_or(0, |(at, _)| at);
    let tail = plain(&completion[start..]);
    let is_part = |next: Option<char>| next.is_some_and(char::is_alphanumeric);
    tail.match_indices(truth.as_str()).any(|(at, found)| {
        let (before, after) = (&tail[..at], &tail[at + found.len()..]);
        let mut next = after.chars();
        let first = next.next();
        // A point and a digit go on with the number.
        let goes_on =
            is_part(first) || first == Some('.') && next.next().is_some_and(|next| next.is_ascii_digit());
        let mut last = before.chars().rev();
        let first = last.next();
        let came_before =
            is_part(first) || first == Some('.') && last.next().is_some_and(|next| next.is_ascii_digit());
        let is_negative = first == Some('-') && !truth.starts_with('-');
        !goes_on && !came_before && !is_negative
    })
}

/// Lower case, without spaces around it and without commas between digits.
fn plain(text: &str) -> String {
    let text: Vec<char> = text.trim().chars().flat_map(char::to_lowercase).collect();
    let is_digit = |at: Option<usize>| at.and_then(|at| text.get(at)).is_some_and(char::is_ascii_digit);
    let stays = |at: usize| text[at] != ',' || !is_digit(at.checked_sub(1)) || !is_digit(Some(at + 1));
    (0..text.len()).filter(|at| stays(*at)).map(|at| text[at]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_looked_for_at_the_end() {
        let long = format!("the answer is 5 {}", "x ".repeat(150));
        assert!(!shows_gold(&long, "5"));
        assert!(shows_gold(&format!("{long} 5"), "5"));
        assert!(shows_gold("Paris", "paris") && !shows_gold("Parisian", "paris"));
        assert!(!shows_gold("-5", "5") && shows_gold("x = -5", "-5") && !shows_gold("1.5", "5"));
        assert!(shows_gold("é 5 é", "5") && shows_gold("5", "5"));
    }
}
