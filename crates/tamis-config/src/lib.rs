//! Kernel: layered configuration (YAML with positions, overrides, validation, schema).
//!
//! Every key is defined once, in [`schema`]: from it come the typed [`Config`], the table of keys
//! ([`table`]), the embedded defaults, the JSON Schema, the reference page and `explain`.

mod algorithm;
mod argument_folder;
mod blamed;
pub mod catalogue;
mod derived;
pub mod diagnostic;
pub mod generate;
pub mod hub_name;
mod interpreters;
pub mod load;
pub mod locate;
mod note;
pub mod override_argument;
mod path;
pub mod preset;
mod preset_difference;
pub mod reader;
mod reference;
pub mod render;
pub mod resume;
mod rules;
pub mod schema;
mod server_command;
mod shape_text;
mod show;
pub mod source;
pub mod suggest;
pub mod table;
pub mod tree;
pub mod value;
pub mod yaml;

pub use argument_folder::take_argument_from;
pub use diagnostic::{ConfigErrors, Diagnostic, Problem, Severity};
pub use generate::{UnknownKey, explain, explain_with, json_schema};
pub use hub_name::{DataSource, DataSources, HubName, ModelSource, SplitName};
pub use load::{LoadFunction, Loaded, load, load_of_run, load_sections, load_sources, load_sources_to_show};
pub use note::{Note, NoteOutcome, Remark};
pub use path::is_placeholder;
pub use preset_difference::PresetDifference;
pub use reference::reference_markdown;
pub use render::json_of;
pub use resume::{ResumeDifference, length_may_change, resume_differences};
pub use schema::*;
pub use server_command::{Intake, LOOPBACK, ServerCommand, shell_word, without_secrets};
pub use value::{ByteSize, EmptyRounds, FreeMap, Frequency, MaxRounds, TokenizerSource};

#[cfg(test)]
mod tests {
    use tamis_core::objective::{Clip, PolicyLoss};
    use tamis_env::task::arithmetic::Operator;

    use super::*;

    #[test]
    fn defaults_are_read() {
        let config = Config::default();
        assert_eq!(config.rollout.n, 8);
        assert_eq!(config.objective.loss, PolicyLoss::Clip(Clip::default()));
        assert_eq!(config.data.arithmetic.levels[0].operators, [Operator::Add, Operator::Subtract]);
        assert_eq!(config.filter, None);
    }
}
