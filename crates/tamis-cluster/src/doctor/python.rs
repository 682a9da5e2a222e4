//! Python interpreters: the packages that they have, and what their PyTorch sees.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use tamis_process::{ProgramError, ask};

/// The program that the interpreter runs to answer.
const PROBE: &str = include_str!("probe.py");
/// Longest time for the answer: PyTorch with CUDA takes half a minute from a cold network disk.
const LONGEST: Duration = Duration::from_secs(180);

/// An interpreter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interpreter {
    /// Its program.
    pub executable: String,
    /// Its version.
    pub version: String,
    /// Versions of those packages that it has, of the ones asked about.
    pub packages: BTreeMap<String, String>,
    /// Its PyTorch, if it has one.
    pub torch: Option<Torch>,
}

/// A PyTorch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Torch {
    /// The CUDA that it was built for; `None`: a build for CPUs.
    pub cuda: Option<String>,
    /// Names of the GPUs that it can use.
    pub devices: Vec<String>,
    /// Its NCCL.
    pub nccl: Option<String>,
    /// Why it cannot be imported.
    pub error: Option<String>,
}

impl Interpreter {
    /// Asks an interpreter about its packages.
    ///
    /// # Errors
    /// The interpreter cannot be run, or takes too long.
    pub fn ask(python: &str) -> Result<Self, ProgramError> {
        // Packages in the working folder do not count.
        let mut command = Command::new(python);
        command.args(["-c", PROBE]).env("PYTHONSAFEPATH", "1");
        let text = ask(&mut command, LONGEST)?;
        let last = text.lines().next_back().unwrap_or_default();
        serde_json::from_str(last).map_err(|error| ProgramError::Failed {
            program: python.to_owned(),
            status: "no answer of a Python 3.8 or newer".to_owned(),
            said: error.to_string(),
        })
    }

    /// Those of these packages that it lacks or cannot import.
    pub fn lacks(&self, names: &[&str]) -> Vec<String> {
        let mut lacking: Vec<String> = names
            .iter()
            .filter(|name| !self.packages.contains_key(**name))
            .map(|&name| name.to_owned())
            .collect();
        if !names.contains(&"torch") {
            return lacking;
        }
        if let Some(error) = self.torch.as_ref().and_then(|torch| torch.error.as_ref()) {
            lacking.push(format!("a torch that can be imported ({error})"));
        }
        lacking
    }

    /// `Python 3.11.7 with torch 2.15.0 (CUDA 13.2, NCCL 2.30.7, 2 GPUs), transformers 5.23.0`.
    pub fn describe(&self) -> String {
        let mut parts = Vec::new();
        for (name, version) in &self.packages {
            let torch = self.torch.as_ref().filter(|_| name == "torch");
            parts.push(match torch {
                Some(Torch { error: Some(error), .. }) => format!("{name} {version}, which fails: {error}"),
                Some(Torch { cuda: Some(cuda), devices, nccl, .. }) => format!(
                    "{name} {version} (CUDA {cuda}{}, {})",
                    nccl.as_ref().map_or_else(String::new, |nccl| format!(", NCCL {nccl}")),
                    match devices.as_slice() {
                        [] => "no GPU that it can use".to_owned(),
                        [only] => format!("GPU {only}"),
                        several => format!("{} GPUs", several.len()),
                    }
                ),
                Some(_) => format!("{name} {version} (for CPUs)"),
                None => format!("{name} {version}"),
            });
        }
        let with = if parts.is_empty() { "none of the packages below".to_owned() } else { parts.join(", ") };
        format!("{}, Python {}, with {with}", self.executable, self.version)
    }
}

/// The path of a program: looked up on `PATH`, unless it is a path already.
pub(super) fn find_program(name: &str) -> Option<PathBuf> {
    let path = Path::new(name);
    if path.components().count() > 1 {
        return path.is_file().then(|| path.to_owned());
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Longest first line of a script.
const LONGEST_LINE: u64 = 4096;

/// The interpreter in a script's first line.
pub(super) fn interpreter_of(script: &Path) -> Option<String> {
    let mut first = Vec::new();
    let file = tamis_file::open(script).ok()?;
    BufReader::new(file).take(LONGEST_LINE).read_until(b'\n', &mut first).ok()?;
    let line = String::from_utf8(first).ok()?;
    let words: Vec<&str> = line.trim_end().strip_prefix("#!")?.split_whitespace().collect();
    let python = match words.as_slice() {
        [env, python, ..] if env.ends_with("/env") => python,
        [python, ..] => python,
        [] => return None,
    };
    python.contains("python").then(|| (*python).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machines_python_answers() {
        // The tests of rewards need Python anyway.
        let found = Interpreter::ask("python3").expect("python3");
        assert!(found.version.starts_with("3."), "{found:?}");
        assert_eq!(found.lacks(&["no-such-package"]), ["no-such-package"]);
        assert!(found.describe().contains(&format!("Python {}", found.version)));
        let missing = Interpreter::ask("no-such-python").expect_err("there is none");
        assert_eq!(missing.to_string(), "`no-such-python` cannot be started: entity not found");
    }

    #[test]
    fn a_script_names_its_interpreter() {
        let folder = tempfile::tempdir().expect("a folder");
        let script = folder.path().join("vllm");
        for (first, expected) in [
            ("#!/opt/venv/bin/python3.12\n", Some("/opt/venv/bin/python3.12")),
            ("#!/usr/bin/env python3\n", Some("python3")),
            ("#!/bin/sh\n", None),
            ("\u{7f}ELF", None),
        ] {
            std::fs::write(&script, format!("{first}import sys\n")).expect("written");
            assert_eq!(interpreter_of(&script).as_deref(), expected, "{first}");
        }
    }

    #[test]
    fn what_pytorch_sees_is_told() {
        let torch = |cuda: Option<&str>, devices: &[&str], error: Option<&str>| Torch {
            cuda: cuda.map(str::to_owned),
            devices: devices.iter().map(|&name| name.to_owned()).collect(),
            nccl: cuda.map(|_| "2.30.7".to_owned()),
            error: error.map(str::to_owned),
        };
        let of = |torch| Interpreter {
            executable: "p".to_owned(),
            version: "3.12.1".to_owned(),
            packages: BTreeMap::from([("torch".to_owned(), "2.15.0".to_owned())]),
            torch: Some(torch),
        };
        let said = |torch| of(torch).describe();
        assert_eq!(
            said(torch(Some("13.2"), &["H100", "H100"], None)),
            "p, Python 3.12.1, with torch 2.15.0 (CUDA 13.2, NCCL 2.30.7, 2 GPUs)"
        );
        assert!(said(torch(Some("13.2"), &[], None)).ends_with("no GPU that it can use)"));
        assert!(said(torch(None, &[], None)).ends_with("torch 2.15.0 (for CPUs)"));
        let broken = torch(None, &[], Some("OSError: libcudart.so.13"));
        assert!(said(broken.clone()).ends_with("which fails: OSError: libcudart.so.13"));
        assert_eq!(of(broken).lacks(&["torch"]), ["a torch that can be imported (OSError: libcudart.so.13)"]);
    }
}
