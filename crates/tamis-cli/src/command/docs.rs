//! `tamis docs` and `tamis init`.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use tamis_config::{catalogue, suggest};

use super::print;
use crate::failure::{FAILED, Failure, USAGE};
use crate::pages::{PAGES, name_in_link, page};

/// What `tamis init` writes.
const START: [(&str, &str); 3] = [
    ("my.yaml", include_str!("../../../../examples/start/my.yaml")),
    ("my_reward.py", include_str!("../../../../examples/start/my_reward.py")),
    ("questions.jsonl", include_str!("../../../../examples/start/questions.jsonl")),
];

pub(crate) fn docs(name: Option<&str>) -> Result<u8, Failure> {
    let title = |text: &str| text.lines().next().unwrap_or_default().trim_start_matches("# ").to_owned();
    let Some(name) = name else {
        let mut text = String::new();
        for (name, page) in PAGES.iter() {
            let _ = writeln!(text, "{name:<32} {}", title(page));
        }
        print(&text)?;
        return Ok(0);
    };
    if let Some(text) = page(name) {
        print(text)?;
        return Ok(0);
    }
    let short = name_in_link(name);
    let pages = |is_near: &dyn Fn(&str, &str) -> bool| -> Vec<String> {
        let near = PAGES.iter().filter(|(known, page)| !short.is_empty() && is_near(known, page));
        near.map(|(known, _)| format!("`tamis docs {known}`")).collect()
    };
    let mut near = pages(&|known, _| known.contains(short));
    if near.is_empty() {
        let is_heading = |line: &&str| line.starts_with("# ") || line.starts_with("##");
        // As in the anchor of a heading: `what-fits`.
        let plain = |text: &str| text.to_lowercase().replace('-', " ");
        let names_it = |line: &str| plain(line).contains(&plain(short));
        near = pages(&|_, page| page.lines().filter(is_heading).any(names_it));
    }
    let names: Vec<&'static str> = PAGES.iter().map(|(known, _)| known.as_str()).collect();
    let misspelt =
        || suggest::nearest_value(short, &names).map(|name| format!("did you mean `tamis docs {name}`?"));
    // A key of ours or of another system, or the name of an algorithm: no page, and yet explained.
    if tamis_import::explain(name).is_ok() {
        near.push(format!("`tamis config explain {name}` explains the key"));
    } else if !catalogue::find(name).is_empty() || tamis_import::find_value(name).is_some() {
        near.push(format!("`tamis explain {name}` explains the name"));
    }
    let hint = if near.is_empty() { misspelt() } else { Some(near.join(", ")) };
    let hint = hint.unwrap_or_else(|| "`tamis docs` lists them".to_owned());
    Err(Failure::new(USAGE, format!("error: there is no page `{name}`\n  hint: {hint}")))
}

pub(crate) fn init(folder: &Path) -> Result<u8, Failure> {
    let other = folder.file_name().map_or_else(
        || "my-run".to_owned(),
        |name| folder.with_file_name(format!("{}-2", name.to_string_lossy())).display().to_string(),
    );
    let hint = format!("`tamis init {other}` writes into another folder");
    let unwritten = |path: &Path, error: &std::io::Error| {
        let path = path.display();
        if error.kind() == std::io::ErrorKind::AlreadyExists {
            let text = format!(
                "error: {path} already exists, and existing files are not overwritten\n  hint: {hint}"
            );
            return Failure::new(USAGE, text);
        }
        Failure::new(FAILED, format!("error: failed to write {path}: {error}\n  hint: {hint}"))
    };
    let paths = START.map(|(name, text)| (folder.join(name), text));
    if let Some((path, _)) = paths.iter().find(|(path, _)| path.symlink_metadata().is_ok()) {
        return Err(unwritten(path, &std::io::ErrorKind::AlreadyExists.into()));
    }
    std::fs::create_dir_all(folder).map_err(|error| unwritten(folder, &error))?;
    let mut told = String::new();
    for (path, text) in &paths {
        let written = OpenOptions::new().write(true).create_new(true).open(path);
        written
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| unwritten(path, &error))?;
        let _ = writeln!(told, "wrote {}", path.display());
    }
    let config = paths.first().map(|(path, _)| path.display().to_string()).unwrap_or_default();
    print(&format!("{told}next: tamis config check {config} --plan\n      tamis train {config}\n"))?;
    Ok(0)
}
