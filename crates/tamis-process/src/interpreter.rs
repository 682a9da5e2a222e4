//! The Python interpreter that is started if the user names none.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The name of that interpreter.
pub const DEFAULT_INTERPRETER: &str = "python3";

/// The value of a key whose interpreter is that of `run.python`, if there is no such key.
const OF_RUN: &str = "run.python";

/// Variables with the folder of an active environment, the nearest first.
const ACTIVE: [&str; 2] = ["VIRTUAL_ENV", "CONDA_PREFIX"];

/// The interpreter that is started for a name. A bare `python3` is that of the active environment
/// (`VIRTUAL_ENV`, `CONDA_PREFIX`), otherwise the one beside this program, as in an environment that the
/// package is installed in, otherwise that of `PATH`. Any other name is as it is.
pub fn interpreter(python: &str) -> String {
    interpreter_in(python, |name| std::env::var_os(name), std::env::current_exe().ok().as_deref())
}

fn interpreter_in(
    python: &str,
    variable: impl Fn(&str) -> Option<OsString>,
    program: Option<&Path>,
) -> String {
    if ![DEFAULT_INTERPRETER, OF_RUN].contains(&python) {
        return python.to_owned();
    }
    let python = DEFAULT_INTERPRETER;
    let active = ACTIVE.iter().filter_map(|name| variable(name)).filter(|folder| !folder.is_empty());
    let active = active.map(|folder| PathBuf::from(folder).join("bin"));
    let beside = program.and_then(Path::parent).map(Path::to_owned);
    let found = active.chain(beside).map(|folder| folder.join(python)).find(|path| path.is_file());
    found.map_or_else(|| python.to_owned(), |path| path.to_string_lossy().into_owned())
}

/// Packages with another name than the module that a file imports.
const PACKAGES: [(&str, &str); 4] =
    [("PIL", "pillow"), ("cv2", "opencv-python"), ("sklearn", "scikit-learn"), ("yaml", "pyyaml")];

/// The fix of a Python error that misses a module, as the interpreter prints it; `None` for other errors.
/// `key` names the key of the interpreter.
///
/// ```
/// let error = "ModuleNotFoundError: No module named 'numpy.linalg'";
/// let fix = tamis_process::with_package(error, "python3", "objective.loss.python").unwrap();
/// assert!(fix.starts_with("install it there (`python3 -m pip install numpy`), or name an interpreter"));
/// ```
pub fn with_package(error: &str, python: &str, key: &str) -> Option<String> {
    let (_, rest) = error.rsplit_once("No module named '")?;
    let module = rest.split(['.', '\'']).next()?;
    let package = PACKAGES.iter().find(|(name, _)| *name == module).map_or(module, |(_, package)| package);
    Some(format!(
        "install it there (`{python} -m pip install {package}`), or name an interpreter that has it: {key}, or run.python for everything; \
         if `{module}` is yours, add its folder to PYTHONPATH"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_module_is_installed_under_the_name_of_its_package() {
        let of = |error: &str| with_package(error, "/usr/bin/python3", "learner.python");
        for (module, package) in
            [("numpy", "numpy"), ("sklearn.svm", "scikit-learn"), ("cv2", "opencv-python")]
        {
            let error = format!("  File \"a.py\", line 1\nModuleNotFoundError: No module named '{module}'");
            let expected = format!("`/usr/bin/python3 -m pip install {package}`");
            assert!(of(&error).is_some_and(|fix| fix.contains(&expected) && fix.contains("learner.python")));
            let ending =
                format!("; if `{}` is yours, add its folder to PYTHONPATH", module.trim_end_matches(".svm"));
            assert!(of(&error).is_some_and(|fix| fix.ends_with(&ending)));
        }
        assert_eq!(of("ImportError: cannot import name 'x' from 'numpy'"), None);
    }

    #[test]
    fn the_active_environment_comes_first_then_the_one_beside_the_program() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let of = |python: &str, set: &[(&str, &str)]| {
            let variable = |name: &str| {
                let found = set.iter().find(|(key, _)| *key == name)?;
                Some(if found.1.is_empty() { OsString::new() } else { at(found.1).into_os_string() })
            };
            interpreter_in(python, variable, Some(&at("bin/tamis")))
        };
        let make = |name: &str| {
            std::fs::create_dir_all(at(name).parent().expect("a parent")).expect("made");
            std::fs::write(at(name), "").expect("written");
            at(name).to_string_lossy().into_owned()
        };
        let both = [("CONDA_PREFIX", "conda"), ("VIRTUAL_ENV", "venv")];
        assert_eq!(of("python3", &both), "python3");
        let beside = make("bin/python3");
        assert_eq!(of("python3", &both), beside, "an environment without an interpreter is passed over");
        let conda = make("conda/bin/python3");
        assert_eq!(of("python3", &both), conda);
        assert_eq!(of("run.python", &both), conda);
        let venv = make("venv/bin/python3");
        assert_eq!(of("python3", &both), venv);
        assert_eq!(of("python3", &[("VIRTUAL_ENV", "")]), beside);
        // A named interpreter is started unchanged.
        make("venv/bin/python3.12");
        for named in ["python3.12", "/usr/bin/python3", ".venv/bin/python"] {
            assert_eq!(of(named, &both), named);
        }
    }
}
