//! `think_format`: TRL's `think_format_reward`.

use super::function::{RewardFunction, RewardInput, RewardOutcome};
use super::settings::{BuildError, Nature, RewardContext, RewardSettings};

tamis_core::settings! {
    /// `score` is 1 if the completion begins with `<think>`, has no second `<think>`, and has a `</think>`
    /// after it; otherwise 0. In TRL 1.16.0 it is `^<think>(?!.*<think>)(.*?)</think>.*$` over all lines.
    /// Shaping.
    #[derive(Copy)]
    pub struct ThinkFormat {}
}

/// Whether a completion has the form.
pub fn is_well_formed(completion: &str) -> bool {
    completion
        .strip_prefix("<think>")
        .is_some_and(|rest| !rest.contains("<think>") && rest.contains("</think>"))
}

impl RewardSettings for ThinkFormat {
    fn build(&self, _context: &RewardContext<'_>) -> Result<Box<dyn RewardFunction>, BuildError> {
        Ok(Box::new(*self))
    }

    fn nature(&self) -> Nature {
        Nature::SHAPING
    }
}

impl RewardFunction for ThinkFormat {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        batch
            .iter()
            .map(|input| RewardOutcome::score(f64::from(u8::from(is_well_formed(input.completion)))))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_vectors() {
        for case in tamis_golden::cases("trl_reward_think_format") {
            let completion = case["inputs"]["completion"].as_str().unwrap();
            let reward = f64::from(u8::from(is_well_formed(completion)));
            assert_eq!(Some(reward), case["outputs"]["reward"].as_f64(), "{}", case["name"]);
        }
    }
}
