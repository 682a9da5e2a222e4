//! Finds completions that look right although they were judged wrong.

/// Text before an answer.
const MARKS: [&str; 5] = ["####", "\\boxed{", "A:", "answer is", "answer:"];

/// Whether the last answer in a completion is the one that rewards compare with. The answer is the text after
/// the last `####`, `\boxed{`, `A:`, `answer is` or `answer:`, otherwise the last number of the last line, or
/// that whole line. Numbers are compared by value. In other answers case, spaces and surrounding punctuation
/// do not count.
///
/// ```
/// use tamis_lab::advise::shows_gold;
/// assert!(shows_gold("so the answer is 1,024.", "1024"));
/// assert!(shows_gold("\\boxed{x+1}", "x+1") && shows_gold("#### 7", "3 + 4 = 7\n#### 7"));
/// assert!(!shows_gold("the answer is 17", "7") && !shows_gold("2.75", "2.7") && !shows_gold("12", " "));
/// assert!(!shows_gold("16 - 3 = 13\nA: 26", "13"));
/// ```
pub fn shows_gold(completion: &str, truth: &str) -> bool {
    let truth = plain(marked(truth).unwrap_or(truth));
    if truth.is_empty() {
        return false;
    }
    let said = marked(completion);
    let last_line = completion.trim_end().lines().next_back().unwrap_or_default();
    let answer = plain(said.unwrap_or(last_line));
    if answer == truth {
        return true;
    }
    let Ok(wanted) = truth.parse::<f64>() else { return false };
    let numbers = numbers(&answer);
    // If a calculation or a second number follows the mark, the answer is not clear.
    let is_plain = said.is_none() || numbers.len() == 1;
    is_plain && numbers.last().is_some_and(|number| (number - wanted).abs() <= 1e-9 * wanted.abs())
}

/// The text after the last mark, up to the end of its line or its closing brace.
fn marked(text: &str) -> Option<&str> {
    let lower = text.to_ascii_lowercase();
    let of = |mark: &'static str| {
        // A single letter is a mark only as a capital at the start of a word.
        let searched = if mark == "A:" { text } else { lower.as_str() };
        let is_word =
            |at: &usize| mark != "A:" || !text[..*at].chars().next_back().is_some_and(char::is_alphanumeric);
        let found = searched.rmatch_indices(mark).map(|(at, _)| at).find(is_word)?;
        Some((found + mark.len(), mark))
    };
    let (start, mark) = MARKS.iter().filter_map(|mark| of(mark)).max()?;
    let rest = &text[start..];
    if mark.ends_with('{') {
        let mut depth = 1;
        let end = rest.find(|of| {
            depth += i32::from(of == '{') - i32::from(of == '}');
            depth == 0
        });
        return Some(&rest[..end.unwrap_or(rest.len())]);
    }
    Some(rest.trim_start().lines().next().unwrap_or_default())
}

/// Lower case, without surrounding spaces and punctuation, and without commas between digits.
fn plain(text: &str) -> String {
    let around = |of: char| of.is_whitespace() || "$*.,;:!\"'`".contains(of);
    let text: Vec<char> = text.trim_matches(around).chars().flat_map(char::to_lowercase).collect();
    let is_digit = |at: Option<usize>| at.and_then(|at| text.get(at)).is_some_and(char::is_ascii_digit);
    let stays = |at: usize| text[at] != ',' || !is_digit(at.checked_sub(1)) || !is_digit(Some(at + 1));
    (0..text.len()).filter(|at| stays(*at)).map(|at| text[at]).collect()
}

/// The numbers of a text, in order. A minus after a letter or a digit is not a sign.
fn numbers(text: &str) -> Vec<f64> {
    let text: Vec<char> = text.chars().collect();
    let is_number = |at: usize| text.get(at).is_some_and(|of| of.is_ascii_digit() || *of == '.');
    let mut found = Vec::new();
    let mut at = 0;
    while at < text.len() {
        if !text[at].is_ascii_digit() {
            at += 1;
            continue;
        }
        let start = at;
        while is_number(at) {
            at += 1;
        }
        let is_negative =
            start > 0 && text[start - 1] == '-' && (start == 1 || !text[start - 2].is_alphanumeric());
        let digits: String = text[start..at].iter().collect();
        if let Ok(number) = digits.trim_end_matches('.').parse::<f64>() {
            found.push(if is_negative { -number } else { number });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_answer_counts() {
        let long = format!("the answer is 5 {}", "x ".repeat(150));
        assert!(shows_gold(&long, "5") && shows_gold(&format!("{long} 5 \n#### 7"), "7"));
        // An intermediate result is no answer.
        assert!(!shows_gold("She has 18 eggs left\nA: 26", "18"));
        assert!(!shows_gold("16 - 3 = 13\nso 2 * 13 = 26", "13") && shows_gold("so 2 * 13 = 26 eggs.", "26"));
        assert!(!shows_gold("The answer is 3 of 4", "3") && !shows_gold("the answer is 5\n#### 6", "5"));
        assert!(
            shows_gold("DNA: 4", "4")
                && shows_gold("A: $18.00", "18")
                && shows_gold("\\boxed{\\frac{1}{2}}.", "\\frac{1}{2}")
        );
        assert!(shows_gold("Paris", "paris") && !shows_gold("Parisian", "paris"));
        assert!(!shows_gold("-5", "5") && shows_gold("x = -5", "-5") && !shows_gold("1.5", "5"));
        assert!(shows_gold("é 5 é", "5") && shows_gold("5", "5") && shows_gold("16-3", "3"));
    }
}
