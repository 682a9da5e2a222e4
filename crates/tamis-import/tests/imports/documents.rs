//! The examples in the documentation of verl, EasyR1 and RAGEN, unchanged.

use std::path::Path;
use std::process::Command;

use tamis_import::import;

/// One of the documents, which are beside the repository. `None`, with a notice, if they are missing.
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn document(name: &str) -> Option<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/reference/source").join(name);
    let text = std::fs::read_to_string(&path);
    if text.is_err() {
        eprintln!("skipped: no {}", path.display());
    }
    text.ok()
}

/// The code blocks in a language.
fn blocks<'t>(text: &'t str, language: &str) -> Vec<&'t str> {
    let start = format!("```{language}\n");
    text.split(&start).skip(1).filter_map(|rest| Some(rest.split_once("\n```")?.0)).collect()
}

/// A script's arguments for Python, as the shell passes them.
fn arguments(script: &str) -> Vec<String> {
    // Comments after a line's backslash, and dots for omissions, are the document's; a shell would not accept
    // them.
    let lines: Vec<String> = script
        .lines()
        .filter(|line| line.trim() != "...")
        .map(|line| line.split_once("\\  #").map_or_else(|| line.to_owned(), |(line, _)| format!("{line}\\")))
        .collect();
    let script = format!("python() {{ printf '%s\\0' \"$@\"; }}\n{}\n", lines.join("\n"));
    let output = Command::new("bash").arg("-c").arg(script).env("HOME", "/home/me").output().expect("bash");
    let text = String::from_utf8(output.stdout).expect("text");
    text.split('\0').filter(|argument| !argument.is_empty()).map(str::to_owned).collect()
}

#[test]
fn examples_of_the_documents_are_taken() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("theirs.yaml").to_str().expect("a path in UTF-8").to_owned();
    let mut taken = Vec::new();
    for name in ["filter-groups.md", "dynamic-sampling.md", "ragen-filtering.md"] {
        let Some(text) = document(name) else { return };
        // Blocks in a list are indented.
        let text = if name.starts_with("ragen") { text.replace("\n    ", "\n") } else { text };
        let take = |words: &[String]| {
            import(words, Path::new("")).unwrap_or_else(|errors| panic!("{name}: {words:?}\n{errors}"));
        };
        let scripts: Vec<&str> = blocks(&text, "bash")
            .into_iter()
            .filter(|block| block.contains("verl.trainer.main_ppo"))
            .collect();
        for script in &scripts {
            take(&arguments(script));
        }
        let is_file = |block: &&str| block.starts_with(['a', 'd']) && block.contains(":\n");
        let files: Vec<&str> = blocks(&text, "yaml").into_iter().filter(is_file).collect();
        for block in &files {
            std::fs::write(&path, block).expect("written");
            take(&["model_path=m".to_owned(), path.clone()]);
        }
        taken.push((scripts.len(), files.len()));
    }
    assert_eq!(taken, [(5, 2), (0, 4), (0, 3)], "scripts and files of each document");
}
