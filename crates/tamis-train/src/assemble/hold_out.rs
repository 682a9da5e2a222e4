//! Validation prompts out of the training data (`data.val_fraction`).

use std::collections::{BTreeMap, BTreeSet};

use tamis_core::group::PromptId;
use tamis_core::random::{Key, Purpose};
use tamis_data::prompt::Prompt;

/// Takes a share of the prompts out, each split in its order: at most that share, at least one prompt.
/// Prompts of one content stay together, so a content with many rows may be skipped.
pub(super) fn hold_out(prompts: Vec<Prompt>, fraction: f64) -> (Vec<Prompt>, Vec<Prompt>) {
    let content =
        |prompt: &Prompt| serde_json::to_vec(&(&prompt.content, &prompt.images)).unwrap_or_default();
    let is_taken = choose_held_out(prompts.iter().map(content), fraction);
    let (mut train, mut held_out) = (Vec::new(), Vec::new());
    for (mut prompt, is_taken) in prompts.into_iter().zip(is_taken) {
        let split = if is_taken { &mut held_out } else { &mut train };
        prompt.id = PromptId(split.len() as u64);
        split.push(prompt);
    }
    (train, held_out)
}

/// Whether each of some contents is held out: that share at most, one at least, equal ones together.
pub(super) fn choose_held_out(contents: impl Iterator<Item = Vec<u8>>, fraction: f64) -> Vec<bool> {
    let draw = |content: Vec<u8>| {
        let start = Key::new(0, Purpose::HoldOut).with(content.len() as u64);
        let word = |bytes: &[u8]| bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        content.chunks(8).fold(start, |key, bytes| key.with(word(bytes))).to_bits()
    };
    let draws: Vec<u64> = contents.map(draw).collect();
    let mut counts = BTreeMap::<u64, usize>::new();
    for draw in &draws {
        *counts.entry(*draw).or_default() += 1;
    }
    let most = ((draws.len() as f64 * fraction).round() as usize).min(draws.len().saturating_sub(1));
    let (mut taken, mut num_taken) = (BTreeSet::new(), 0);
    for (draw, count) in counts {
        if num_taken == 0 && count <= most.max(1) || num_taken + count <= most {
            taken.insert(draw);
            num_taken += count;
        }
    }
    draws.iter().map(|draw| taken.contains(draw)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Map;
    use tamis_data::prompt::PromptContent;

    use super::*;

    fn prompt(place: usize, text: &str) -> Prompt {
        Prompt {
            id: PromptId(place as u64),
            content: PromptContent::Text(text.to_owned()),
            ground_truth: None,
            data_source: String::new(),
            columns: Map::new(),
            images: Vec::new(),
            place: None,
        }
    }

    fn texts(prompts: &[Prompt]) -> Vec<String> {
        let text = |prompt: &Prompt| match &prompt.content {
            PromptContent::Text(text) => text.clone(),
            PromptContent::Messages(_) => unreachable!("texts alone"),
        };
        prompts.iter().map(text).collect()
    }

    #[test]
    fn what_is_held_out_follows_from_the_texts_alone() {
        let all: Vec<Prompt> = (0..1000).map(|place| prompt(place, &format!("{place}+1="))).collect();
        let (train, held_out) = hold_out(all.clone(), 0.1);
        assert_eq!((train.len(), held_out.len()), (900, 100));
        // Spread over the data, each split in its order and with its own numbers.
        assert!(texts(&held_out[..3]) != ["0+1=", "1+1=", "2+1="]);
        assert!(held_out.iter().enumerate().all(|(place, prompt)| prompt.id == PromptId(place as u64)));
        // In another order, and with further rows, nothing that was held out is trained on.
        let mut reversed = all.clone();
        reversed.reverse();
        let mut again = texts(&hold_out(reversed, 0.1).1);
        again.reverse();
        assert_eq!(again, texts(&held_out));
        // A larger share holds out the same and more.
        let more = texts(&hold_out(all, 0.2).1);
        assert!(texts(&held_out).iter().all(|text| more.contains(text)));
    }

    #[test]
    fn prompts_of_one_text_stay_together() {
        let twice: Vec<Prompt> = (0..40).map(|place| prompt(place, &format!("{}+1=", place / 4))).collect();
        let (train, held_out) = hold_out(twice, 0.25);
        assert_eq!(held_out.len(), 8, "two texts: a third would be more than a quarter");
        let held_out = texts(&held_out);
        assert!(texts(&train).iter().all(|text| !held_out.contains(text)));
        // One is always held out, even if all rows have one text and nothing is left to train on.
        assert_eq!(hold_out(vec![prompt(0, "1"), prompt(1, "2")], 0.01).1.len(), 1);
        assert!(hold_out(vec![prompt(0, "1"), prompt(1, "1")], 0.5).1.is_empty());
        assert!(hold_out(vec![prompt(0, "1")], 0.5).0.is_empty());
        // A text that most rows have is trained on, whatever its draw.
        let texts_of = |at: usize| if at < 18 { "1+1=".to_owned() } else { format!("{at}+1=") };
        let most = (0..20).map(|at| prompt(at, &texts_of(at))).collect();
        assert_eq!(hold_out(most, 0.1).1.len(), 2);
        // Something is always left to train on.
        let all = (0..20).map(|at| prompt(at, &format!("{at}+1="))).collect();
        assert_eq!(hold_out(all, 0.999).0.len(), 1);
    }
}
