//! A batch of more prompts than there are.

use tamis_config::Config;
use tamis_core::figure::{counted, shortest};

/// The warning if a step or a round draws more prompts than the training data has, so that its groups repeat
/// prompts; `None` otherwise.
pub(crate) fn warning(config: &Config, num_prompts: usize) -> Option<String> {
    let is_larger = |batch: usize| num_prompts > 0 && batch > num_prompts;
    let (key, what, batch) = [
        ("data.train_batch_size", "step", config.data.train_batch_size),
        ("data.gen_batch_size", "round", config.gen_batch_size()),
    ]
    .into_iter()
    .find(|(_, _, batch)| is_larger(*batch))?;
    let times = (batch as f64 / num_prompts as f64 * 10.0).round() / 10.0;
    Some(format!(
        "`{key}` is {batch}, and there {}: one {what} goes through the data {} times, so it has several groups of the same prompt; set \
         {key}={num_prompts} or less, or name more data",
        match num_prompts {
            1 => "is 1 training prompt".to_owned(),
            _ => format!("are {}", counted(num_prompts, "training prompt")),
        },
        shortest(times),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::loaded;

    #[test]
    fn a_batch_larger_than_the_data_is_named() {
        let yaml = "model: {path: m}\ndata: {task: arithmetic, train_batch_size: 100}\ntrain: {total_steps: 1, ppo_mini_batch_size: 10}\n";
        let config = loaded(yaml, &[]).config;
        assert_eq!(warning(&config, 100), None);
        assert_eq!(
            warning(&config, 8).expect("a warning"),
            "`data.train_batch_size` is 100, and there are 8 training prompts: one step goes through the data 12.5 times, so it has several \
             groups of the same prompt; set data.train_batch_size=8 or less, or name more data"
        );
        assert_eq!(warning(&config, 0), None, "an empty data set has an error of its own");
    }
}
