//! Sokoban's symbols. `grid_lookup` has one for each cell, `grid_vocab` the words for it.

use super::env_type::{Outcome, Setting};

/// Our names for sets of symbols, each in RAGEN's order of cells.
const SETS: [(&str, [&str; 7]); 3] = [
    ("shapes", ["#", "_", "O", "√", "X", "P", "S"]),
    ("spaced_shapes", [" # ", " _ ", " O ", " √ ", " X ", " P ", " S "]),
    ("letters", ["W", ".", "G", "C", "B", "A", "@"]),
];

/// The meaning of the cells, in the same order.
const CELLS: [&str; 7] = ["wall", "empty", "target", "box on target", "box", "player", "player on target"];

const LOOKUP: &str = "grid_lookup.";

/// The translation of a cell's symbol. The first symbol determines the set; the others belong to it.
pub(super) fn of_cell(setting: &Setting, all: &[Setting]) -> Outcome {
    let first = all.iter().find(|other| other.name.starts_with(LOOKUP));
    match (find_set(all), first) {
        (Some((name, _)), Some(first)) if first.name == setting.name => {
            Outcome::Set(vec![("symbols", name.to_owned())])
        }
        (Some(_), Some(first)) => Outcome::PartOf(first.name.clone()),
        _ => Outcome::Refused(
            "`environment.symbols` has three sets of symbols, and these are none of them: `#_O√XPS`, the same \
             with a space on either side, and `W.GCBA@`"
                .to_owned(),
        ),
    }
}

pub(super) fn of_legend(symbol: &str, words: &str, all: &[Setting]) -> Outcome {
    let cell = find_set(all).and_then(|(_, symbols)| symbols.iter().position(|known| *known == symbol));
    if cell.and_then(|cell| CELLS.get(cell)).is_some_and(|cell| *cell == words) {
        Outcome::NoEffect("the legend already does so".to_owned())
    } else {
        Outcome::Refused(format!("a legend lists {}, each with its symbol", CELLS.join(", ")))
    }
}

/// The set that contains all given symbols; the first set if none are given.
fn find_set(all: &[Setting]) -> Option<(&'static str, [&'static str; 7])> {
    let given: Vec<(&str, &str)> = (all.iter())
        .filter_map(|other| Some((other.name.strip_prefix(LOOKUP)?, other.value.as_str())))
        .collect();
    let has = |symbols: &[&str; 7], (cell, symbol): &(&str, &str)| {
        cell.parse::<usize>().ok().and_then(|cell| symbols.get(cell)).is_some_and(|known| known == symbol)
    };
    SETS.into_iter().find(|(_, symbols)| given.iter().all(|pair| has(symbols, pair)))
}
