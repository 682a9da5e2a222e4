//! The catalogue of metrics: each is defined here once, and `docs/metrics.md` is generated from it.
//!
//! A name is a pattern: `{...}` matches any text that is not empty (a score's name, a data source, a
//! number of samples). If a metric is set under a name that no pattern matches, the test that sets it
//! fails.

use std::fmt::Write as _;

mod definitions;

pub use definitions::CATALOGUE;

/// The other system that has a metric of this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricSource {
    /// verl's name and definition.
    Verl,
    /// TRL's name and definition.
    Trl,
    /// A name that verl's filter-group log lines use.
    FilterGroups,
    /// Ours.
    Tamis,
}

impl MetricSource {
    fn name(self) -> &'static str {
        match self {
            Self::Verl => "verl",
            Self::Trl => "TRL",
            Self::FilterGroups => "verl's filter-group log lines",
            Self::Tamis => "tamis",
        }
    }
}

/// One metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Definition {
    /// Name, with `{...}` for a variable part.
    pub pattern: &'static str,
    /// Unit; empty for a plain number.
    pub unit: &'static str,
    /// Meaning of the metric, in a sentence of a cell's length.
    pub meaning: &'static str,
    /// The library that the name comes from.
    pub source: MetricSource,
    /// The metric that it repeats.
    pub alias_of: Option<&'static str>,
    /// Whether it depends on the clock, so that two runs with the same seed differ in it.
    pub wall_clock: bool,
}

/// A heading of the catalogue with its metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section {
    /// Heading.
    pub title: &'static str,
    /// Scope of these metrics, and details that do not fit into a cell: Markdown.
    pub about: &'static str,
    /// The metrics.
    pub metrics: &'static [Definition],
}

fn definitions() -> impl Iterator<Item = &'static Definition> {
    CATALOGUE.iter().flat_map(|section| section.metrics)
}

/// The definition of a metric: the first pattern that matches its name, one without a variable part before
/// others.
pub fn find(name: &str) -> Option<&'static Definition> {
    definitions()
        .find(|definition| definition.pattern == name)
        .or_else(|| definitions().find(|definition| matches(definition.pattern, name)))
}

/// Whether a metric depends on the clock; comparisons of two runs leave it out. A name outside the catalogue
/// does not.
pub fn is_wall_clock(name: &str) -> bool {
    find(name).is_some_and(|definition| definition.wall_clock)
}

/// The pairs (second name, name whose value it repeats), none with a variable part.
pub fn aliases() -> impl Iterator<Item = (&'static str, &'static str)> {
    definitions().filter_map(|definition| Some((definition.pattern, definition.alias_of?)))
}

/// The variable parts of a name that fits a pattern, as (name in braces, text); `None` if it does not
/// fit. If there are several ways, the first parts are the shortest.
///
/// ```
/// use tamis_run::metrics::catalogue::parts;
/// let found = parts("val-core/{source}/acc/mean@{n}", "val-core/openai/gsm8k/acc/mean@8");
/// assert_eq!(found, Some(vec![("source", "openai/gsm8k"), ("n", "8")]));
/// ```
pub fn parts<'n>(pattern: &'static str, name: &'n str) -> Option<Vec<(&'static str, &'n str)>> {
    let Some((literal, rest)) = pattern.split_once('{') else {
        return (pattern == name).then(Vec::new);
    };
    let (variable, after) = rest.split_once('}')?;
    let tail = name.strip_prefix(literal)?;
    let ends = tail.char_indices().skip(1).map(|(place, _)| place);
    ends.chain(std::iter::once(tail.len()).filter(|&length| length > 0)).find_map(|end| {
        let (text, rest) = tail.split_at(end);
        let mut found = vec![(variable, text)];
        found.extend(parts(after, rest)?);
        Some(found)
    })
}

/// Whether `name` fits `pattern`, each `{...}` standing for one character or more.
fn matches(pattern: &'static str, name: &str) -> bool {
    parts(pattern, name).is_some()
}

/// The catalogue as a page; `docs/metrics.md` is this text.
pub fn catalogue_markdown() -> String {
    let mut page = String::from(
        "# Metrics\n\n\
         <!-- Generated from the definitions in crates/tamis-run/src/metrics by scripts/generate; do not edit. -->\n\n\
         Every metric of `metrics.jsonl`, TensorBoard and the console, defined once. A part in braces varies.\n\n\
         - *Whose*: the system that uses the name with this meaning.\n\
         - *Second name*: repeats the value of another metric, for readers who know it under that name.\n\
         - *Clock*: depends on the wall clock; leave it out when two runs are compared. All others are equal, bit for\n  \
           bit, for the same seed on the same machine.\n\n\
         Trajectories that no reward function answered (unscored) are outside every statistic of scores and rewards;\n\
         they count in lengths and tokens. A metric without a value (a mean over nothing) is left out, or `null`.\n",
    );
    for section in CATALOGUE {
        let _ = write!(page, "\n## {}\n\n{}\n\n", section.title, section.about);
        page += "| name | unit | meaning | whose | clock |\n|---|---|---|---|---|\n";
        for metric in section.metrics {
            let meaning = match metric.alias_of {
                Some(original) => format!("Second name of `{original}`. {}", metric.meaning),
                None => metric.meaning.to_owned(),
            };
            let _ = writeln!(
                page,
                "| `{}` | {} | {} | {} | {} |",
                metric.pattern,
                metric.unit,
                meaning.trim_end().replace('|', "\\|"),
                metric.source.name(),
                if metric.wall_clock { "yes" } else { "" }
            );
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every metric that other systems log for filter groups, dynamic sampling and GRPO is there.
    #[test]
    fn every_metric_that_the_documents_name_is_there() {
        for name in [
            "train/num_gen_batches",
            "train/filter_rate",
            "train/mean_metric_std",
            "train/num_kept_prompts",
            "train/in_group_reward_std",
            "train/early_stopped",
            "rollout/in_group_reward_std",
            "dynamic_sampling/num_gen_batches",
            "dynamic_sampling/num_accumulated_prompts",
            "dynamic_sampling/target_prompt_num",
            "timing_s/reward/judge",
            "num_tokens",
            "step_time",
            "completions/mean_length",
            "completions/min_length",
            "completions/max_length",
            "completions/clipped_ratio",
            "completions/mean_terminated_length",
            "completions/min_terminated_length",
            "completions/max_terminated_length",
            "rewards/judge/mean",
            "rewards/judge/std",
            "reward",
            "reward_std",
            "frac_reward_zero_std",
            "entropy",
            "kl",
            "clip_ratio/region_mean",
            "clip_ratio/low_mean",
            "clip_ratio/low_min",
            "clip_ratio/high_mean",
            "clip_ratio/high_max",
        ] {
            let definition = find(name).unwrap_or_else(|| panic!("{name} is not in the catalogue"));
            assert!(
                definition.pattern == name || name.contains("judge"),
                "{name} is only {}",
                definition.pattern
            );
        }
    }

    #[test]
    fn patterns() {
        assert!(matches("rewards/{name}/mean", "rewards/acc/mean"));
        assert!(matches("rewards/{name}/mean", "rewards/a/b/mean"), "names may hold slashes");
        assert!(matches("rewards/{name}/mean", "rewards/mean/mean"));
        assert!(matches("rewards/{name}/mean", "rewards/é/mean"));
        assert!(!matches("rewards/{name}/mean", "rewards//mean"), "a part is not empty");
        assert!(!matches("rewards/{name}/mean", "rewards/acc/std"));
        assert!(matches("val-core/{source}/acc/mean@{n}", "val-core/openai/gsm8k/acc/mean@8"));
        assert!(matches("timing_s/{stage}", "timing_s/gen"));
        assert!(!matches("timing_s/{stage}", "timing_s/"));
    }

    #[test]
    fn each_metric_is_defined_once_and_well() {
        let all: Vec<_> = definitions().collect();
        for (place, definition) in all.iter().enumerate() {
            let name = definition.pattern;
            assert!(all[..place].iter().all(|other| other.pattern != name), "{name} twice");
            assert!(definition.meaning.ends_with('.'), "{name}: a sentence");
            assert!(
                definition.meaning.len() <= 110,
                "{name}: too long for a cell, see the section's `about`"
            );
            let clock_by_name =
                ["timing_s/", "timing_per_token_ms/"].iter().any(|prefix| name.starts_with(prefix));
            assert!(definition.wall_clock || !clock_by_name, "{name} is of the clock");
            if let Some(original) = definition.alias_of {
                let original = all.iter().find(|other| other.pattern == original);
                let original = original.unwrap_or_else(|| panic!("{name} repeats what is not there"));
                assert!(original.alias_of.is_none(), "{name} repeats a repetition");
                assert_eq!(original.wall_clock, definition.wall_clock, "{name}");
                assert!(!name.contains('{'), "{name}");
            }
        }
    }

    /// A constant name may also fit a pattern (`val-core/...`); then the exact one is meant.
    #[test]
    fn the_exact_name_goes_first() {
        for definition in definitions().filter(|definition| !definition.pattern.contains('{')) {
            assert_eq!(find(definition.pattern), Some(definition));
        }
    }

    #[test]
    fn the_page_is_up_to_date() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
        let page = catalogue_markdown();
        let written = std::fs::read_to_string(&path).expect("docs/metrics.md is there");
        assert!(written == page, "docs/metrics.md is not what the catalogue gives: run scripts/generate");
    }
}
