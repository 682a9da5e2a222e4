//! Groups named by their prompt: a prompt that is repeated in a file starts a new group each time.

use std::collections::{BTreeMap, HashMap};
use tamis_core::figure::counted;

/// Columns that hold or name a prompt. They have the same value in every group of it.
const PROMPTS: [&str; 7] = ["prompt", "input", "question", "problem", "messages", "prompt_id", "index"];

/// Columns that distinguish parts of a file, not groups of one prompt.
const PARTS: [&str; 4] = ["step", "global_step", "epoch", "data_source"];

/// Whether columns name the prompts of groups, and not the groups themselves.
pub(crate) fn name_prompts(columns: &[String]) -> bool {
    let is_among =
        |names: &[&str], column: &str| names.contains(&column.rsplit('.').next().unwrap_or(column));
    columns.iter().any(|column| is_among(&PROMPTS, column))
        && columns.iter().all(|column| is_among(&PROMPTS, column) || is_among(&PARTS, column))
}

/// How rows of the same prompt were cut into groups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Repeats {
    /// Every prompt has the same number of rows. They are one run of rows, or spread.
    #[default]
    None,
    /// Each run of `size` rows is a group.
    Cut {
        /// Rows of a group.
        size: usize,
        /// Prompts with several groups.
        num_prompts: usize,
    },
    /// The numbers of rows are not multiples of one size, so nothing is cut.
    Uneven {
        /// The fewest rows of a prompt.
        fewest: usize,
        /// The most rows of a prompt.
        most: usize,
    },
}

/// Cuts prompts that occur more than once into groups. On input `keys` names the prompt of each row, counted
/// from 0 in order of appearance. On return it names the group, counted in the same way.
///
/// If all runs of rows of one prompt have the same length of 2 or more, that is the size of a group.
/// Otherwise it is the fewest rows of a prompt.
///
/// ```
/// use tamis_lab::filter::{Repeats, split_prompts};
/// let mut keys = vec![0, 0, 0, 0, 1, 1];
/// assert_eq!(split_prompts(&mut keys), Repeats::Cut { size: 2, num_prompts: 1 });
/// assert_eq!(keys, [0, 0, 1, 1, 2, 2]);
/// ```
pub fn split_prompts(keys: &mut [usize]) -> Repeats {
    let mut sizes: BTreeMap<usize, usize> = BTreeMap::new();
    for key in keys.iter() {
        *sizes.entry(*key).or_default() += 1;
    }
    let (Some(&fewest), Some(&most)) = (sizes.values().min(), sizes.values().max()) else {
        return Repeats::None;
    };
    let runs: Vec<usize> = keys.chunk_by(|one, other| one == other).map(<[usize]>::len).collect();
    let run = runs.first().copied().filter(|run| *run > 1 && runs.iter().all(|other| other == run));
    let size = run.unwrap_or(fewest);
    if most == size {
        return Repeats::None;
    }
    if size == 1 || sizes.values().any(|rows| rows % size > 0) {
        return Repeats::Uneven { fewest, most };
    }
    let num_prompts = sizes.values().filter(|rows| **rows > size).count();
    let mut seen: HashMap<usize, usize> = HashMap::new();
    let mut groups: HashMap<(usize, usize), usize> = HashMap::new();
    for key in keys.iter_mut() {
        let rows = seen.entry(*key).or_default();
        let next = groups.len();
        *key = *groups.entry((*key, *rows / size)).or_insert(next);
        *rows += 1;
    }
    Repeats::Cut { size, num_prompts }
}

impl Repeats {
    /// A warning about groups named by a column.
    pub fn warning(self, column: &str) -> Option<String> {
        match self {
            Self::None => None,
            Self::Cut { size, num_prompts } => Some(format!(
                "{} of `{column}` occurred more than once: every {} of one count as a group, in the order of the file; name a \
                 column with a group id if there is one",
                counted(num_prompts, "value"),
                counted(size, "row")
            )),
            Self::Uneven { fewest, most } => Some(format!(
                "values of `{column}` have {fewest} to {most} rows: repeated prompts count as one group, or rows are missing; name a \
                column with a group id if there is one"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split<const N: usize>(mut keys: [usize; N]) -> (Repeats, [usize; N]) {
        let repeats = split_prompts(&mut keys);
        (repeats, keys)
    }

    #[test]
    fn runs_of_equal_length_are_groups() {
        // Every prompt twice, apart.
        let (repeats, groups) = split([0, 0, 1, 1, 0, 0, 1, 1]);
        assert_eq!(repeats, Repeats::Cut { size: 2, num_prompts: 2 });
        assert_eq!(groups, [0, 0, 1, 1, 2, 2, 3, 3]);
    }

    #[test]
    fn scattered_rows_are_cut_in_order() {
        let (repeats, groups) = split([0, 1, 0, 1, 0, 0]);
        assert_eq!(repeats, Repeats::Cut { size: 2, num_prompts: 1 });
        assert_eq!(groups, [0, 1, 0, 1, 2, 2]);
    }

    #[test]
    fn what_has_no_common_size_is_left_as_it_is() {
        assert_eq!(split([0, 0, 1, 1]), (Repeats::None, [0, 0, 1, 1]));
        assert_eq!(split([0, 1, 0, 1]), (Repeats::None, [0, 1, 0, 1]));
        assert_eq!(split([0, 1, 2]), (Repeats::None, [0, 1, 2]));
        assert_eq!(split([0, 0, 1, 1, 1]), (Repeats::Uneven { fewest: 2, most: 3 }, [0, 0, 1, 1, 1]));
        assert_eq!(split([0, 1, 1]), (Repeats::Uneven { fewest: 1, most: 2 }, [0, 1, 1]));
        assert_eq!(split([]), (Repeats::None, []));
    }

    #[test]
    fn prompts_and_ids_of_groups() {
        let name =
            |columns: &[&str]| name_prompts(&columns.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert!(name(&["input"]) && name(&["extra_info.index"]) && name(&["step", "input"]));
        assert!(!name(&["uid"]) && !name(&["uid", "input"]) && !name(&["step"]) && !name(&[]));
    }
}
