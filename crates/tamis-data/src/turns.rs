//! The columns of what was played in turns, in files of rollouts and of samples.

use std::borrow::Cow;

use tamis_core::group::{Episode, Turn};

use crate::table::{TableColumn, Values};

/// A row of a table that may have been played in turns.
pub(crate) trait Played {
    /// The turns; `None` where there were none.
    fn episode(&self) -> Option<&Episode>;
}

/// Something of each turn of a row.
pub(crate) fn of_turns<T>(row: &impl Played, of: impl Fn(&Turn) -> T) -> Vec<T> {
    row.episode().into_iter().flat_map(|episode| &episode.turns).map(of).collect()
}

/// What was said in each turn, and what it brought.
pub(crate) fn turn_columns<R: Played>() -> Vec<TableColumn<R>> {
    let column = |name, values, meaning| TableColumn { name, values, meaning };
    vec![
        column(
            "turn_rewards",
            Values::Floats(|row: &R| Cow::Owned(of_turns(row, |turn| turn.reward as f32))),
            "reward that the environment gave for each answer",
        ),
        column(
            "turn_texts",
            Values::Texts(|row| Cow::Owned(of_turns(row, |turn| turn.text.clone()))),
            "each answer as text",
        ),
        column(
            "turn_observations",
            Values::Texts(|row| Cow::Owned(of_turns(row, |turn| turn.observation.clone()))),
            "what was shown after each answer; empty after the last",
        ),
        column(
            "turn_roles",
            Values::Texts(|row| Cow::Owned(of_turns(row, |turn| turn.role.clone()))),
            "whose message that is (`tool`, ...); empty: the user's",
        ),
    ]
}

/// Whether the task of a row was solved.
pub(crate) fn success_column<R: Played>() -> TableColumn<R> {
    TableColumn {
        name: "success",
        values: Values::Number(|row: &R| Some(f64::from(u8::from(row.episode()?.is_success?)))),
        meaning: "1 where the environment's task was solved, else 0; null without an environment that says so",
    }
}
