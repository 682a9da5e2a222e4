//! Groups that begin with some of their members (`schedule.screen_first`): when to recommend them, and when
//! another number of members, or whole groups, would cost less.

use super::{Advice, Diagnosis, Recommendation, ScheduleSettings, Tally, share};
use crate::schedule::yields::{PassRateSpread, Screening, keep_probability};

/// Number of groups from which on their pass rates show how much prompts vary.
const LEAST_OF_A_FIT: u64 = 50;

/// How much prompts vary in their pass rates, if there are enough groups to estimate it.
fn fit_of_many(tally: &Tally) -> Option<PassRateSpread> {
    PassRateSpread::fit(tally).filter(|_| tally.paired_groups >= LEAST_OF_A_FIT)
}

impl Diagnosis {
    /// Recommends beginning groups with some of their members if that would cost less. Only streaming
    /// schedules can do that.
    pub(in crate::schedule) fn recommend_first_members(&mut self, settings: &ScheduleSettings) {
        let n = settings.group_size;
        let can_tell = settings.filter.is_some_and(|filter| filter.is_certain(0.0, f64::MAX));
        if settings.screen_first.is_some() || !can_tell || self.tally.kept == 0 {
            return;
        }
        let Some(fit) = fit_of_many(&self.tally) else { return };
        let keep = |members| fit.keep_probability(members);
        let Some(best) = Screening::best(n, |members| Some(keep(members))).filter(Screening::pays) else {
            return;
        };
        let mut why = format!(
            "pass rates differ so much that a kept group then costs about {:.2} generated ones instead of {:.2}",
            best.cost, best.whole
        );
        if let Some(limit) = self.max_num_gen_batches.filter(|_| !self.is_limit_adaptive) {
            let more = keep(n) / keep(best.first);
            why = format!(
                "{why}; {more:.1} times as many groups are started, and schedule.max_num_gen_batches counts these: {limit} -> {}",
                (limit as f64 * more).ceil()
            );
        }
        let (setting, change) = ("schedule.screen_first".to_owned(), format!("null -> {}", best.first));
        self.recommendations.push(Recommendation { setting, change, why });
    }
}

impl Advice<'_> {
    /// Groups that begin with some of their members, if whole ones or another number of first members would
    /// cost less.
    pub(super) fn screening(&mut self) {
        let n = self.settings.group_size;
        let Some(first) = self.settings.screen_first else { return };
        if self.tally.kept == 0 {
            return self.whole_groups(first);
        }
        let Some(fit) = fit_of_many(self.tally) else { return };
        let keep = |members| Some(fit.keep_probability(members));
        let Some((now, best)) = Screening::with(n, first, keep).zip(Screening::best(n, keep)) else { return };
        let most = now.cost * (1.0 - Screening::LEAST_SAVED);
        let costs = format!("a kept group costs about {:.2} generated ones", now.cost);
        if now.cost > now.whole && !best.pays() {
            let why = format!("pass rates are so alike that {costs}, and whole ones {:.2}", now.whole);
            self.say("schedule.screen_first", format!("{first} -> null"), why);
        } else if best.pays() && best.cost <= most {
            let why = format!("{costs}, and then {:.2}", best.cost);
            self.say("schedule.screen_first", format!("{first} -> {}", best.first), why);
        }
    }

    /// Recommends whole groups if none was kept and most ended with their first members: nothing shows what
    /// the other members would have scored.
    fn whole_groups(&mut self, first: usize) {
        let (n, Tally { screened, groups, rated, correct, .. }) = (self.settings.group_size, *self.tally);
        if share(screened, groups) < 0.5 {
            return;
        }
        // If no member differed, few can: by the rule of three.
        let is_alike = rated > 0 && (correct == 0 || correct == rated);
        let most = if is_alike { (3.0 / rated as f64).min(0.5) } else { 0.5 };
        if keep_probability(most, n) < 0.05 {
            return;
        }
        let why = format!(
            "the first {first} members of {screened} of {groups} groups were alike; of all {n} some may differ"
        );
        self.say("schedule.screen_first", format!("{first} -> null"), why);
    }
}
