//! Validation prompts that are training prompts too: they do not show what a run learned beyond its data.

use std::collections::HashSet;

use tamis_config::Config;
use tamis_core::figure::{agreed, counted};
use tamis_env::task::TaskKind;
use tamis_rollout::PreparedPrompt;

/// What two prompts share if they ask the same: tokens, images, and the answer if the text does not show the
/// whole task.
type Question<'a> = (&'a [u32], Vec<&'a str>, Option<&'a str>);

/// Number of validation prompts that are in the training data, as the model sees both.
///
/// Levels of an environment count as 0: their prompts are alike, and the task holds out the levels. If an
/// environment plays rows of data, two prompts are the same only if their ground truths are, too.
pub(crate) fn num_in_training(
    config: &Config,
    train: &[PreparedPrompt],
    validation: &[PreparedPrompt],
) -> usize {
    if config.data.task == Some(TaskKind::Environment) {
        return 0;
    }
    let is_played = config.environments().next().is_some();
    let measured: HashSet<Question<'_>> = validation.iter().map(|one| ask(one, is_played)).collect();
    let trained: HashSet<Question<'_>> =
        train.iter().map(|one| ask(one, is_played)).filter(|one| measured.contains(one)).collect();
    validation.iter().filter(|one| trained.contains(&ask(one, is_played))).count()
}

fn ask(prepared: &PreparedPrompt, is_played: bool) -> Question<'_> {
    let prompt = &prepared.prompt;
    let images = prompt.images.iter().map(tamis_data::image::PromptImage::name).collect();
    (&*prepared.token_ids, images, prompt.ground_truth.as_deref().filter(|_| is_played))
}

/// The warning about them; `None` if there are none.
pub(crate) fn warning(config: &Config, num_in_training: usize, num_prompts: usize) -> Option<String> {
    let fix = match config.data.task {
        None => ": name other prompts in data.val, or none there and data.val_fraction=0.1",
        Some(_) => "",
    };
    (num_in_training > 0).then(|| {
        format!(
            "{num_in_training} of the {} {} in the training data, so a validation does not show what the run learned beyond it{fix}",
            counted(num_prompts, "validation prompt"),
            agreed(num_in_training, "is", "are")
        )
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::support::{loaded, prepared, prompt};

    fn of(tokens: &[u32]) -> PreparedPrompt {
        PreparedPrompt { token_ids: Arc::from(tokens), ..prepared(prompt(0, "")) }
    }

    #[test]
    fn validation_prompts_that_are_trained_on_are_counted() {
        let yaml = "model: {path: m}\ndata: {train: t.jsonl, val: v.jsonl}\ntrain: {total_steps: 1}\nreward: [{kind: number}]\n";
        let config = loaded(yaml, &[]).config;
        let train = [of(&[1, 2]), of(&[3]), of(&[3])];
        assert_eq!(num_in_training(&config, &train, &[of(&[3]), of(&[1]), of(&[1, 2]), of(&[3])]), 3);
        assert_eq!(num_in_training(&config, &train, &[of(&[2])]), 0);
        assert_eq!(num_in_training(&config, &train, &[]), 0);
        assert_eq!(warning(&config, 0, 4), None);
        assert_eq!(
            warning(&config, 1, 4).expect("a warning"),
            "1 of the 4 validation prompts is in the training data, so a validation does not show what the run learned beyond it: name \
             other prompts in data.val, or none there and data.val_fraction=0.1"
        );
    }
}
