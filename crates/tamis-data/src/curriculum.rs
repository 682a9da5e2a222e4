//! A curriculum: prompts ordered by one of their columns, fully or in bands.

use serde_json::Value;
use thiserror::Error;

use crate::prompt::Prompt;

/// The order of prompts by a column of numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Curriculum {
    /// The column; dots lead into objects.
    pub column: String,
    /// Whether the largest number comes first.
    pub descending: bool,
    /// Number of equal parts, one after the other. Within a part the order is the same as without a
    /// curriculum. `None`: sorted by every number, and prompts with the same number keep that order.
    pub bands: Option<usize>,
    /// Passes over the data that follow it. `None`: all.
    pub epochs: Option<u64>,
}

/// A prompt has no place in a curriculum.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{prompt} has no number in the curriculum column `{column}`: it has {found}")]
pub struct CurriculumError {
    /// The prompt, as [`Prompt::named`] names it.
    pub prompt: String,
    /// The column.
    pub column: String,
    /// What the column has instead.
    pub found: String,
}

impl Curriculum {
    /// The index of each prompt's band, from 0, in the order of the prompts. Prompts of equal rank keep the
    /// order that they have without a curriculum.
    ///
    /// # Errors
    /// A prompt has no number in the column.
    pub fn ranks<'p>(
        &self,
        prompts: impl IntoIterator<Item = &'p Prompt>,
    ) -> Result<Vec<usize>, CurriculumError> {
        let numbers =
            prompts.into_iter().map(|prompt| self.number(prompt)).collect::<Result<Vec<f64>, _>>()?;
        let mut order: Vec<usize> = (0..numbers.len()).collect();
        order.sort_by(|&a, &b| {
            let ascending = numbers[a].total_cmp(&numbers[b]);
            if self.descending { ascending.reverse() } else { ascending }
        });
        let mut ranks = vec![0; numbers.len()];
        let mut rank = 0;
        for (place, &prompt) in order.iter().enumerate() {
            rank = match self.bands {
                Some(bands) => place * bands / order.len(),
                None if place > 0 && numbers[prompt].total_cmp(&numbers[order[place - 1]]).is_ne() => {
                    rank + 1
                }
                None => rank,
            };
            ranks[prompt] = rank;
        }
        Ok(ranks)
    }

    fn number(&self, prompt: &Prompt) -> Result<f64, CurriculumError> {
        let mut keys = self.column.split('.');
        let first = keys.next().and_then(|key| prompt.columns.get(key));
        let value = keys.fold(first, |value, key| value?.get(key));
        let number = match value {
            Some(Value::String(text)) => text.trim().parse().ok(),
            value => value.and_then(Value::as_f64),
        };
        number.filter(|number: &f64| number.is_finite()).ok_or_else(|| CurriculumError {
            prompt: prompt.named(),
            column: self.column.clone(),
            found: value.map_or_else(|| "nothing".to_owned(), Value::to_string),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tamis_core::group::PromptId;

    use super::*;
    use crate::prompt::PromptContent;
    use crate::sampler::{DataPosition, PromptOrder, PromptSampler};

    fn prompts(columns: &[Value]) -> Vec<Prompt> {
        let prompt = |(row, columns): (usize, &Value)| Prompt {
            id: PromptId(row as u64),
            content: PromptContent::Text(String::new()),
            ground_truth: None,
            data_source: String::new(),
            columns: columns.as_object().cloned().unwrap_or_default(),
            images: Vec::new(),
            place: None,
        };
        columns.iter().enumerate().map(prompt).collect()
    }

    fn by(column: &str) -> Curriculum {
        Curriculum { column: column.to_owned(), descending: false, bands: None, epochs: None }
    }

    #[test]
    fn prompts_are_ranked_by_their_number() {
        let prompts = prompts(&[
            json!({"at": {"level": 3}}),
            json!({"at": {"level": "1"}}),
            json!({"at": {"level": 3}}),
            json!({"at": {"level": -2.5}}),
        ]);
        assert_eq!(by("at.level").ranks(&prompts), Ok(vec![2, 1, 2, 0]));
        assert_eq!(Curriculum { descending: true, ..by("at.level") }.ranks(&prompts), Ok(vec![0, 1, 0, 2]));
        assert_eq!(Curriculum { bands: Some(2), ..by("at.level") }.ranks(&prompts), Ok(vec![1, 0, 1, 0]));
        assert_eq!(Curriculum { bands: Some(9), ..by("at.level") }.ranks(&[]), Ok(vec![]));
    }

    #[test]
    fn a_row_without_a_number_is_named() {
        let prompts = prompts(&[json!({"level": 3}), json!({"level": "easy"})]);
        let error = |column: &str| by(column).ranks(&prompts).unwrap_err().to_string();
        insta::assert_snapshot!(error("level"), @"prompt 1 has no number in the curriculum column `level`: it has \"easy\"");
        insta::assert_snapshot!(error("lvl"), @"prompt 0 has no number in the curriculum column `lvl`: it has nothing");
    }

    /// Band by band, each shuffled again in every epoch. After the curriculum's epochs, the order is the one
    /// without it.
    #[test]
    fn a_pass_goes_through_the_bands_in_their_order() {
        let rows: Vec<Value> = (0..30).map(|row| json!({"level": (row * 7) % 30})).collect();
        let prompts = prompts(&rows);
        let ids = || prompts.iter().map(|prompt| prompt.id).collect::<Vec<_>>();
        let curriculum = Curriculum { bands: Some(3), epochs: Some(2), ..by("level") };
        let ranks = curriculum.ranks(&prompts).unwrap();
        let order = PromptOrder::Shuffled { seed: 5 };
        let drawn = |epoch: u64, ranks: Option<Vec<usize>>| {
            let position = DataPosition { epoch, position: 0 };
            let mut sampler = PromptSampler::resume(ids(), order, position).unwrap();
            if let Some(ranks) = ranks {
                sampler = sampler.with_ranks(ranks, curriculum.epochs);
            }
            sampler.draw(30).prompts
        };
        for epoch in 0..2 {
            let found = drawn(epoch, Some(ranks.clone()));
            let bands: Vec<usize> = found.iter().map(|id| (id.0 as usize * 7) % 30 / 10).collect();
            assert!(bands.is_sorted(), "{bands:?}");
            assert_ne!(found, drawn(1 - epoch, Some(ranks.clone())));
        }
        assert_eq!(drawn(2, Some(ranks)), drawn(2, None));
    }
}
