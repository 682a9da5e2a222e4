//! Pass rates of the prompts in rollouts.
//!
//! c right answers of n do not mean a rate of c/n. Each prompt gets a draw from its posterior under the Beta
//! distribution that fits all prompts.

use std::collections::BTreeMap;
use std::path::Path;

use tamis_core::figure::{fixed, shortest};
use tamis_core::random::Key;
use tamis_core::schedule::Tally;
use tamis_core::schedule::yields::PassRateSpread;

use crate::Fault;
use crate::advise::{Groups, of_pass_rates, read_groups};

/// Completions that are needed for a median.
const FEWEST_LENGTHS: usize = 20;

#[derive(Debug)]
pub(crate) struct OfRollouts {
    pub(crate) rates: Vec<f64>,
    /// Warnings about the rollouts.
    pub(crate) warnings: Vec<String>,
    /// Settings that match the completions' lengths, if the rollouts have these.
    pub(crate) lengths: Option<String>,
}

/// Reads a run or a file, and draws a pass rate for each prompt.
///
/// The rate comes from the prompt's posterior under the Beta distribution fitted to all prompts, so new
/// groups are kept as often as the old ones. If the data have another number of prompts, that number is
/// drawn, each from the posterior of a prompt that was read. Reading and judging works as in `tamis advise`.
pub(crate) fn read(path: &Path, num_prompts: Option<usize>, key: Key) -> Result<OfRollouts, Fault> {
    let groups = read_groups(path)?;
    let Some(top) = groups.top() else {
        let (path, outcome) = (path.display(), groups.outcome_name());
        let why = match groups.doubtful() {
            Some((low, top)) => {
                format!("is {} or {}: is {} right?", shortest(low), shortest(top), shortest(top))
            }
            None => "has more than two values, which do not show whether a member is right".to_owned(),
        };
        return Err(Fault::failed(format!("{path}: `{outcome}` {why}")).with_hint(
            "give rows an `acc` of 1 if they are right and 0 if not, or set the rates: `pass_rate: {kind: \
             histogram, rates: [0, 0.5, 1], counts: [20, 60, 20]}`",
        ));
    };
    let mut prompts: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    for group in groups.unbiased().counts(groups.outcome, Some(top)) {
        let (correct, scored) = prompts.entry(group.prompt).or_default();
        *correct += group.correct.unwrap_or(0);
        *scored += group.n();
    }
    let counts: Vec<(usize, usize)> = prompts.into_values().collect();
    if counts.iter().all(|(_, scored)| *scored < 2) {
        let path = path.display();
        let message = format!("{path}: every prompt has one sample, which does not show how prompts differ");
        return Err(Fault::failed(message).with_hint("sample each prompt 4 times or more"));
    }
    let warnings = of_pass_rates(&groups).into_iter().map(|finding| {
        let fix = finding.fix.map_or_else(String::new, |fix| format!("; {fix}"));
        format!("rollouts of `simulate.pass_rate.path`: {}: {}{fix}", finding.topic, finding.text)
    });
    let (warnings, lengths) = (warnings.collect(), lengths_of(&groups, top));
    Ok(OfRollouts { rates: draw_rates(&counts, num_prompts.unwrap_or(counts.len()), key), warnings, lengths })
}

/// Settings for lengths: the median of correct completions, the standard deviation of the logarithm from its
/// quartiles, which truncation does not change, and the factor of wrong completions. `None` if fewer than
/// [`FEWEST_LENGTHS`] correct completions have a length.
fn lengths_of(groups: &Groups, top: f64) -> Option<String> {
    let (mut right, mut wrong) = (Vec::new(), Vec::new());
    let unbiased = groups.unbiased();
    for member in unbiased.groups.iter().flat_map(|group| &group.members) {
        let value = member.scores.get(groups.outcome).copied().filter(|value| value.is_finite());
        let (Some(value), Some(tokens)) = (value, member.tokens.filter(|tokens| *tokens > 0)) else {
            continue;
        };
        if value >= top { &mut right } else { &mut wrong }.push(tokens as f64);
    }
    if right.len() < FEWEST_LENGTHS {
        return None;
    }
    right.sort_by(f64::total_cmp);
    wrong.sort_by(f64::total_cmp);
    let at = |sorted: &[f64], share: f64| {
        sorted.get((share * sorted.len().saturating_sub(1) as f64).round() as usize).copied()
    };
    let median = at(&right, 0.5)?;
    // The quartiles of a normal distribution are 1.349 standard deviations apart.
    let sigma = ((at(&right, 0.75)? / at(&right, 0.25)?).ln() / 1.349).min(4.0);
    let factor = at(&wrong, 0.5).filter(|_| wrong.len() >= FEWEST_LENGTHS).map_or(1.0, |of| of / median);
    Some(format!(
        "simulate.length={{median: {}, sigma: {}, wrong_factor: {}}}",
        fixed(median, 0),
        fixed(sigma, 2),
        fixed(factor.clamp(0.01, 100.0), 2)
    ))
}

/// Draws `num_prompts` rates, about equally many for each prompt.
fn draw_rates(counts: &[(usize, usize)], num_prompts: usize, key: Key) -> Vec<f64> {
    let mut tally = Tally::default();
    for &(correct, scored) in counts.iter().filter(|(_, scored)| *scored > 1) {
        let (c, n) = (correct as f64, scored as f64);
        tally.paired_groups += 1;
        tally.pass_rates += c / n;
        tally.pairs_correct += c * (c - 1.0) / (n * (n - 1.0));
    }
    let spread = PassRateSpread::fit(&tally);
    let of = |number: usize| {
        let place = (number as u128 * counts.len() as u128 / num_prompts as u128) as usize;
        let (correct, scored) = counts[place];
        let (c, n) = (correct as f64, scored as f64);
        match spread {
            Some(PassRateSpread::Equal(rate)) => rate,
            Some(PassRateSpread::Beta { a, b }) => beta(key.with(number as u64), a + c, b + n - c),
            Some(PassRateSpread::Split(_)) | None => c / n,
        }
    };
    (0..num_prompts).map(of).collect()
}

/// A draw from Beta(a, b), as a ratio of two Gamma draws.
fn beta(key: Key, a: f64, b: f64) -> f64 {
    let (x, y) = (key.with(0).gamma(a), key.with(1).gamma(b));
    if x + y > 0.0 { x / (x + y) } else { 0.5 }
}

#[cfg(test)]
mod tests {
    use tamis_core::random::Purpose;
    use tamis_core::schedule::yields::keep_probability;

    use super::*;

    /// A key, `number` groups of 8 with pass rates from Beta(1/2, 1/2), and the share of them that is kept.
    fn sampled(number: u64) -> (Key, Vec<(usize, usize)>, f64) {
        let key = Key::new(3, Purpose::Bootstrap);
        let of = |prompt| {
            let key = key.with(7).with(prompt);
            let rate = beta(key, 0.5, 0.5);
            ((0..8).filter(|&member| key.with(9).uniform(member) < rate).count(), 8)
        };
        let counts: Vec<(usize, usize)> = (0..number).map(of).collect();
        let kept = counts.iter().filter(|(correct, _)| !matches!(correct, 0 | 8)).count();
        (key, counts, kept as f64 / number as f64)
    }

    /// With c/8 of a group of 8 as the pass rate, too few new groups would be kept.
    #[test]
    fn new_groups_are_kept_as_often_as_those_that_were_read() {
        let (key, counts, kept) = sampled(6000);
        let rates = draw_rates(&counts, counts.len(), key);
        let again = rates.iter().map(|rate| keep_probability(*rate, 8)).sum::<f64>() / 6000.0;
        assert!((again - kept).abs() < 0.012, "{again} against {kept}");
        let plain = counts.iter().map(|(c, _)| keep_probability(*c as f64 / 8.0, 8)).sum::<f64>() / 6000.0;
        assert!(plain < kept - 0.03, "{plain}");
    }

    /// The rates of many prompts from a sample of a few.
    #[test]
    fn rates_of_as_many_prompts_as_the_data_have() {
        let (key, counts, kept) = sampled(300);
        let mean = |rates: &[f64]| {
            rates.iter().map(|rate| keep_probability(*rate, 8)).sum::<f64>() / rates.len() as f64
        };
        for prompts in [40, 300, 301, 6000] {
            let rates = draw_rates(&counts, prompts, key);
            assert_eq!(rates.len(), prompts);
            let tolerance = if prompts < 100 { 0.15 } else { 0.05 };
            assert!((mean(&rates) - kept).abs() < tolerance, "{prompts}: {} against {kept}", mean(&rates));
        }
        let rates = draw_rates(&counts, 6000, key);
        let mut different: Vec<u64> = rates.iter().map(|rate| rate.to_bits()).collect();
        different.sort_unstable();
        different.dedup();
        assert!(different.len() > 5900, "{}", different.len());
    }

    fn read_of(rows: &str) -> Result<(Vec<f64>, Vec<String>), Fault> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("step_1.jsonl");
        std::fs::write(&file, rows).unwrap();
        let key = Key::new(1, Purpose::Bootstrap);
        let found = read(&file, None, key)?;
        assert_eq!(read(folder.path(), None, key).unwrap().rates.len(), found.rates.len());
        Ok((found.rates, found.warnings))
    }

    /// 60 correct completions of 80, 100 or 120 tokens, and 60 wrong ones twice as long.
    #[test]
    fn lengths_of_rollouts_are_told_as_settings() {
        let row = |group: usize, is_right: bool| {
            let tokens = (80 + 20 * (group % 3)) * if is_right { 1 } else { 2 };
            format!("{{\"uid\": {group}, \"acc\": {}, \"num_tokens\": {tokens}}}\n", u8::from(is_right))
        };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rows.jsonl");
        let of = |number: usize| {
            let rows: String = (0..number).flat_map(|group| [row(group, true), row(group, false)]).collect();
            std::fs::write(&file, rows).unwrap();
            read(&file, None, Key::new(1, Purpose::Bootstrap)).unwrap().lengths
        };
        // ln(120 / 80) / 1.349
        assert_eq!(of(60).as_deref(), Some("simulate.length={median: 100, sigma: 0.30, wrong_factor: 2.00}"));
        assert_eq!(of(10), None);
    }

    /// Rows of 30 groups of two members. A group is all correct, all wrong or mixed.
    fn rows(row: impl Fn(usize, bool) -> String) -> String {
        (0..30).flat_map(|group| [row(group, group % 3 == 0), row(group, group % 2 == 0)]).collect()
    }

    /// Every format that `tamis advise` reads works here.
    #[test]
    fn rollouts_of_any_program_are_read() {
        let number = |is_right: bool| u8::from(is_right);
        for rows in [
            rows(|group, is| format!("{{\"uid\": \"{group}\", \"score\": {}}}\n", number(is))),
            rows(|group, is| format!("{{\"prompt\": \"q{group}\", \"success\": {is}}}\n")),
            // verl's dumps, with its verifier's -1 for a wrong answer.
            rows(|group, is| {
                format!("{{\"input\": \"q{group}\", \"score\": {}.0}}\n", if is { "1" } else { "-1" })
            }),
            rows(|group, is| format!("{{\"uid\": {group}, \"accuracy\": {}}}\n", number(is))),
            ["{\"acc\": [0, 0, 0]}\n{\"acc\": [1, 0, 0]}\n"; 15].concat(),
        ] {
            let (rates, warnings) = read_of(&rows).unwrap();
            assert_eq!((rates.len(), warnings), (30, Vec::new()), "{rows}");
            assert!(rates.iter().any(|rate| *rate > 0.1), "{rates:?}");
        }
        // A torn last line costs a row and a warning.
        let whole = rows(|group, is| format!("{{\"uid\": {group}, \"acc\": {}}}\n", number(is)));
        let (rates, warnings) = read_of(&format!("{whole}{{\"uid\": 7, \"ac")).unwrap();
        assert_eq!(rates.len(), 30);
        assert!(warnings[0].contains("sample: 1 row left out"), "{warnings:?}");
        // Prompts that a selector chose are not a sample of the data.
        let (_, warnings) = read_of(&whole.replace("\"acc\"", "\"inclusion\": 0.5, \"acc\"")).unwrap();
        assert!(warnings[0].contains("sample: a selector chose the prompts"), "{warnings:?}");
        // The warnings of `tamis advise` appear here.
        let (_, warnings) = read_of(&whole.replace("\"acc\": 1", "\"acc\": 0")).unwrap();
        assert!(warnings[0].contains("every one of 60 trajectories has `acc` 0"), "{warnings:?}");
    }

    #[test]
    fn what_says_nothing_of_pass_rates_is_refused() {
        let refused = |rows: &str| read_of(rows).unwrap_err().to_string();
        let half =
            rows(|group, is| format!("{{\"uid\": {group}, \"score\": {}}}\n", 0.5 * f64::from(u8::from(is))));
        assert!(refused(&half).ends_with("`score` is 0 or 0.5: is 0.5 right?"), "{}", refused(&half));
        let many =
            rows(|group, is| format!("{{\"uid\": {group}, \"score\": {}}}\n", group + usize::from(is)));
        assert!(
            refused(&many)
                .ends_with("`score` has more than two values, which do not show whether a member is right")
        );
        assert!(
            refused("{\"uid\": 1, \"acc\": 1}\n{\"uid\": 2, \"acc\": 0}\n")
                .contains("every prompt has one sample")
        );
        assert!(refused("{\"uid\": 1, \"text\": \"a\"}\n").contains("no row has an outcome"));
        let nothing = read(Path::new("nothing"), None, Key::new(1, Purpose::Bootstrap)).unwrap_err();
        assert!(
            nothing.kind() == crate::FaultKind::Usage
                && nothing.hint().unwrap().contains("`simulate.pass_rate.path` names")
        );
    }

    /// For a quarter of the prompts, all members but the first are correct. Their groups continue after two
    /// members; those of the others do not.
    #[test]
    fn of_groups_that_ended_early_the_first_members_count() {
        let row = |prompt: usize, place: usize, acc: u8, verdict: &str| {
            format!(
                "{{\"prompt_id\": {prompt}, \"group_id\": {prompt}, \"sample_index\": {place}, \"acc\": {acc}, \"verdict\": \"{verdict}\"}}\n"
            )
        };
        let mut text = String::new();
        for prompt in 0..40 {
            let is_mixed = prompt % 4 == 0;
            let verdict = if is_mixed { "kept" } else { "screened" };
            text += &(row(prompt, 0, 0, verdict) + &row(prompt, 1, u8::from(is_mixed), verdict));
            if is_mixed {
                text += &(2..8).map(|place| row(prompt, place, 1, verdict)).collect::<String>();
            }
        }
        let (rates, _) = read_of(&text).unwrap();
        let mean = rates.iter().sum::<f64>() / 40.0;
        // One of eight first members is correct. Of all sampled members it would be 70 of 140.
        assert!((0.04..0.25).contains(&mean), "{mean}");
    }
}
