//! Prometheus text, as servers write it under `/metrics`.

/// The sum of a metric over its labels; `None` if the text does not have it.
///
/// ```
/// use tamis_rollout::wire::prometheus::sum;
/// let text = "# TYPE running gauge\nrunning{engine=\"0\"} 3.0\nrunning{engine=\"1\"} 2\nup 1\n";
/// assert_eq!((sum(text, "running"), sum(text, "up"), sum(text, "waiting")), (Some(5.0), Some(1.0), None));
/// ```
pub fn sum(text: &str, name: &str) -> Option<f64> {
    let value = |line: &str| -> Option<f64> {
        let rest = line.strip_prefix(name)?;
        let rest =
            if rest.starts_with('{') { &rest[rest.rfind('}')? + 1..] } else { rest.strip_prefix(' ')? };
        rest.split_whitespace().next()?.parse().ok()
    };
    text.lines().filter_map(value).reduce(|all, one| all + one)
}
