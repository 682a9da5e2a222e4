//! Runs that learn nothing, because rewards do not arrive or steps make no update. They end with a diagnosis,
//! never as if all were well.

use tamis_rollout::MissingRewards;

use super::Run;
use super::ending::how_to_train_further;
use crate::error::RunError;

impl Run {
    /// Saves the state and makes the error of a run whose rewards are missing. A resume requests again what
    /// was answered since the last trained step, because the function may be fixed by then.
    pub(super) fn fail_without_rewards(&mut self, step: u64, missing: MissingRewards) -> RunError {
        self.rewardless(step, missing, None)
    }

    fn rewardless(&mut self, step: u64, missing: MissingRewards, further: Option<String>) -> RunError {
        let trained = self.state.step;
        if (step > trained || self.recorder.saved != Some(trained))
            && let Err(error) = self.save_without_answers()
        {
            return error;
        }
        let place = missing
            .function
            .as_ref()
            .and_then(|name| self.recipe.config.reward.iter().position(|reward| reward.name == *name));
        RunError::MissingRewards {
            missing: Box::new(missing),
            key: place.map(|place| format!("reward[{place}]")),
            step,
            run: self.recorder.directory.path().to_owned(),
            train: self.recipe.config.train_command(),
            is_old: further.is_some() && self.has_generated_nothing(),
            further: further.or_else(|| self.further()),
        }
    }

    /// Saves the state after the last trained step and forgets every later answer, so that a resume requests
    /// it again.
    pub(super) fn save_without_answers(&mut self) -> Result<(), RunError> {
        self.workers.scorer.settle_journal(u64::MAX);
        // Other answers arrive in another order.
        if let Some(order) = &mut self.workers.order {
            order.settle(u64::MAX)?;
        }
        self.save()
    }

    /// How to train further, if the run has all of its steps.
    fn further(&self) -> Option<String> {
        let steps = self.state.step;
        let is_full = self.recipe.config.train.total_steps.is_some_and(|total| total as u64 <= steps);
        is_full.then(|| how_to_train_further(&self.recipe.config, self.recorder.directory.path(), steps))
    }

    /// Whether this process found a run without a step left. Its faults were reported before.
    fn has_generated_nothing(&self) -> bool {
        self.workers.dispatcher.next_group() == self.first_group
    }

    pub(super) fn nothing_trained_error(&self, steps: u64) -> RunError {
        RunError::NothingTrained {
            steps,
            step: self.state.step,
            reason: self.state.learning.untrained.reason,
            run: self.recorder.directory.path().to_owned(),
            is_old: false,
            further: self.further(),
        }
    }

    /// Refuses to report success for a run that never had a reward, or never updated the policy that it was
    /// to train.
    pub(super) fn check_learned(&mut self) -> Result<(), RunError> {
        let steps = self.state.step;
        let further = how_to_train_further(&self.recipe.config, self.recorder.directory.path(), steps);
        if let Some(missing) =
            self.workers.dispatcher.reward_health().always_missing(self.workers.scorer.rewards())
        {
            return Err(self.rewardless(steps, missing, Some(further)));
        }
        if steps > 0 && self.recipe.trains_policy(steps) && self.workers.learner.info().num_steps == 0 {
            let mut error = self.nothing_trained_error(steps);
            if let RunError::NothingTrained { further: how, is_old, .. } = &mut error {
                (*how, *is_old) = (Some(further), self.has_generated_nothing());
            }
            return Err(error);
        }
        Ok(())
    }
}
