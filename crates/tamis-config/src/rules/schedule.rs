//! Rules about generation rounds, refilling and surplus groups.

use tamis_core::figure::{agreed, counted};
use tamis_core::filter::Metric;
use tamis_core::schedule::selector::Selector;
use tamis_core::schedule::{OnLimit, RoundLimit};

use super::Checker;
use crate::schema::{ScheduleMode, SurplusKind};

impl Checker<'_> {
    pub(super) fn schedule(&mut self) {
        self.schedule_mode();
        let config = self.config;
        let schedule = &config.schedule;
        match schedule.surplus {
            SurplusKind::Carry if schedule.max_lag.is_none() => self.error(
                &["schedule.surplus"],
                "`schedule.surplus: carry` needs `schedule.max_lag`",
                "set `schedule.max_lag: 1`",
            ),
            SurplusKind::Carry => {}
            SurplusKind::Discard => {
                self.warn_ignored(&["schedule.max_lag"], "`schedule.surplus` is `discard`");
            }
        }
        self.selector();
        self.screening();
        let (generated, train) = (config.gen_batch_size(), config.data.train_batch_size);
        if config.refills() {
            // Other values are the defaults of systems whose limit may be off.
            if schedule.max_num_gen_batches.0 == RoundLimit::None
                && matches!(schedule.on_limit, OnLimit::KeepDropped | OnLimit::Duplicate)
                && schedule.mode != ScheduleMode::Streaming
            {
                self.warn(
                    &["schedule.on_limit", "schedule.max_num_gen_batches"],
                    format!(
                        "`schedule.on_limit: {}` has no effect: `schedule.max_num_gen_batches` is null, so a step continues until its \
                        batch is full",
                        schedule.on_limit
                    ),
                    "set `schedule.max_num_gen_batches` (1, for example), or remove `schedule.on_limit`",
                );
            }
            if let RoundLimit::Rounds(rounds) = schedule.max_num_gen_batches.0
                && let most = rounds.saturating_mul(generated as u64)
                && most < train as u64
            {
                self.error(
                    &["schedule.max_num_gen_batches", "data.gen_batch_size", "data.train_batch_size"],
                    format!(
                        "{} of `data.gen_batch_size` ({generated}) {} {} at most, below \
                         `data.train_batch_size` ({train}): no step can ever be filled",
                        counted(rounds, "round"),
                        agreed(rounds, "is", "are"),
                        counted(most, "prompt")
                    ),
                    format!(
                        "raise `schedule.max_num_gen_batches` to {} or more, or `data.gen_batch_size`",
                        train.div_ceil(generated)
                    ),
                );
            }
        } else if !self.reader.is_unsound("filter") {
            self.single_round(generated, train);
        }
    }

    fn selector(&mut self) {
        let selector = &self.config.schedule.selector;
        if self.config.rollout.n < 2 && !matches!(selector, Selector::Shuffle(_)) {
            self.error(
                &["schedule.selector.kind", "rollout.n"],
                format!(
                    "`schedule.selector.kind: {selector}` chooses by whether the members of a prompt's groups differ, but with \
                    `rollout.n: 1` a group has one member"
                ),
                "set `rollout.n: 2` or more, or `schedule.selector.kind: shuffle`",
            );
        }
        if let (Some((estimator, against)), false) =
            (self.config.signal_beyond_group(), matches!(selector, Selector::Shuffle(_)))
            && self.config.rollout.n >= 2
        {
            self.warn(
                &["schedule.selector.kind"],
                format!(
                    "`schedule.selector.kind: {selector}` passes over prompts whose groups score alike, but these have signal too: \
                     `{estimator}` compares with {against}, not within the group"
                ),
                "set `schedule.selector.kind: shuffle`",
            );
        }
        if let Selector::DifficultyPools(pools) = selector
            && pools.hard_up_to >= pools.easy_from
        {
            let (hard, easy) = (pools.hard_up_to, pools.easy_from);
            self.error(
                &["schedule.selector.hard_up_to", "schedule.selector.easy_from"],
                format!(
                    "prompts with a pass rate from {easy} (`schedule.selector.easy_from`) to {hard} \
                     (`schedule.selector.hard_up_to`) are in both the hard and the easy pool"
                ),
                "set `schedule.selector.hard_up_to` below `schedule.selector.easy_from`: 0.25 and 0.75, say",
            );
        }
    }

    /// Checks that a group's first members can decide whether the others are needed.
    fn screening(&mut self) {
        let config = self.config;
        let Some(first) = config.schedule.screen_first else { return };
        let (key, n) = ("schedule.screen_first", config.rollout.n);
        let without = "or remove `schedule.screen_first`";
        if first >= n {
            self.error(
                &[key, "rollout.n"],
                format!(
                    "`schedule.screen_first: {first}` leaves none of the {n} members of a group (`rollout.n`)"
                ),
                format!("set it to less than {n}, {without}"),
            );
        }
        if config.schedule.mode != ScheduleMode::Streaming {
            self.error(
                &[key, "schedule.mode"],
                format!(
                    "`schedule.screen_first` starts groups with some of their members, but `schedule.mode: {}` starts whole groups",
                    config.schedule.mode
                ),
                format!("set `schedule.mode: streaming`, {without}"),
            );
        }
        if self.reader.is_unsound("filter") {
            return;
        }
        let filter = config.filter.as_ref();
        if !filter.is_some_and(|filter| filter.kind.is_certain(0.0, f64::MAX)) {
            let named = filter.map_or_else(|| "null".to_owned(), |filter| filter.kind.to_string());
            self.error(
                &[key, "filter.kind"],
                format!(
                    "`schedule.screen_first` checks whether the first members of a group differ, which does not predict how the filter \
                    `{named}` judges the whole group"
                ),
                format!("set `filter.kind: variance`, {without}"),
            );
        } else if let Some(metric) = filter.and_then(|filter| filter.metric.as_deref())
            && matches!(Metric::from(metric), Metric::SeqFinalReward | Metric::TokenLevelRewards)
        {
            self.error(
                &[key, "filter.metric"],
                format!(
                    "`filter.metric: {metric}` needs the divergence of the whole group, but `schedule.screen_first` looks only at its \
                    first members"
                ),
                format!("set `filter.metric: seq_reward`, {without}"),
            );
        }
    }

    fn schedule_mode(&mut self) {
        let config = self.config;
        let sizes = ["schedule.granularity", "schedule.margin"];
        let pool = config.filter.as_ref().map(|filter| filter.kind).filter(|kind| kind.pool().is_some());
        let hint =
            "use `schedule.mode: rounds`, or a filter that judges each group alone (`filter.kind: variance`)";
        match config.schedule.mode {
            ScheduleMode::Rounds => self.warn_ignored(&sizes, "`schedule.mode` is `rounds`"),
            ScheduleMode::Deficit if self.reader.is_unsound("filter") => {}
            ScheduleMode::Deficit if !config.refills() => {
                let reason = "every step is one round";
                self.warn_ignored(&["schedule.mode"], reason);
                self.warn_ignored(&sizes, reason);
            }
            ScheduleMode::Deficit => {
                if let Some(kind) = pool {
                    self.error(
                        &["schedule.mode", "filter.kind"],
                        format!(
                            "`filter.kind: {kind}` compares the groups of a round, but with `schedule.mode: deficit` rounds vary in \
                            size: what it keeps would depend on what the batch still lacks"
                        ),
                        hint,
                    );
                }
                if let Some(rounds) = config.schedule.rounds_in_flight.filter(|&rounds| rounds > 1) {
                    self.error(
                        &["schedule.rounds_in_flight", "schedule.mode"],
                        format!(
                            "`schedule.rounds_in_flight: {rounds}` starts rounds before earlier ones are judged, but with \
                            `schedule.mode: deficit` the size of a round depends on their verdicts"
                        ),
                        "use `schedule.mode: rounds` or `streaming`, or remove `schedule.rounds_in_flight`",
                    );
                }
            }
            ScheduleMode::Streaming => {
                let reason = "`schedule.mode` is `streaming`";
                self.warn_ignored(&sizes, reason);
                self.warn_ignored(&["schedule.refill"], reason);
                let on_limit = config.schedule.on_limit;
                if matches!(on_limit, OnLimit::KeepDropped | OnLimit::Duplicate) {
                    self.error(
                        &["schedule.on_limit", "schedule.mode"],
                        format!(
                            "`schedule.on_limit: {on_limit}` fills a batch after its last round, but `schedule.mode: streaming` hands \
                            out groups as they finish"
                        ),
                        "use `schedule.mode: rounds` or `deficit`, or `schedule.on_limit: use_partial`",
                    );
                }
                if let Some(kind) = pool {
                    self.error(
                        &["schedule.mode", "filter.kind"],
                        format!(
                            "`filter.kind: {kind}` compares the groups of a round, but `schedule.mode: streaming` judges each group by \
                            itself"
                        ),
                        hint,
                    );
                }
            }
        }
    }

    fn single_round(&mut self, generated: usize, train: usize) {
        let has_filter = self.config.filter.is_some();
        let reason = if has_filter {
            "`schedule.refill` is false, so every step is one round"
        } else {
            "there is no filter, so every step is one round"
        };
        self.warn_ignored(
            &["schedule.max_num_gen_batches", "schedule.on_limit", "schedule.rounds_in_flight"],
            reason,
        );
        if generated <= train {
            self.warn_ignored(&["schedule.surplus"], reason);
        }
        if !has_filter {
            self.warn_ignored(&["schedule.on_empty_round", "schedule.refill"], reason);
            self.warn_ignored(
                &["data.gen_batch_size"],
                "there is no filter, so every step is one round of `data.train_batch_size` prompts",
            );
        }
        if generated < train {
            self.error(
                &["data.gen_batch_size", "schedule.refill", "data.train_batch_size"],
                format!(
                    "`schedule.refill` is false, so every step is one round of {generated} prompts \
                     (`data.gen_batch_size`), which can never fill the {train} of `data.train_batch_size`"
                ),
                format!(
                    "set `data.gen_batch_size: {train}` or more, or `data.train_batch_size: {generated}`"
                ),
            );
        }
    }
}
