//! Minimum cost of a run, from its configuration.

use tamis_config::Config;

/// The cost of a run, as far as its configuration shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cost {
    /// Steps; `None` if the size of the data decides.
    pub steps: Option<u64>,
    /// Prompts in the first round of a step.
    pub prompts: u64,
    /// Trajectories per prompt.
    pub n: u64,
    /// Longest completion, in tokens.
    pub length: u64,
    /// Whether a step may have further rounds, as many as the filter needs.
    pub is_refilled: bool,
}

impl Cost {
    /// The cost of a configuration.
    pub fn of(config: &Config) -> Self {
        Self {
            steps: config.train.total_steps.map(|steps| steps as u64),
            prompts: config.gen_batch_size() as u64,
            n: config.rollout.n as u64,
            length: config.max_completion_length() as u64,
            is_refilled: config.filter.is_some() && config.schedule.refill,
        }
    }

    /// Trajectories that the run generates, or their minimum if it is refilled.
    pub fn trajectories(&self) -> Option<u64> {
        Some(self.steps?.saturating_mul(self.prompts).saturating_mul(self.n))
    }

    /// Upper limit on the tokens that it generates if it is not refilled.
    pub fn tokens(&self) -> Option<u64> {
        Some(self.trajectories()?.saturating_mul(self.length))
    }
}

impl std::fmt::Display for Cost {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { prompts, n, length, .. } = self;
        let least = if self.is_refilled { "at least " } else { "" };
        let (Some(steps), Some(trajectories), Some(tokens)) =
            (self.steps, self.trajectories(), self.tokens())
        else {
            return write!(
                formatter,
                "as many steps as its data has (no `train.total_steps`); a step {least}{} trajectories of up to {length} tokens",
                thousands(prompts.saturating_mul(*n))
            );
        };
        write!(
            formatter,
            "{steps} steps x {prompts} prompts x {n}: {least}{} trajectories of up to {length} tokens",
            thousands(trajectories)
        )?;
        if self.is_refilled {
            write!(formatter, " ({} tokens for each round a step)", thousands(tokens))
        } else {
            write!(formatter, ", {} tokens", thousands(tokens))
        }
    }
}

/// A number with commas between thousands.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without a filter a step is one round of the batch size, whatever `data.gen_batch_size`.
    #[test]
    fn the_size_of_a_round_without_a_filter() {
        let of = |filter: &str| {
            let overrides = ["data.train_batch_size=64", "data.gen_batch_size=96", filter].map(str::to_owned);
            let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/quickstart.yaml");
            Cost::of(&tamis_config::load(&[shipped.into()], &overrides).unwrap().config).prompts
        };
        assert_eq!((of("filter=null"), of("filter.kind=variance")), (64, 96));
    }

    #[test]
    fn a_line() {
        let cost = Cost { steps: Some(200), prompts: 8, n: 16, length: 400, is_refilled: false };
        assert_eq!(
            cost.to_string(),
            "200 steps x 8 prompts x 16: 25,600 trajectories of up to 400 tokens, 10,240,000 tokens"
        );
        let cost = Cost { is_refilled: true, ..cost };
        assert_eq!(
            cost.to_string(),
            "200 steps x 8 prompts x 16: at least 25,600 trajectories of up to 400 tokens (10,240,000 tokens for each round a step)"
        );
        let cost = Cost { steps: None, ..cost };
        assert_eq!(
            cost.to_string(),
            "as many steps as its data has (no `train.total_steps`); a step at least 128 trajectories of up to 400 tokens"
        );
        assert_eq!(
            (thousands(0), thousands(999), thousands(1000)),
            ("0".into(), "999".into(), "1,000".into())
        );
    }
}
