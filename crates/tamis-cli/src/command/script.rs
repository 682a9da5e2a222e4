//! `tamis train SCRIPT`: a user's own script, in which the call of a trainer becomes a run of tamis.
//!
//! A script of the shell runs in bash with stand-ins for `python`, `python3` and `ray`
//! (`stand_in.bash`), first on `PATH` and as functions, so that an environment activated in the script does
//! not go before them. The command that starts verl's trainer becomes `tamis train -- COMMAND`.
//!
//! A script of Python runs in its own interpreter, with a stand-in for TRL's trainer
//! (`tamis_script.py`), whose `train()` starts the run and answers for the script's rewards.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

use tamis_train::python_program::{DEFAULT_INTERPRETER, interpreter, private_folder};

use super::show;
use crate::arguments::{Language, TrainArguments};
use crate::failure::{FAILED, Failure, USAGE};

/// A script that `tamis train` was given in place of a configuration.
#[derive(Debug)]
pub(crate) struct Script {
    path: PathBuf,
    language: Language,
}

/// Programs that [`STAND_IN`] stands for.
const NAMES: [&str; 3] = ["python", "python3", "ray"];
/// Programs that start another one, which they look for on `PATH`.
const STARTERS: [&str; 6] = ["env", "nohup", "timeout", "nice", "setsid", "stdbuf"];
/// Beginning of the name of the folder of a script that runs.
const PREFIX: &str = "tamis-script-";
const PYTHON: &str = include_str!("../../../tamis-env/python/tamis_script.py");
const REWARD: &str = include_str!("../../../tamis-env/python/tamis_reward.py");
const STAND_IN: &str = include_str!("stand_in.bash");
const WHAT_IS_CAUGHT: &str = "caught are `python3 -m verl.trainer...`, `python3 -m recipe...` and `ray job submit ... -- python3 -m ...`; a \
    command of another form can be given itself: `tamis train -- COMMAND`";

impl Script {
    /// The script that a word names, by its ending.
    pub(crate) fn of(word: &str) -> Option<Self> {
        Language::of(word).map(|language| Self { path: word.into(), language })
    }

    /// Runs it, or with `--dry-run` shows what would be trained; the exit code.
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
        let commands = trainer_commands(&text);
        if commands.is_empty() {
            let text = format!(
                "error: no line of {} starts verl's trainer (it was read, not run)\n  hint: {WHAT_IS_CAUGHT}",
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
        bash.arg(&self.path).args(own).env("PATH", path).env("BASH_ENV", folder.join("functions"));
        let code = self.code_of(bash, folder)?;
        let Ok(codes) = std::fs::read_to_string(folder.join("codes")) else {
            let text = format!(
                "error: {} started no trainer of verl that can be caught (exit code {code})\n  hint: {WHAT_IS_CAUGHT}",
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
        // The active environment is the script's own; otherwise it is the one that tamis is installed in.
        let mut python = Command::new(interpreter(DEFAULT_INTERPRETER));
        python.arg(folder.join("tamis_script.py"));
        self.code_of(python, folder)
    }

    /// Waits for a script; its exit code. The process of its run, while there is one, is in the file `pid`.
    fn code_of(&self, mut command: Command, folder: &Path) -> Result<u8, Failure> {
        // A terminal sends Ctrl-C to all of them; what is sent to this process only is passed on.
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
    let quoted = |path: OsString| format!("'{}'", path.to_string_lossy().replace('\'', "'\\''"));
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

/// The commands of a script that start verl's trainer, with the numbers of their first lines: found by
/// reading the text, in which a line that ends with a backslash goes on in the next.
fn trainer_commands(text: &str) -> Vec<(usize, String)> {
    let starts = |command: &str| {
        let words = command.split_whitespace().map(|word| word.trim_matches(['"', '\'']));
        let words: Vec<&str> = words.filter(|word| *word != "\\").collect();
        let is_python = |word: &&str| {
            Path::new(word).file_name().is_some_and(|name| name.to_string_lossy().starts_with("python"))
        };
        words.windows(2).enumerate().any(|(at, pair)| {
            pair[0] == "-m"
                && (pair[1].starts_with("verl.trainer.") || pair[1].starts_with("recipe."))
                && words[..at]
                    .iter()
                    .rposition(&is_python)
                    .is_some_and(|python| words[python + 1..at].iter().all(|word| word.starts_with('-')))
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
        let text = "set -x\nexport N=8\n# python3 -m verl.trainer.main_ppo a=0\n\nPYTHONUNBUFFERED=1 python3 -u -m \\\n  \
            recipe.dapo.main_dapo \\\n  a=$N\npython3 -m verl.model_merger merge\nray job submit -- \
            python3 -m verl.trainer.main_ppo b=1\npython3 prepare.py -m verl.trainer.main_ppo\necho -m verl.trainer.main_ppo";
        let found = trainer_commands(text);
        let lines: Vec<usize> = found.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [5, 9], "{found:?}");
        assert!(found[0].1.ends_with("\\\n  a=$N"), "{found:?}");
    }
}
