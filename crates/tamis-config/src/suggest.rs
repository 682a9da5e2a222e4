//! "Did you mean".

/// The key that was probably meant by an unknown one: a neighbour in the same section that is spelled alike;
/// otherwise, of the keys anywhere with the same last part, the one that is most like it as a whole;
/// otherwise one that is spelled alike as a whole. Never a section that the key itself names.
/// If the key or its last part is another system's name of a key, `ours_of` returns that key, which is
/// preferred to keys elsewhere.
pub fn nearest_key(
    key: &str,
    section: &str,
    siblings: &[&'static str],
    all: &[String],
    ours_of: fn(&str) -> Option<&'static str>,
) -> Option<String> {
    let name = key.rsplit('.').next().unwrap_or(key);
    let sibling = siblings
        .iter()
        .rev()
        .map(|&candidate| (similarity(name, candidate), candidate))
        .filter(|(score, _)| *score >= 0.8)
        .max_by(|(left, _), (right, _)| left.total_cmp(right));
    if let Some((_, candidate)) = sibling {
        return Some(crate::tree::join(section, candidate));
    }
    if let Some(ours) = ours_of(key).or_else(|| ours_of(name)) {
        return Some(ours.to_owned());
    }
    let is_around = |candidate: &str| key.strip_prefix(candidate).is_some_and(|rest| rest.starts_with('.'));
    let same = all.iter().filter(|candidate| candidate.rsplit('.').next() == Some(name));
    let same = same.filter(|candidate| !is_around(candidate));
    // Among equals, the first.
    if let Some(same) =
        same.rev().max_by(|left, right| similarity(key, left).total_cmp(&similarity(key, right)))
    {
        return Some(same.clone());
    }
    all.iter()
        .rev()
        .filter(|candidate| !is_around(candidate))
        .map(|candidate| {
            let last = candidate.rsplit('.').next().unwrap_or(candidate);
            (similarity(name, last).max(similarity(key, candidate)), candidate)
        })
        .filter(|(score, _)| *score >= 0.85)
        .max_by(|(left, _), (right, _)| left.total_cmp(right))
        .map(|(_, candidate)| candidate.clone())
}

/// The allowed value that was probably meant.
pub fn nearest_value(value: &str, allowed: &[&'static str]) -> Option<String> {
    allowed
        .iter()
        .map(|&candidate| (similarity(value, candidate), candidate))
        .filter(|(score, _)| *score >= 0.75)
        .max_by(|(left, _), (right, _)| left.total_cmp(right))
        .map(|(_, candidate)| candidate.to_owned())
}

/// 1 for the same text up to case and the kind of separator, towards 0 for nothing in common.
fn similarity(left: &str, right: &str) -> f64 {
    // The measure is quadratic; nothing that long is a misspelt key.
    if left.len() > 100 {
        return 0.0;
    }
    let fold = |text: &str| text.to_lowercase().replace(['-', ' '], "_");
    strsim::normalized_damerau_levenshtein(&fold(left), &fold(right))
        .max(strsim::jaro_winkler(&fold(left), &fold(right)) - 0.1)
}
