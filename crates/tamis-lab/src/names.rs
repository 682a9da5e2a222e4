//! Names of runs: unique short names, and the run inside a folder.

use std::path::{Path, PathBuf};

/// The last part of each path, as a name. Equal names get the name of their folder in front. If they are
/// still equal, they get a number.
pub(crate) fn apart(paths: &[PathBuf]) -> Vec<String> {
    let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let last = |path: &Path| {
        let name = path.file_name();
        name.map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
    };
    let paths: Vec<PathBuf> = paths.iter().map(absolute).collect();
    let mut names: Vec<String> = paths.iter().map(|path| last(path)).collect();
    for place in repeated(&names) {
        if let Some(around) = paths[place].parent().and_then(Path::file_name) {
            names[place] = format!("{}/{}", around.to_string_lossy(), names[place]);
        }
    }
    for place in repeated(&names) {
        names[place] = format!("{} ({})", names[place], place + 1);
    }
    names
}

/// The first run in a folder.
pub(crate) fn run_inside(folder: &Path, is_run: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    entries.map(|entry| entry.path()).filter(|path| is_run(path)).min()
}

/// Indices of names that occur more than once.
fn repeated(names: &[String]) -> Vec<usize> {
    let is_repeated = |place: &usize| names.iter().filter(|name| **name == names[*place]).count() > 1;
    (0..names.len()).filter(is_repeated).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_around_them_tells_runs_apart() {
        let names = |paths: &[&str]| apart(&paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(names(&["/a/x", "/a/y", "/b/x"]), ["a/x", "y", "b/x"]);
        assert_eq!(names(&["/1/a/x", "/2/a/x", "/1/a/y"]), ["a/x (1)", "a/x (2)", "y"]);
        assert_eq!(names(&["/"]), ["/"]);
    }
}
