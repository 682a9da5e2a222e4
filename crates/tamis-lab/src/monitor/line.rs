//! Strips a line of what other programs put around it: colours, the mark of a Ray process, time and level.

use chrono::NaiveDateTime;

/// A line of a log in its parts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Line<'a> {
    /// When it was written, in seconds since an arbitrary day, if it has a time.
    pub(super) time: Option<f64>,
    /// Its level, if it is `info`, `warning` or `error`.
    pub(super) level: Option<&'static str>,
    /// Whether its time and level have tamis's format.
    pub(super) is_stamped_by_tamis: bool,
    /// The rest, with its indentation.
    pub(super) text: &'a str,
}

/// A line without the sequences that colour a terminal, and without other control characters.
pub(super) fn without_colours(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut rest = line.chars();
    while let Some(next) = rest.next() {
        if next == '\u{1b}' {
            if rest.next() == Some('[') {
                // Parameters end at the first letter.
                rest.by_ref().find(|next| ('@'..='~').contains(next));
            }
        } else if next == '\t' || !next.is_control() {
            plain.push(next);
        }
    }
    plain
}

impl<'a> Line<'a> {
    /// Splits a line without colours into its parts.
    pub(super) fn of(line: &'a str) -> Self {
        let line = without_process(line);
        if let Some((time, rest)) = line.split_once(' ')
            && let Some(seconds) = seconds_of(time, 'T')
            && time.ends_with('Z')
            && let Some((kind, text)) = rest.split_once(' ').or(Some((rest, "")))
            && let Some(level) = level_of(kind)
        {
            return Self { time: Some(seconds), level: Some(level), is_stamped_by_tamis: true, text };
        }
        let (time, rest) = match line.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
            Some((time, rest)) if seconds_of(time, ' ').is_some() => (seconds_of(time, ' '), rest),
            _ => (None, line),
        };
        let leveled = rest.split_once(": ").and_then(|(word, text)| Some((level_of(word)?, text)));
        let (level, text) = leveled.map_or((None, rest), |(level, text)| (Some(level), text));
        Self { time, level, is_stamped_by_tamis: false, text }
    }
}

/// A line without the mark that Ray puts before it: `(TaskRunner pid=71, ip=10.0.0.1) `.
fn without_process(line: &str) -> &str {
    let rest = line.strip_prefix('(').and_then(|rest| rest.split_once(')'));
    match rest {
        Some((process, rest)) if process.contains(" pid=") => rest.strip_prefix(' ').unwrap_or(rest),
        _ => line,
    }
}

fn level_of(word: &str) -> Option<&'static str> {
    match word {
        "info" | "INFO" => Some("info"),
        "warning" | "WARNING" => Some("warning"),
        "error" | "ERROR" => Some("error"),
        _ => None,
    }
}

/// Seconds of `2024-01-01 10:00:15`, also with fractions; `between` separates day and hour.
fn seconds_of(text: &str, between: char) -> Option<f64> {
    let text = text.trim_end_matches('Z').replace(',', ".");
    let time = NaiveDateTime::parse_from_str(&text, &format!("%Y-%m-%d{between}%H:%M:%S%.f")).ok()?;
    Some(time.and_utc().timestamp_micros() as f64 / 1e6)
}

/// The number at the start of a text (`1024`, `1,024`), and what follows it.
pub(super) fn number(text: &str) -> Option<(u64, &str)> {
    let num_digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let mut end = num_digits(text);
    // A comma separates thousands if three digits follow it and one to three precede the first.
    if (1..=3).contains(&end) {
        while text
            .get(end..)
            .and_then(|rest| rest.strip_prefix(','))
            .is_some_and(|rest| num_digits(rest) == 3)
        {
            end += 4;
        }
    }
    Some((text.get(..end)?.replace(',', "").parse().ok()?, text.get(end..)?))
}

pub(super) fn number_after(text: &str, mark: &str) -> Option<u64> {
    let (_, rest) = text.split_once(mark)?;
    number(rest.trim_start()).map(|(number, _)| number)
}

/// The share of `58.6%`: the number before the first percent sign.
pub(super) fn share(text: &str) -> Option<f64> {
    let (before, _) = text.split_once('%')?;
    let start = before
        .rfind(|part: char| !part.is_ascii_digit() && part != '.')
        .map_or(0, |at| at + before[at..].chars().next().map_or(1, char::len_utf8));
    let percent: f64 = before.get(start..)?.parse().ok()?;
    (0.0..=100.0).contains(&percent).then_some(percent / 100.0)
}

/// A number as Python prints it: `0.5`, `1e-06`, `nan`, `np.float64(0.5)`, `tensor(0.5)`.
pub(super) fn python_number(text: &str) -> Option<f64> {
    let text = text.trim();
    let inner = match text.split_once('(') {
        Some((_, inner)) => inner.split([')', ',']).next()?,
        None => text,
    };
    match inner {
        "True" | "true" => Some(1.0),
        "False" | "false" => Some(0.0),
        ".nan" => Some(f64::NAN),
        ".inf" => Some(f64::INFINITY),
        "-.inf" => Some(f64::NEG_INFINITY),
        _ => inner.replace('_', "").parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_around_a_line() {
        let line = Line::of("2026-11-21T05:12:33.123Z warning one two");
        assert_eq!((line.level, line.text, line.is_stamped_by_tamis), (Some("warning"), "one two", true));
        let line = Line::of("[2024-01-01 10:00:15] INFO: Generated batch 1, 1024 prompts");
        assert_eq!((line.level, line.text), (Some("info"), "Generated batch 1, 1024 prompts"));
        let later = Line::of("[2024-03-01 10:00:16] INFO: x").time.unwrap();
        assert!((later - line.time.unwrap() - (60.0 * 86_400.0 + 1.0)).abs() < 1e-6, "2024 has a leap day");
        let ray = without_colours("\u{1b}[36m(TaskRunner pid=71, ip=10.0.0.1)\u{1b}[0m step:1 - a:2");
        assert_eq!(Line::of(&ray).text, "step:1 - a:2");
        assert_eq!(Line::of("(Runner pid=7)   mean: 0.5").text, "  mean: 0.5");
        for plain in ["(a note) x", "[Dynamic Sampling] Need more", "", "[", "(", "2026", "a: b", "é] ("] {
            assert_eq!(Line::of(plain).text, plain);
        }
    }

    #[test]
    fn numbers_of_others() {
        assert_eq!(share("Filtered: 600 prompts with std=0 (58.6%)"), Some(0.586));
        assert_eq!(share("é100%"), Some(1.0));
        assert_eq!([share("%"), share("1.2.3%"), share("900%")], [None; 3]);
        assert_eq!(python_number("np.float64(0.25)"), Some(0.25));
        assert_eq!(python_number("tensor(0.5, device='cuda:0')"), Some(0.5));
        assert_eq!(python_number("1e-06"), Some(1e-6));
        assert!(python_number("nan").is_some_and(f64::is_nan));
        assert_eq!(python_number("'a'"), None);
        assert_eq!(number_after("prompt_bsz=1024", "prompt_bsz="), Some(1024));
        assert_eq!(number_after("x=99999999999999999999999", "x="), None);
        assert_eq!(number("1,024 prompts"), Some((1024, " prompts")));
        assert_eq!(number("12,345,678"), Some((12_345_678, "")));
        assert_eq!([number("1, 1024"), number("1024,512")], [Some((1, ", 1024")), Some((1024, ",512"))]);
    }
}
