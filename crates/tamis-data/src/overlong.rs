//! Prompts over the token limit.

use tamis_core::choice;
use tamis_core::figure::counted;
use thiserror::Error;

choice! {
    /// Treatment of a prompt of more than `data.max_prompt_length` tokens.
    pub enum OverlongPrompts {
        /// The run stops, naming the prompt.
        Error = "error",
        /// The prompt is left out, and counted.
        Drop = "drop",
        /// Its first tokens are cut.
        Left = "left",
        /// Its last tokens are cut.
        Right = "right",
        /// Tokens in its middle are cut.
        Middle = "middle",
    }
}

/// Result of fitting a prompt to the length limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fitted {
    /// The prompt fits as it is.
    Whole,
    /// Cut to exactly the limit.
    Truncated(Vec<u32>),
    /// Left out.
    Dropped,
}

/// A prompt over the limit, if none is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "the prompt has {}, over the limit of {limit}; raise data.max_prompt_length to {length}, or set \
         data.overlong_prompts to drop, left, right or middle",
    counted(length, "token")
)]
pub struct OverlongError {
    /// Length in tokens.
    pub length: usize,
    /// `data.max_prompt_length`.
    pub limit: usize,
}

impl OverlongPrompts {
    /// Applies the choice to a prompt's token ids. [`Self::Middle`] keeps `limit` tokens: the first half,
    /// rounded down, and the rest from the end.
    ///
    /// ```
    /// use tamis_data::overlong::{Fitted, OverlongPrompts};
    /// let ids = [1, 2, 3, 4, 5];
    /// assert_eq!(OverlongPrompts::Left.fit(&ids, 3)?, Fitted::Truncated(vec![3, 4, 5]));
    /// assert_eq!(OverlongPrompts::Right.fit(&ids, 3)?, Fitted::Truncated(vec![1, 2, 3]));
    /// assert_eq!(OverlongPrompts::Middle.fit(&ids, 3)?, Fitted::Truncated(vec![1, 4, 5]));
    /// assert_eq!(OverlongPrompts::Drop.fit(&ids, 3)?, Fitted::Dropped);
    /// assert_eq!(OverlongPrompts::Error.fit(&ids, 5)?, Fitted::Whole);
    /// # Ok::<(), tamis_data::overlong::OverlongError>(())
    /// ```
    pub fn fit(self, ids: &[u32], limit: usize) -> Result<Fitted, OverlongError> {
        let length = ids.len();
        if length <= limit {
            return Ok(Fitted::Whole);
        }
        let cut = |head: usize| {
            let (first, rest) = ids.split_at(head.min(length));
            let tail = limit.saturating_sub(head);
            let (_, last) = rest.split_at(rest.len().saturating_sub(tail));
            Fitted::Truncated([first, last].concat())
        };
        match self {
            Self::Error => Err(OverlongError { length, limit }),
            Self::Drop => Ok(Fitted::Dropped),
            Self::Left => Ok(cut(0)),
            Self::Right => Ok(cut(limit)),
            Self::Middle => Ok(cut(limit / 2)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn cuts_have_the_limit_and_keep_ends(length in 0usize..40, limit in 0usize..40) {
            let ids: Vec<u32> = (0..length as u32).collect();
            for choice in [OverlongPrompts::Left, OverlongPrompts::Right, OverlongPrompts::Middle] {
                match choice.fit(&ids, limit).unwrap() {
                    Fitted::Whole => prop_assert!(length <= limit),
                    Fitted::Truncated(cut) => {
                        prop_assert!(length > limit);
                        prop_assert_eq!(cut.len(), limit);
                        prop_assert!(cut.is_sorted_by(|a, b| a < b));
                        if limit >= 2 && choice == OverlongPrompts::Middle {
                            prop_assert_eq!((cut[0], cut[limit - 1]), (0, length as u32 - 1));
                        }
                    }
                    Fitted::Dropped => prop_assert!(false),
                }
            }
        }
    }

    #[test]
    fn the_error_names_both_numbers() {
        let error = OverlongPrompts::Error.fit(&[1, 2, 3], 2).unwrap_err();
        insta::assert_snapshot!(error, @"the prompt has 3 tokens, over the limit of 2; raise \
             data.max_prompt_length to 3, or set data.overlong_prompts to drop, left, right or middle");
    }
}
