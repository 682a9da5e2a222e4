//! Configurations that are built into the program. A name without folder and extension is one of them, unless
//! there is a file of that name.

use std::path::Path;

use tamis_config::diagnostic::{Diagnostic, Problem};
use tamis_config::{Preset, suggest};

/// The files of `configs/` that need no other file.
pub const SHIPPED: [(&str, &str); 7] = [
    ("bench_step", include_str!("../../../configs/bench_step.yaml")),
    ("countdown", include_str!("../../../configs/countdown.yaml")),
    ("frozen_lake", include_str!("../../../configs/frozen_lake.yaml")),
    ("gsm8k_calculator", include_str!("../../../configs/gsm8k_calculator.yaml")),
    ("gymnasium", include_str!("../../../configs/gymnasium.yaml")),
    ("quickstart", include_str!("../../../configs/quickstart.yaml")),
    ("sokoban", include_str!("../../../configs/sokoban.yaml")),
];

/// The text of a built-in configuration, if the path is its name and there is no such file.
pub(crate) fn shipped(path: &Path) -> Option<&'static str> {
    let text = SHIPPED.iter().find(|(name, _)| path == Path::new(name)).map(|(_, text)| *text);
    text.filter(|_| !path.is_file())
}

/// For a missing file, suggests a configuration or a preset with a similar name.
pub(crate) fn suggest_names(file: &Path, found: &mut [Diagnostic]) {
    let word = file.to_str().filter(|word| !word.contains(['/', '.']) && !file.exists());
    let names: Vec<&'static str> = SHIPPED
        .iter()
        .map(|(name, _)| *name)
        .chain(Preset::ALL.iter().map(|preset| preset.as_str()))
        .collect();
    let Some(near) = word.and_then(|word| suggest::nearest_value(word, &names)) else { return };
    for found in found {
        if let Problem::Unreadable { hint, .. } = &mut *found.problem {
            // A file with a similar name goes before it.
            *hint = Some(format!("did you mean `{near}`?"));
        }
    }
}
