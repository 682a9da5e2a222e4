//! `tamis train SCRIPT`: a user's own script, in which the call of a trainer becomes a run of tamis.
//!
//! A shell script runs in bash with stand-ins for [`NAMES`] (`stand_in.bash`). They come first on `PATH` and
//! are functions, too, so that an environment which the script activates does not take precedence. The
//! command that starts verl's trainer becomes `tamis train -- COMMAND`. There is no stand-in for an
//! interpreter that is named by its path or a variable, so its word is replaced before the script runs.
//!
//! A Python script runs in its own interpreter, with stand-ins for TRL's trainers (`tamis_script.py`), whose
//! `train()` starts the run and computes the script's rewards.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

use tamis_config::shell_word;
use tamis_train::python_program::{DEFAULT_INTERPRETER, interpreter, private_folder};

use super::show;
use crate::arguments::{Language, TrainArguments};
use crate::failure::{FAILED, Failure, USAGE};

/// A script in place of a configuration.
#[derive(Debug)]
pub(crate) struct Script {
    path: PathBuf,
    language: Language,
}

/// Programs that [`STAND_IN`] replaces.
const NAMES: [&str; 11] = [
    "python",
    "python3",
    "python3.10",
    "python3.11",
    "python3.12",
    "python3.13",
    "ray",
    "uv",
    "trl",
    "accelerate",
    "torchrun",
];
/// Programs that start another one, which they look for on `PATH`.
const STARTERS: [&str; 6] = ["env", "nohup", "timeout", "nice", "setsid", "stdbuf"];
/// Beginning of the name of the folder of a script that runs.
const PREFIX: &str = "tamis-script-";
const PYTHON: &str = include_str!("../../../tamis-env/python/tamis_script.py");
const REWARD: &str = include_str!("../../../tamis-env/python/tamis_reward.py");
const STAND_IN: &str = include_str!("stand_in.bash");
const WHAT_IS_CAUGHT: &str = "recognised are `python3 -m verl.trainer...`, `python3 -m recipe...`, `ray job submit ... -- python3 -m \
    ...`, `trl \
    grpo ...`, `trl sft ...`, `torchrun -m verl.trainer.sft_trainer`, and `python3 SCRIPT.py` and `accelerate launch SCRIPT.py` of a \
    script with a GRPOTrainer or an SFTTrainer, all of them after `uv run` too; \
    pass another command directly: `tamis train -- COMMAND`";

impl Script {
    /// The script that a word names, by its ending.
    pub(crate) fn of(word: &str) -> Option<Self> {
        Language::of(word).map(|language| Self { path: word.into(), language })
    }

    /// Runs it, or with `--dry-run` shows what would be trained. Returns the exit code.
    pub(crate) fn run(&self, arguments: &TrainArguments) -> Result<u8, Failure> {
        if !self.path.is_file() {
            let text = format!(
                "error: there is no file {}\n  hint: name a script or a configuration",
                self.path.display()
            );
            return Err(Failure::new(USAGE, text));
        }
        let words = arguments.layers.arguments.get(1..).unwrap_or_default();
        let (before, after) = match words.iter().position(|word| word == "--") {
            Some(at) => (&words[..at], &words[at + 1..]),
            None => (words, &[][..]),
        };
        let is_override =
            |word: &&String| word.contains('=') && !word.starts_with('-') || word.starts_with(['~', '+']);
        let (overrides, own): (Vec<&String>, Vec<&String>) = before.iter().partition(is_override);
        let own: Vec<&String> = own.into_iter().chain(after).collect();
        match self.language {
            Language::Shell if arguments.resume.is_some() => Err(Failure::new(
                USAGE,
                "error: a script is not needed to continue a run\n  hint: `tamis train --resume RUN_DIR`: the run folder has its configuration",
            )),
            Language::Shell if arguments.dry_run => self.show_commands(),
            Language::Shell => self.run_in_bash(arguments, &own, &overrides),
            Language::Python => self.run_in_python(arguments, &own, &overrides),
        }
    }

    fn fail(&self, what: &str, error: &std::io::Error) -> Failure {
        Failure::new(FAILED, format!("error: failed to {what} {}: {error}", self.path.display()))
    }

    /// Prints the commands that would be caught, as they are written.
    fn show_commands(&self) -> Result<u8, Failure> {
        let text = std::fs::read(&self.path).map_err(|error| self.fail("read", &error))?;
        let text = String::from_utf8_lossy(&text);
        let commands = trainer_commands(&text, self.path.parent().unwrap_or(Path::new("")));
        if commands.is_empty() {
            let text = format!(
                "error: no line of {} starts a trainer that is recognised (it was read, not run)\n  hint: {WHAT_IS_CAUGHT}",
                self.path.display()
            );
            return Err(Failure::new(USAGE, text));
        }
        let mut shown = String::new();
        for (line, command) in commands {
            let _ = writeln!(
                shown,
                "# {}:{line}: this would be trained, with its variables expanded by bash\n{command}",
                self.path.display()
            );
        }
        show(&shown)?;
        Ok(0)
    }

    fn run_in_bash(
        &self,
        arguments: &TrainArguments,
        own: &[&String],
        overrides: &[&String],
    ) -> Result<u8, Failure> {
        let folder = private_folder(PREFIX).map_err(|error| self.fail("prepare", &error))?;
        let folder = folder.path();
        write_stand_ins(folder, &options_of_run(arguments), overrides)
            .map_err(|error| self.fail("prepare", &error))?;
        let paths = std::env::var_os("PATH").unwrap_or_default();
        let paths = [folder.join("bin")].into_iter().chain(std::env::split_paths(&paths));
        let path = std::env::join_paths(paths)
            .map_err(|error| self.fail("prepare", &std::io::Error::other(error)))?;
        let mut bash = Command::new("bash");
        let text = std::fs::read(&self.path).map_err(|error| self.fail("read", &error))?;
        match with_stood_for(&String::from_utf8_lossy(&text)) {
            // `$0` is the script all the same.
            Some(text) => bash.arg("-c").arg(text).arg(&self.path),
            None => bash.arg(&self.path),
        };
        bash.args(own).env("PATH", path).env("BASH_ENV", folder.join("functions"));
        let code = self.code_of(bash, folder)?;
        let Ok(codes) = std::fs::read_to_string(folder.join("codes")) else {
            let text = format!(
                "error: {} started no trainer that is recognised (exit code {code})\n  hint: {WHAT_IS_CAUGHT}",
                self.path.display()
            );
            return Err(Failure::new(if code == 0 { USAGE } else { FAILED }, text));
        };
        // A pipe (`| tee run.log`) may hide that a run failed.
        let failed = codes.lines().rev().find(|code| *code != "0").and_then(|code| code.parse().ok());
        Ok(failed.unwrap_or(code))
    }

    fn run_in_python(
        &self,
        arguments: &TrainArguments,
        own: &[&String],
        overrides: &[&String],
    ) -> Result<u8, Failure> {
        let folder = private_folder(PREFIX).map_err(|error| self.fail("prepare", &error))?;
        let folder = folder.path();
        let settings = serde_json::json!({
            "program": std::env::current_exe().map_err(|error| self.fail("prepare", &error))?,
            "script": self.path,
            "arguments": own,
            "overrides": overrides,
            "options": options_of_run(arguments),
            "resume": arguments.resume,
            "dry_run": arguments.dry_run,
        });
        let files = [
            ("tamis_script.py", PYTHON),
            ("tamis_reward.py", REWARD),
            ("settings.json", &settings.to_string()),
        ];
        for (name, text) in files {
            std::fs::write(folder.join(name), text).map_err(|error| self.fail("prepare", &error))?;
        }
        // `run.python` runs the script too. Without it the active environment does, or else the one that
        // tamis is installed in.
        let given =
            overrides.iter().rev().find_map(|word| word.trim_start_matches('+').strip_prefix("run.python="));
        let given = given.map(|text| text.trim_matches(['"', '\''])).filter(|text| !text.is_empty());
        let mut python = Command::new(interpreter(given.unwrap_or(DEFAULT_INTERPRETER)));
        python.arg(folder.join("tamis_script.py"));
        self.code_of(python, folder)
    }

    /// Waits for a script and returns its exit code. The process id of its run, if there is one, is in the
    /// file `pid`.
    fn code_of(&self, mut command: Command, folder: &Path) -> Result<u8, Failure> {
        // A terminal sends Ctrl-C to all of them; a signal to this process only is passed on.
        let (pid, child) = (folder.join("pid"), Arc::new(OnceLock::new()));
        let of_script = Arc::clone(&child);
        let pass_on = move || {
            let run = std::fs::read_to_string(&pid).ok().or_else(|| of_script.get().map(u32::to_string));
            if let Some(run) = run {
                let _ = Command::new("kill").args(["-INT", run.trim()]).stderr(Stdio::null()).status();
            }
        };
        ctrlc::set_handler(pass_on)
            .map_err(|error| self.fail("listen for Ctrl-C in", &std::io::Error::other(error)))?;
        let mut started = command
            .spawn()
            .map_err(|error| self.fail(&format!("start {} for", command.get_program().display()), &error))?;
        let _ = child.set(started.id());
        let status = started.wait().map_err(|error| self.fail("wait for", &error))?;
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
        Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED))
    }
}

/// Options of the command line that the run has too.
fn options_of_run(arguments: &TrainArguments) -> Vec<&'static str> {
    let options = [(arguments.verbose, "--verbose"), (arguments.quiet, "--quiet")];
    options.into_iter().filter_map(|(is_given, option)| is_given.then_some(option)).collect()
}

/// Writes [`STAND_IN`] under each of its names into a folder, and what it reads.
fn write_stand_ins(folder: &Path, options: &[&str], overrides: &[&String]) -> std::io::Result<()> {
    std::fs::create_dir(folder.join("bin"))?;
    let quoted = |path: OsString| shell_word(&path.to_string_lossy());
    let mut functions =
        std::env::var_os("BASH_ENV").map_or_else(String::new, |file| format!(". {}\n", quoted(file)));
    for name in NAMES {
        let path = folder.join("bin").join(name);
        std::fs::write(&path, STAND_IN)?;
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
        let _ = writeln!(functions, "{name}() {{ {} \"$@\"; }}", quoted(path.into()));
    }
    for name in STARTERS {
        let bin = quoted(folder.join("bin").into());
        let _ = writeln!(functions, "{name}() {{ PATH={bin}:$PATH command {name} \"$@\"; }}");
    }
    std::fs::write(folder.join("functions"), functions)?;
    std::os::unix::fs::symlink(std::env::current_exe()?, folder.join("tamis"))?;
    let ended = |word: &str| format!("{word}\0");
    std::fs::write(folder.join("options"), options.iter().map(|word| ended(word)).collect::<String>())?;
    std::fs::write(folder.join("overrides"), overrides.iter().map(|word| ended(word)).collect::<String>())
}

/// The words of a text with their places.
fn words_of(text: &str) -> Vec<(usize, &str)> {
    text.split_whitespace().map(|word| (word.as_ptr() as usize - text.as_ptr() as usize, word)).collect()
}

/// Whether a word names a trainer of verl, as `-m` takes it.
fn is_trainer(word: &str) -> bool {
    word.starts_with("verl.trainer.") || word.starts_with("recipe.")
}

/// Whether a word names a supervised trainer of verl, which launchers start.
fn is_supervised(word: &str) -> bool {
    word.starts_with("verl.trainer.") && word.contains("sft")
}

/// Whether a word is an interpreter of Python, by its name, its path or a variable such as `$PYTHON`.
fn is_python(word: &str) -> bool {
    let name = word.trim_matches(['"', '\'', '$', '{', '}']);
    let name = name.rsplit('/').next().unwrap_or(name).trim_matches(['$', '{', '}']).to_lowercase();
    name.starts_with("python") || word.contains('$') && name.ends_with("python")
}

/// Places among words of the interpreters that start a trainer of verl.
fn interpreters(words: &[(usize, &str)]) -> Vec<usize> {
    let starts = |at: &usize| {
        let next = words.iter().skip(at + 1).find(|(_, word)| *word != "\\");
        words[*at].1 == "-m" && next.is_some_and(|(_, word)| is_trainer(word))
    };
    let python_before = |at: usize| {
        let before = words[..at].iter().rposition(|(_, word)| !word.starts_with('-') && *word != "\\")?;
        is_python(words[before].1).then_some(before)
    };
    (0..words.len()).filter(starts).filter_map(python_before).collect()
}

/// A script in which `python3` takes the place of interpreters of verl's trainer that are named by a path or
/// a variable; `None` if there are none.
fn with_stood_for(text: &str) -> Option<String> {
    let words = words_of(text);
    let is_elsewhere = |word: &str| word.contains(['/', '$']);
    let found: Vec<_> =
        interpreters(&words).into_iter().map(|at| words[at]).filter(|(_, word)| is_elsewhere(word)).collect();
    if found.is_empty() {
        return None;
    }
    let mut changed = text.to_owned();
    for (place, word) in found.into_iter().rev() {
        // What is before it in the same word, as in `$(/usr/bin/python3`, stays.
        let start = word.rfind(['(', '`']).map_or(0, |at| at + 1);
        changed.replace_range(place + start..place + word.len(), "python3");
    }
    // A text that is run has no file.
    let sources = ["${BASH_SOURCE[0]}", "${BASH_SOURCE}", "$BASH_SOURCE"];
    Some(sources.iter().fold(changed, |text, source| text.replace(source, "$0")))
}

/// The commands of a script that start a trainer, with the numbers of their first lines. They are found by
/// reading the text, in which a line that ends with a backslash continues in the next. `folder` is that of
/// the script.
fn trainer_commands(text: &str, folder: &Path) -> Vec<(usize, String)> {
    let has_trainer = |script: &str| {
        let read = |path: PathBuf| std::fs::read_to_string(path).ok();
        // A path with a variable is not known before the script runs.
        script.contains('$')
            || read(PathBuf::from(script)).or_else(|| read(folder.join(script))).is_some_and(|text| {
                ["GRPOTrainer", "SFTTrainer"].iter().any(|trainer| text.contains(trainer))
                    && !text.contains("tamis.trl")
            })
    };
    let starts = |command: &str| {
        let words = words_of(command);
        let name = |at: usize| words.get(at).map_or("", |(_, word)| word.trim_matches(['"', '\'']));
        let starts_script = |at: usize| {
            let is_start = is_python(name(at))
                || name(at) == "torchrun"
                || (name(at), name(at + 1)) == ("accelerate", "launch");
            let script = words
                .iter()
                .skip(at + 1)
                .map(|(_, word)| word.trim_matches(['"', '\'']))
                .find(|word| Path::new(word).extension().is_some_and(|ending| ending == "py"));
            is_start && script.is_some_and(has_trainer)
        };
        !interpreters(&words).is_empty()
            || (0..words.len()).any(|at| {
                name(at) == "trl" && ["grpo", "sft"].contains(&name(at + 1))
                    || starts_script(at)
                    || name(at) == "torchrun" && (at..words.len()).any(|at| is_supervised(name(at)))
            })
    };
    let mut found = Vec::new();
    let mut command: Option<(usize, String)> = None;
    for (line, number) in text.lines().zip(1..) {
        let (first, mut whole) = command.take().unwrap_or_else(|| (number, String::new()));
        whole.push_str(line);
        if line.ends_with('\\') {
            whole.push('\n');
            command = Some((first, whole));
        } else if !whole.trim_start().starts_with('#') && starts(&whole) {
            found.push((first, whole));
        }
    }
    found.extend(command.filter(|(_, whole)| starts(whole)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_in_the_text() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("mine.py"), "GRPOTrainer(...).train()").expect("written");
        let text = "set -x\nexport N=8\n# python3 -m verl.trainer.main_ppo a=0\n\nPYTHONUNBUFFERED=1 python3 -u -m \\\n  \
            recipe.dapo.main_dapo \\\n  a=$N\npython3 -m verl.model_merger merge\nray job submit -- \
            python3 -m verl.trainer.main_ppo b=1\npython3 prepare.py -m verl.trainer.main_ppo\necho -m verl.trainer.main_ppo\n\
            /opt/venv/bin/python -u -m verl.trainer.main_ppo\nuv run --with x python -m verl.trainer.main_ppo\ntrl grpo --bf16\n\
            accelerate launch --num_processes 8 mine.py --x\naccelerate launch other.py\n\"$PYTHON\" -m verl.trainer.main_ppo\n\
            trl sft --packing\ntorchrun --nnodes=1 --nproc_per_node=$N \\\n  -m verl.trainer.fsdp_sft_trainer c=1\ntorchrun x.py";
        let found = trainer_commands(text, folder.path());
        let lines: Vec<usize> = found.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [5, 9, 12, 13, 14, 15, 17, 18, 19], "{found:?}");
        assert!(found[0].1.ends_with("\\\n  a=$N"), "{found:?}");
    }

    #[test]
    fn an_interpreter_by_its_path_is_stood_for() {
        let stood_for = |text: &str| with_stood_for(text).expect("something changes");
        assert_eq!(
            stood_for("A=1 /usr/bin/python3.11 -u -m verl.trainer.main_ppo a=/usr/bin/python3"),
            "A=1 python3 -u -m verl.trainer.main_ppo a=/usr/bin/python3"
        );
        assert_eq!(
            stood_for("cd $(dirname ${BASH_SOURCE[0]})\n\"$PYTHON\" \\\n -m \\\n recipe.dapo.main_dapo"),
            "cd $(dirname $0)\npython3 \\\n -m \\\n recipe.dapo.main_dapo"
        );
        for text in [
            "python3 -m verl.trainer.main_ppo",
            "/usr/bin/python3 -m verl.model_merger",
            "/usr/bin/python3 x.py",
        ] {
            assert_eq!(with_stood_for(text), None, "{text}");
        }
    }
}
