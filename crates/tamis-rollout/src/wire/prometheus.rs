//! Prometheus text, as servers write it under `/metrics`.

/// One line: a name, its labels as they are written, a value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line<'a> {
    /// The metric's name.
    pub name: &'a str,
    /// What stands between the braces.
    pub labels: &'a str,
    /// Its value; not finite ones included.
    pub value: f64,
}

impl<'a> Line<'a> {
    /// The value of one label.
    pub fn label(&self, name: &str) -> Option<&'a str> {
        let mut rest = self.labels;
        while let Some((key, after)) = rest.split_once("=\"") {
            let end = closing_quote(after)?;
            if key.trim_start_matches(',').trim() == name {
                return Some(&after[..end]);
            }
            rest = &after[end + 1..];
        }
        None
    }
}

/// Where a label's value ends: the first quote that no backslash protects.
fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

/// The lines of an exposition; comments and lines that are none are left out.
///
/// ```
/// use tamis_rollout::wire::prometheus::lines;
/// let text = "# TYPE running gauge\nrunning{engine=\"0\",model=\"a\"} 3.0\nup 1\n";
/// let read: Vec<_> = lines(text).collect();
/// assert_eq!(read.len(), 2);
/// assert_eq!((read[0].name, read[0].value, read[0].label("model")), ("running", 3.0, Some("a")));
/// ```
pub fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (head, labels, tail) = if let Some((name, rest)) = line.split_once('{') {
            let end = rest.rfind('}')?;
            (name, &rest[..end], &rest[end + 1..])
        } else {
            let (name, rest) = line.split_once(' ')?;
            (name, "", rest)
        };
        let value = tail.split_whitespace().next()?.parse().ok()?;
        Some(Line { name: head.trim(), labels, value })
    })
}

/// The sum of a metric over its labels; `None` where it is not there.
pub fn sum(text: &str, name: &str) -> Option<f64> {
    lines(text)
        .filter(|line| line.name == name)
        .map(|line| line.value)
        .fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
}
