//! EasyR1's keys, including those of its fork with dynamic sampling and of older versions.

use crate::translator::Translator;

pub(crate) fn rewards(t: &mut Translator) {
    const FUNCTION: &str = "worker.reward.reward_function";
    const NAME: &str = "worker.reward.reward_function_name";
    const KWARGS: &str = "worker.reward.reward_function_kwargs";
    const TYPE: &str = "worker.reward.reward_type";
    let mut kwargs = serde_json::Map::new();
    let mut others = vec![NAME.to_owned(), TYPE.to_owned()];
    for given in &t.given {
        if given.key == KWARGS {
            kwargs.extend(given.node.to_json().as_object().cloned().unwrap_or_default());
        } else if let Some(name) = given.key.strip_prefix(KWARGS).and_then(|rest| rest.strip_prefix('.')) {
            kwargs.insert(name.to_owned(), given.node.to_json());
        } else {
            continue;
        }
        others.push(given.key.clone());
    }
    let Some(text) = t.text(FUNCTION) else {
        t.no_effect(FUNCTION, "null leaves the default");
        for key in others {
            t.no_effect(&key, "there is no reward function");
        }
        return;
    };
    // `file.py:function`, split as EasyR1 does.
    let (path, name) =
        text.rsplit_once(':').map_or((text.as_str(), None), |(path, name)| (path, Some(name.to_owned())));
    let name = name.or_else(|| t.text(NAME)).unwrap_or_else(|| "main".to_owned());
    let style = match t.text(TYPE).as_deref() {
        None | Some("batch" | "function") => "easyr1",
        Some("sequential") => "easyr1_sequential",
        Some(_) => {
            t.bad_value(TYPE, "batch or sequential");
            return;
        }
    };
    let mut item = serde_json::json!({"kind": "python", "path": path, "function": name, "style": style});
    if !kwargs.is_empty() {
        item["kwargs"] = serde_json::Value::Object(kwargs);
    }
    t.set(&[FUNCTION], "reward", &serde_json::Value::Array(vec![item]).to_string());
    for key in others {
        t.part_of(&key, FUNCTION);
    }
}
