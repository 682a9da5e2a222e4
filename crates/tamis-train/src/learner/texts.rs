//! Trajectories of several texts, as a learner computes them: each text is a sequence of its own.
//!
//! The context of an episode may not simply grow (a window of turns, an agent that begins new
//! conversations). Then its tokens include the text that was shown before each answer. Above a learner
//! it is one sequence whose tokens all have a place. A learner computes its parts, and the numbers of
//! tokens that the policy did not write are 0.

use std::ops::Range;

use super::{LearnerSequence, TokenColumns, TopColumns, Wave};

/// The texts of a wave, and the places of their numbers.
pub(crate) struct Texts<'a> {
    pub(crate) wave: Wave<'a>,
    pub(crate) places: TextPlaces,
}

/// Places of the tokens of texts among those of a wave \[N\].
#[derive(Debug, Clone)]
pub(crate) struct TextPlaces {
    ranges: Vec<Range<usize>>,
    num_tokens: usize,
}

impl<'a> Texts<'a> {
    /// Those of a wave; `None` if each of its sequences is one text.
    pub(crate) fn of(wave: &Wave<'a>) -> Option<Self> {
        let is_parted =
            |sequence: &LearnerSequence<'_>| sequence.turns.iter().any(|turn| turn.context_start.is_some());
        if !wave.sequences.iter().any(is_parted) {
            return None;
        }
        let (mut texts, mut ranges, mut start) = (Wave::default(), Vec::new(), 0);
        for (sequence, &rank) in wave.sequences.iter().zip(&wave.ranks) {
            let end = start + sequence.completion.len();
            let mut push = |text: LearnerSequence<'a>, range: Range<usize>| {
                // A token that follows nothing has no probability, and no token none either.
                if !text.prompt.is_empty() && !range.is_empty() {
                    texts.sequences.push(text);
                    texts.ranks.push(rank);
                    ranges.push(range);
                }
            };
            let parts = sequence.parts();
            if parts.is_empty() {
                push(*sequence, start..end);
            }
            for part in parts {
                let tokens: &'a [u32] = sequence.completion;
                let follows_prompt = part.start == part.answer;
                let (prompt, images) = if follows_prompt {
                    (sequence.prompt, sequence.images)
                } else {
                    (&tokens[part.start..part.answer], &[][..])
                };
                let completion = &tokens[part.answer..part.end];
                // Candidates are of every token, whoever wrote it.
                let per_token = sequence.candidates.len() / tokens.len().max(1);
                let candidates = &sequence.candidates[part.answer * per_token..part.end * per_token];
                let text = LearnerSequence { prompt, images, completion, turns: &[], candidates };
                push(text, start + part.answer..start + part.end);
            }
            start = end;
        }
        Some(Self { wave: texts, places: TextPlaces { ranges, num_tokens: start } })
    }
}

impl TextPlaces {
    /// Numbers of the texts' tokens as those of the wave's; 0 for a token that is in no text.
    pub(crate) fn spread(&self, columns: &TokenColumns) -> TokenColumns {
        let of = |column: &[f32]| self.spread_column(column);
        TokenColumns {
            logprobs: of(&columns.logprobs),
            entropies: of(&columns.entropies),
            values: of(&columns.values),
            candidates: of(&columns.candidates),
        }
    }

    /// The same for the likeliest tokens of a network.
    pub(crate) fn spread_top(&self, top: &TopColumns) -> TopColumns {
        TopColumns {
            logprobs: self.spread_column(&top.logprobs),
            tokens: self.spread_column(&top.tokens),
            top_logprobs: self.spread_column(&top.top_logprobs),
        }
    }

    /// A column with the same count of numbers for every token.
    fn spread_column<T: Copy + Default>(&self, column: &[T]) -> Vec<T> {
        let num_own: usize = self.ranges.iter().map(Range::len).sum();
        let per_token = column.len() / num_own.max(1);
        let mut spread = vec![T::default(); self.num_tokens * per_token];
        let mut rest = column;
        for range in self.ranges.iter().filter(|_| !column.is_empty()) {
            let (own, after) = rest.split_at((range.len() * per_token).min(rest.len()));
            let start = range.start * per_token;
            spread[start..start + own.len()].copy_from_slice(own);
            rest = after;
        }
        spread
    }

    /// Numbers of the wave's tokens that belong to texts, in their order.
    pub(crate) fn gather(&self, columns: &TokenColumns) -> TokenColumns {
        let of = |column: &[f32]| match column {
            [] => Vec::new(),
            column => {
                let per_token = column.len() / self.num_tokens.max(1);
                let own = |range: &Range<usize>| &column[range.start * per_token..range.end * per_token];
                self.ranges.iter().flat_map(own).copied().collect()
            }
        };
        TokenColumns {
            logprobs: of(&columns.logprobs),
            entropies: of(&columns.entropies),
            values: of(&columns.values),
            candidates: of(&columns.candidates),
        }
    }
}

#[cfg(test)]
mod tests {
    use tamis_core::group::Turn;

    use super::*;

    fn turn(start: u32, end: u32, context_start: Option<u32>) -> Turn {
        Turn { start, end, context_start, ..Turn::default() }
    }

    #[test]
    fn each_text_is_computed_after_what_was_seen_and_its_numbers_come_back() {
        // An episode that grows, one that begins anew after its first turn, and one that never saw the
        // prompt.
        let grown = [turn(0, 2, None), turn(3, 5, None)];
        let anew = [turn(0, 2, None), turn(5, 6, Some(2)), turn(8, 9, None)];
        let apart = [turn(2, 4, Some(0)), turn(5, 7, Some(4))];
        let (prompt, tokens): ([u32; 2], Vec<u32>) = ([50, 51], (0..9).collect());
        let of = |turns, len| LearnerSequence { turns, ..LearnerSequence::of_text(&prompt, &tokens[..len]) };
        let sequences = [of(&grown[..], 5), of(&anew[..], 9), of(&apart[..], 7)];
        assert!(Texts::of(&Wave::of(&sequences[..1])).is_none());
        let wave = Wave { sequences: sequences.to_vec(), ranks: vec![0, 0, 1] };
        let texts = Texts::of(&wave).expect("several");
        let found: Vec<_> = texts
            .wave
            .sequences
            .iter()
            .map(|text| (text.prompt.to_vec(), text.completion.to_vec()))
            .collect();
        let expected: [(&[u32], &[u32]); 5] = [
            (&[50, 51], &[0, 1, 2, 3, 4]),
            (&[50, 51], &[0, 1]),
            (&[2, 3, 4], &[5, 6, 7, 8]),
            (&[0, 1], &[2, 3]),
            (&[4], &[5, 6]),
        ];
        assert_eq!(found, expected.map(|(prompt, completion)| (prompt.to_vec(), completion.to_vec())));
        assert_eq!(texts.wave.ranks, [0, 0, 0, 1, 1]);
        let num_tokens = texts.wave.num_tokens();
        let columns = TokenColumns {
            logprobs: (1..=num_tokens).map(|n| n as f32).collect(),
            ..TokenColumns::default()
        };
        let spread = texts.places.spread(&columns);
        let expected = [1, 2, 3, 4, 5, 6, 7, 0, 0, 0, 8, 9, 10, 11, 0, 0, 12, 13, 0, 14, 15];
        assert_eq!(spread.logprobs, expected.map(|n| n as f32));
        assert!(spread.values.is_empty());
        assert_eq!(texts.places.gather(&spread), columns);

        // Candidates go with their tokens: here two of each, 100·token and one more.
        let candidates: Vec<u32> = tokens.iter().flat_map(|&token| [100 * token, 100 * token + 1]).collect();
        let sequence = LearnerSequence { candidates: &candidates[..14], ..sequences[2] };
        let texts = Texts::of(&Wave::of(&[sequence])).expect("several");
        let found: Vec<_> = texts.wave.sequences.iter().map(|text| text.candidates).collect();
        assert_eq!(found, [&candidates[4..8], &candidates[10..14]]);
        assert_eq!(texts.wave.num_candidates(), 2);
        let values: Vec<f32> = (1..=8_u8).map(f32::from).collect();
        let columns = TokenColumns { candidates: values, ..TokenColumns::default() };
        let spread = texts.places.spread(&columns);
        let expected = [0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 5, 6, 7, 8];
        assert_eq!(spread.candidates, expected.map(|n| n as f32));
        assert_eq!(texts.places.gather(&spread), columns);
        let top = TopColumns { tokens: (1..=8).collect(), ..TopColumns::default() };
        assert_eq!(texts.places.spread_top(&top).tokens, expected.map(|n| n as u32));
    }
}
