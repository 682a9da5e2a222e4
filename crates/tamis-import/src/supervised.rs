//! Commands of supervised trainers: TRL's `trl sft` and `sft.py`, verl's `sft_trainer`.
//!
//! These trainers share names of keys with others (`learning_rate`, `data.train_files`), and verl's has names
//! of ours (`model.path`). So the program of a command decides: its arguments are keys of that trainer, and
//! only its table is searched. [`MARK`] carries the decision on.

use std::path::Path;

use tamis_config::override_argument::Override;
use tamis_config::table;

use crate::hydra::Form;
use crate::owner::Owner;
use crate::{entry, is_foreign_name};

/// Beginning of the word that stands for the program: `sft of=TRL SFT`.
const MARK: &str = "sft of=";

/// The supervised trainer that a script, a module or a subcommand of `trl` is.
pub(crate) fn trainer_of(program: &str) -> Option<Owner> {
    let path = Path::new(program);
    if program == "sft" || path.extension().is_some_and(|suffix| suffix == "py") && path.file_stem()? == "sft"
    {
        return Some(Owner::TrlSft);
    }
    let module = program.strip_prefix("verl.trainer.")?;
    module.split(['_', '.']).any(|part| part == "sft").then_some(Owner::VerlSft)
}

/// The word for a trainer.
pub(crate) fn mark(trainer: Owner) -> String {
    format!("{MARK}{trainer}")
}

/// The trainer that a word stands for.
pub(crate) fn of_mark(word: &str) -> Option<Owner> {
    let name = word.strip_prefix(MARK)?;
    Owner::SFT.into_iter().find(|owner| owner.as_str() == name)
}

/// The tables to search: that of the trainer only, if there is one.
pub(crate) fn tables(trainer: Option<Owner>) -> Vec<Owner> {
    trainer.map_or_else(|| Owner::ALL.to_vec(), |trainer| vec![trainer])
}

/// Whether a key, which may also be ours, is the full name of another system's key.
pub(crate) fn is_name_of(trainer: Option<Owner>, key: &str) -> bool {
    match trainer {
        Some(trainer) => trainer.keys().iter().any(|entry| entry.key == key),
        None => is_foreign_name(key),
    }
}

/// Whether an argument belongs to another system, in a context in which only keys that are clearly ours are
/// ours.
pub(crate) fn is_other(trainer: Option<Owner>, argument: &Override) -> bool {
    is_name_of(trainer, &argument.path) || table::place(&argument.path).is_err()
}

/// The form of a key's value on the command line.
pub(crate) fn value_form(trainer: Option<Owner>, key: &str) -> Form {
    match trainer {
        Some(trainer) if entry(trainer, key).is_some() || table::place(key).is_err() => Form::Hydra,
        _ => crate::value_form(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_supervised_trainers() {
        for (program, trainer) in [
            ("sft", Some(Owner::TrlSft)),
            ("trl/scripts/sft.py", Some(Owner::TrlSft)),
            ("my_sft.py", None),
            ("grpo", None),
            ("verl.trainer.sft_trainer", Some(Owner::VerlSft)),
            ("verl.trainer.sft_trainer_ray", Some(Owner::VerlSft)),
            ("verl.trainer.fsdp_sft_trainer", Some(Owner::VerlSft)),
            ("verl.trainer.main_ppo", None),
        ] {
            assert_eq!(trainer_of(program), trainer, "{program}");
        }
        for trainer in Owner::SFT {
            assert_eq!(of_mark(&mark(trainer)), Some(trainer));
        }
        assert_eq!(of_mark("sft.data=rows.jsonl"), None);
    }
}
