//! Which metrics are drawn together, and in which part of the page.

/// A part of the page that has charts of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// How good the policy is.
    Learning,
    /// What the filter does.
    Sieve,
    Update,
    /// How long completions are.
    Length,
    /// Age and importance weights of what is trained on.
    Freshness,
    /// How fast it goes.
    Time,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Lines {
    /// Each line has its name and the metrics that it may show. The first that a run has is drawn.
    Named(&'static [(&'static str, &'static [&'static str])]),
    /// Every metric with this beginning and end, named by what is between them.
    Between(&'static str, &'static str),
}

/// A chart of metrics over the steps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figure {
    /// Where it stands.
    pub(crate) part: Part,
    pub(crate) title: &'static str,
    /// A note for the reader.
    pub(crate) about: &'static str,
    pub(crate) lines: Lines,
    pub(crate) is_share: bool,
    /// Metrics of the smallest and the largest value behind the first line, for a band around it.
    pub(crate) band: Option<(&'static str, &'static str)>,
}

const fn figure(part: Part, title: &'static str, about: &'static str, lines: Lines) -> Figure {
    Figure { part, title, about, lines, is_share: false, band: None }
}

impl Figure {
    const fn share(self) -> Self {
        Self { is_share: true, ..self }
    }

    const fn band(self, least: &'static str, most: &'static str) -> Self {
        Self { band: Some((least, most)), ..self }
    }
}

/// Title of the figure of validations.
pub(crate) const VALIDATION: &str = "Validation";

/// All of them, in the order of the page.
#[rustfmt::skip]
pub(crate) const FIGURES: &[Figure] = &[
    figure(Part::Learning, VALIDATION,
        "Mean score of the validation prompts. Nothing is filtered here: runs are compared by this.",
        Lines::Between("val-core/", "/mean@{n}")),
    figure(Part::Learning, "Reward",
        "A filtered batch is biased: its mean stays near the middle, whatever the policy can do. The line of all generated trajectories is how good it is.",
        Lines::Named(&[
            ("all generated", &["all/critic/score/mean"]),
            ("trained", &["critic/score/mean", "critic/rewards/mean", "reward"]),
        ])),
    figure(Part::Learning, "Pass rate",
        "Share of correct trajectories, among all generated and among the trained ones.",
        Lines::Named(&[
            ("all generated", &["all/pass_rate"]),
            ("trained", &["train/pass_rate"]),
        ])).share(),
    figure(Part::Learning, "Solved episodes",
        "Share of the generated episodes whose task was solved, dropped groups too.",
        Lines::Between("train/", "/success")).share(),
    figure(Part::Learning, "Scores of all generated",
        "Mean of each score, unweighted, over everything generated.",
        Lines::Between("all/rewards/", "/mean")),
    figure(Part::Learning, "Deviation of the reward within a group",
        "Where it is 0, a group teaches nothing.",
        Lines::Named(&[("all generated", &["rollout/in_group_reward_std", "train/mean_metric_std"])])),
    figure(Part::Sieve, "Dropped by the filter",
        "Share of the generated groups that the filter dropped.",
        Lines::Named(&[("dropped", &["train/filter_rate"])])).share(),
    figure(Part::Sieve, "Generation rounds",
        "Rounds that it took to fill the batch.",
        Lines::Named(&[("rounds", &["train/num_gen_batches", "dynamic_sampling/num_gen_batches"])])),
    figure(Part::Sieve, "Groups that teach nothing",
        "Share of groups whose rewards are all equal, and of trained groups whose advantages are all 0.",
        Lines::Named(&[
            ("equal rewards, all generated", &["all/frac_reward_zero_std"]),
            ("equal rewards, trained", &["frac_reward_zero_std"]),
            ("zero advantage, trained", &["diagnostics/zero_advantage/groups"]),
        ])).share(),
    figure(Part::Update, "Entropy",
        "Of the policy at the sampled tokens, nats a token. It falls as the policy becomes sure.",
        Lines::Named(&[("entropy", &["actor/entropy", "entropy"])])),
    figure(Part::Update, "Divergence from the reference",
        "Nats a token. Left out if the run has no reference.",
        Lines::Named(&[
            ("estimated", &["kl"]),
            ("in the loss", &["actor/kl_loss"]),
            ("off the reward", &["actor/reward_kl_penalty"]),
        ])),
    figure(Part::Update, "Divergence within a step",
        "Of the policy from where it began the step, and of the sampler from the trainer, nats a token.",
        Lines::Named(&[
            ("old to new", &["actor/ppo_kl"]),
            ("old to new, k3", &["actor/ppo_kl_k3"]),
            ("sampler to trainer, k3", &["rollout_corr/k3_kl"]),
        ])),
    figure(Part::Update, "Clip fractions",
        "Share of tokens whose ratio was clipped.",
        Lines::Named(&[
            ("clipped", &["actor/pg_clipfrac", "clip_ratio/region_mean"]),
            ("from above", &["clip_ratio/high_mean"]),
            ("from below", &["clip_ratio/low_mean"]),
            ("dual clip", &["actor/pg_clipfrac_lower"]),
        ])),
    figure(Part::Update, "Gradient norm",
        "Before clipping; ▲ marks a step whose norm was not finite.",
        Lines::Named(&[("policy", &["actor/grad_norm", "grad_norm"]), ("critic", &["critic/grad_norm"])])),
    figure(Part::Update, "Ratio of new to old probability",
        "Mean over tokens, with the smallest and the largest of a token as a band.",
        Lines::Named(&[("ratio", &["actor/ratio_mean"])])).band("actor/ratio_min", "actor/ratio_max"),
    figure(Part::Update, "Loss",
        "What is minimised. In reinforcement learning it does not show how good the policy is.",
        Lines::Named(&[("loss", &["loss"]), ("policy loss", &["actor/pg_loss"])])),
    figure(Part::Update, "Learning rate", "Of the last update of a step.",
        Lines::Named(&[("policy", &["actor/lr", "learning_rate"]), ("critic", &["critic/lr"])])),
    figure(Part::Update, "The critic", "Share of the returns' variance that its values explain.",
        Lines::Named(&[("explained", &["critic/vf_explained_var"])])),
    figure(Part::Length, "Completion length",
        "Mean number of tokens, with the shortest and the longest of all generated as a band.",
        Lines::Named(&[
            ("all generated", &["all/response_length/mean"]),
            ("trained", &["response_length/mean", "completions/mean_length"]),
        ])).band("all/response_length/min", "all/response_length/max"),
    figure(Part::Length, "Truncated completions",
        "Share that was cut at the limit.",
        Lines::Named(&[
            ("all generated", &["all/response_length/clip_ratio"]),
            ("trained", &["response_length/clip_ratio", "completions/clipped_ratio"]),
        ])).share(),
    figure(Part::Length, "Turns of an episode", "Mean number of answers.",
        Lines::Between("train/", "/num_turns")),
    figure(Part::Length, "Prompt length", "Mean number of tokens.",
        Lines::Named(&[("all generated", &["all/prompt_length/mean"]), ("trained", &["prompt_length/mean"])])),
    figure(Part::Freshness, "Lag",
        "Greatest lag of a trained group: the version that trains it minus the one that dispatched it.",
        Lines::Named(&[("greatest lag", &["schedule/max_lag"])])),
    figure(Part::Freshness, "Weights of groups",
        "Mean weight, with the smallest and the largest as a band.",
        Lines::Named(&[("weight", &["train/soft_reweight_mean"])])).band("train/soft_reweight_min", "train/soft_reweight_max"),
    figure(Part::Freshness, "Weights of trajectories", "Mean, by the loss that weighs them.",
        Lines::Named(&[("weight", &["vespo/phi_seq_mean"]), ("bounded from above", &["cispo_clip_ratio"])])),
    figure(Part::Freshness, "Hard prompts",
        "Share of the trained groups whose prompt is hard. With its weights a selector trains on as many as a run that chooses none.",
        Lines::Named(&[
            ("trained", &["selector/hard_share"]),
            ("trained, weighted", &["selector/hard_share_weighted"]),
            ("without a choice", &["selector/hard_share_blind"]),
        ])).share(),
    figure(Part::Freshness, "Easy prompts",
        "Share of the trained groups whose prompt is easy.",
        Lines::Named(&[
            ("trained", &["selector/easy_share"]),
            ("trained, weighted", &["selector/easy_share_weighted"]),
            ("without a choice", &["selector/easy_share_blind"]),
        ])).share(),
    figure(Part::Freshness, "Choice of prompts",
        "Mean probability with which trained prompts were taken, and share of the prompts that were passed over.",
        Lines::Named(&[
            ("inclusion", &["selector/inclusion/mean"]),
            ("passed over", &["selector/skipped_share"]),
        ])).share(),
    figure(Part::Freshness, "Effective share of weights",
        "Effective size of a weighted batch, as a share of an unweighted one, by the weights of a selector and by those of importance \
        sampling.",
        Lines::Named(&[
            ("of chosen groups", &["selector/effective_share"]),
            ("of importance weights", &["rollout_corr/rollout_is_eff_sample_size"]),
        ])).share(),
    figure(Part::Freshness, "Importance weights",
        "Mean weight that corrects for the sampler, with the smallest and the largest as a band.",
        Lines::Named(&[("weight", &["rollout_corr/rollout_is_mean"])]))
        .band("rollout_corr/rollout_is_min", "rollout_corr/rollout_is_max"),
    figure(Part::Freshness, "Sampler and trainer",
        "Difference of the log-probability of a sampled token, nats.",
        Lines::Named(&[
            ("mean", &["sampling/sampling_logp_difference/mean"]),
            ("largest", &["sampling/sampling_logp_difference/max"]),
        ])),
    figure(Part::Time, "Throughput", "Tokens a second.",
        Lines::Named(&[
            ("generated, by the time of generation", &["perf/gen_throughput"]),
            ("trained, by the time of updates", &["perf/update_throughput"]),
            ("trained, by the time of the step", &["perf/throughput"]),
        ])),
    figure(Part::Time, "MFU", "Share of the device's peak that the updates took.",
        Lines::Named(&[("updates", &["perf/mfu", "perf/mfu/actor"])])).share(),
    figure(Part::Time, "Time of a step", "Seconds.",
        Lines::Named(&[("step", &["timing_s/step", "perf/time_per_step", "step_time"])])),
];

impl Lines {
    /// The lines of some metrics: name, and the metrics that it may show.
    pub(crate) fn of(self, names: &std::collections::BTreeSet<&str>) -> Vec<(String, Vec<String>)> {
        match self {
            Self::Named(lines) => lines
                .iter()
                .map(|(name, metrics)| {
                    ((*name).to_owned(), metrics.iter().map(|&name| name.to_owned()).collect())
                })
                .collect(),
            Self::Between(before, after) => {
                let between = |name: &&str| {
                    let rest = name.strip_prefix(before)?;
                    // `{n}` stands for digits.
                    let Some(after) = after.strip_suffix("{n}") else {
                        let inner = rest.strip_suffix(after)?;
                        return Some((inner.to_owned(), vec![(*name).to_owned()]));
                    };
                    let stem = rest.trim_end_matches(|c: char| c.is_ascii_digit());
                    let inner = stem.strip_suffix(after).filter(|_| stem.len() < rest.len())?;
                    Some((inner.to_owned(), vec![(*name).to_owned()]))
                };
                names.iter().filter_map(between).filter(|(inner, _)| !inner.is_empty()).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tamis_run::metrics::catalogue::find;

    use super::*;

    #[test]
    fn every_metric_is_in_the_catalogue() {
        for figure in FIGURES {
            let mut names: Vec<String> = match figure.lines {
                Lines::Named(lines) => {
                    lines.iter().flat_map(|(_, names)| *names).map(|&name| name.to_owned()).collect()
                }
                Lines::Between(before, after) => {
                    vec![format!("{before}x{}", after.replace("{n}", "4")).replace("core/x", "core/x/acc")]
                }
            };
            names.extend(
                figure.band.iter().flat_map(|(least, most)| [(*least).to_owned(), (*most).to_owned()]),
            );
            for name in names {
                assert!(find(&name).is_some(), "{}: {name}", figure.title);
            }
        }
    }

    #[test]
    fn lines_by_their_names() {
        let names = BTreeSet::from([
            "val-core/x/acc/mean@4",
            "val-core/y/mean@",
            "val-core/x/acc/pass@4",
            "train/a/success",
        ]);
        let found = Lines::Between("val-core/", "/mean@{n}").of(&names);
        assert_eq!(found, [("x/acc".to_owned(), vec!["val-core/x/acc/mean@4".to_owned()])]);
        assert_eq!(Lines::Between("train/", "/success").of(&names)[0].0, "a");
    }
}
