//! Columns of the rows of verl's supervised trainer, as it read them until 0.6: a prompt and a response.

use crate::translator::Translator;
use tamis_config::render::scalar;
use tamis_config::tree::Value;

/// The columns of prompt and response. A column may hold a mapping, and a list then names the keys below it:
/// `data.prompt_key=extra_info` with `data.prompt_dict_keys=['question']` is `extra_info.question`.
pub(crate) fn nested_columns(t: &mut Translator) {
    for (key, below, default, usual, ours) in [
        (
            "data.prompt_key",
            "data.prompt_dict_keys",
            "question",
            &["prompt", "question", "problem"],
            "sft.columns.prompt",
        ),
        (
            "data.response_key",
            "data.response_dict_keys",
            "answer",
            &["completion", "response", "answer"],
            "sft.columns.completion",
        ),
    ] {
        let names: Vec<String> = match t.find(below).map(|given| &given.node.value) {
            Some(Value::List(items)) => {
                items.iter().filter_map(|item| item.as_text().map(str::to_owned)).collect()
            }
            _ => t.text(below).into_iter().collect(),
        };
        let column = t.text(key).unwrap_or_else(|| default.to_owned());
        let path = std::iter::once(column).chain(names.iter().cloned()).collect::<Vec<_>>().join(".");
        if usual.contains(&path.as_str()) {
            t.no_effect(key, "columns of that name are found without it");
        } else if t.find(key).is_some() || !names.is_empty() {
            t.set(&[key, below], ours, &scalar(&path));
            t.part_of(below, key);
        }
        t.no_effect(below, "it names nothing below the column");
    }
}
