//! Ground truths as a model would write them.

/// A ground truth as a model would write it as an answer: a whole number without a fraction of zeros. A
/// verifier that compares texts rejects that answer, and the check finds it.
///
/// ```
/// use tamis_env::reward::as_written::as_written;
/// assert_eq!(as_written("72.00"), "72");
/// assert_eq!(as_written("72.50"), "72.50");
/// assert_eq!(as_written("version 2.0"), "version 2.0");
/// ```
pub fn as_written(truth: &str) -> &str {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match truth.trim().split_once('.') {
        Some((whole, zeros))
            if is_number(whole.strip_prefix('-').unwrap_or(whole).replace(',', "").as_str())
                && !zeros.is_empty()
                && zeros.bytes().all(|byte| byte == b'0') =>
        {
            whole
        }
        _ => truth,
    }
}
