//! The columns for turns, in files of rollouts and of samples.

use std::borrow::Cow;

use tamis_core::group::Turn;

use crate::rollouts::RolloutRow;
use crate::table::{TableColumn, Values};

pub(crate) fn of_turns<T>(row: &RolloutRow<'_>, of: impl Fn(&Turn) -> T) -> Vec<T> {
    row.trajectory.episode.iter().flat_map(|episode| &episode.turns).map(of).collect()
}

pub(crate) fn turn_columns<'run>() -> Vec<TableColumn<RolloutRow<'run>>> {
    let column = |name, values, meaning| TableColumn { name, values, meaning };
    vec![
        column(
            "turn_rewards",
            Values::Floats(|row: &RolloutRow<'run>| Cow::Owned(of_turns(row, |turn| turn.reward as f32))),
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
            "what followed each answer; empty after the last",
        ),
        column(
            "turn_roles",
            Values::Texts(|row| Cow::Owned(of_turns(row, |turn| turn.role.clone()))),
            "whose message that is (`tool`, ...); empty: the user's",
        ),
    ]
}

pub(crate) fn success_column<'run>() -> TableColumn<RolloutRow<'run>> {
    TableColumn {
        name: "success",
        values: Values::Number(|row: &RolloutRow<'run>| {
            Some(f64::from(u8::from(row.trajectory.episode.as_ref()?.is_success?)))
        }),
        meaning: "1 if the environment's task was solved, else 0; null if the environment does not report it",
    }
}
