//! Takes a command line apart: what precedes the arguments of its program (variables, job submission,
//! launcher, interpreter, script), the arguments, and the shell's redirections.

use std::path::Path;

use crate::import::HydraOptions;
use crate::is_foreign_name;
use crate::options::join_options;
use crate::owner::Owner;
use crate::supervised::{mark, trainer_of};

/// A command line taken apart.
pub(super) struct Invocation<'a> {
    pub(super) arguments: &'a [String],
    /// The supervised trainer that it starts, if it does.
    pub(super) trainer: Option<Owner>,
    /// The program that starts several processes, with its options.
    launcher: Option<(Launcher, Options<'a>)>,
}

/// Options, with values if they have any.
type Options<'a> = Vec<(String, Option<&'a str>)>;

/// Programs that start several processes of another program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Launcher {
    Accelerate,
    Torchrun,
    Deepspeed,
}

/// Number of processes that a launcher starts.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Processes {
    NoLauncher,
    Number(u64),
    Elsewhere(String),
}

/// Options of the launchers that take no value.
const FLAGS: [&str; 23] = [
    "bind_cores_to_rank",
    "cpu",
    "debug",
    "downcast_bf16",
    "enable_cpu_affinity",
    "force_multi",
    "ipex",
    "m",
    "module",
    "multi_gpu",
    "no_local_rank",
    "no_python",
    "no_ssh",
    "quiet",
    "run_path",
    "same_network",
    "save_pid",
    "standalone",
    "tpu",
    "use_deepspeed",
    "use_fsdp",
    "use_megatron_lm",
    "use_xpu",
];

/// Whether the words contain a command that starts a program, such as `python3 -m verl.trainer.main_ppo`.
pub fn has_program(words: &[String]) -> bool {
    program(words).is_some()
}

/// The words without the command that starts a program and without redirections: files and overrides before
/// it, and its own arguments. `None` if there is no such command, or if a launcher starts it and it is no
/// supervised trainer: then sizes have to be adapted, which [`import`](super::import) does.
pub fn without_program(words: &[String]) -> Option<Vec<String>> {
    let start = program(words)?;
    let invocation = Invocation::of(words);
    let mut of_launcher = Vec::new();
    if invocation.launcher.is_some() {
        let (Some(_), Ok(Processes::Number(number))) = (invocation.trainer, invocation.processes()) else {
            return None;
        };
        of_launcher.push(format!("num_processes={number}"));
    }
    let before = words.get(..start)?;
    let is_own = |word: &&String| {
        let is_file = Path::new(word).extension().is_some_and(|suffix| suffix == "yaml" || suffix == "yml");
        let is_override = word.contains('=') && word.starts_with(|first: char| !first.is_ascii_uppercase());
        is_file || is_override || word.starts_with('~')
    };
    // A job submission's options may name files that are not for the program.
    let is_submitted = before.iter().any(|word| word.starts_with('-'));
    let own = before.iter().filter(is_own).filter(|_| !is_submitted);
    let arguments = join_options(&HydraOptions::resolved(invocation.arguments), |_| false);
    Some(own.cloned().chain(invocation.trainer.map(mark)).chain(arguments).chain(of_launcher).collect())
}

impl<'a> Invocation<'a> {
    /// Arguments without a program.
    fn plain(arguments: &'a [String]) -> Self {
        Self { arguments, trainer: None, launcher: None }
    }

    /// Takes a command line apart. Without a program, all words are arguments.
    pub(super) fn of(words: &'a [String]) -> Self {
        // The last of several commands that starts a program.
        let words = words
            .rsplit(|word| matches!(word.as_str(), "&&" | ";"))
            .find(|part| program(part).is_some())
            .unwrap_or(words);
        match program(words) {
            Some(start) => Self::of_program(until_shell(words.get(start..).unwrap_or_default())),
            None => Self::plain(until_shell(words)),
        }
    }

    /// `words` begin with the program.
    fn of_program(words: &'a [String]) -> Self {
        let [first, rest @ ..] = words else { return Self::plain(words) };
        match name(first) {
            // Its subcommand.
            "trl" => Self {
                trainer: rest.first().and_then(|subcommand| trainer_of(subcommand)),
                ..Self::plain(rest.get(1..).unwrap_or_default())
            },
            "accelerate" => Self::launched(Launcher::Accelerate, rest.get(1..).unwrap_or_default()),
            "torchrun" => Self::launched(Launcher::Torchrun, rest),
            "deepspeed" => Self::launched(Launcher::Deepspeed, rest),
            _ => Self::of_python(rest),
        }
    }

    /// `rest` follows the interpreter.
    fn of_python(mut rest: &'a [String]) -> Self {
        loop {
            match rest {
                [option, module, after @ ..] if option == "-m" => {
                    return match module.as_str() {
                        "torch.distributed.run" | "torch.distributed.launch" => {
                            Self::launched(Launcher::Torchrun, after)
                        }
                        "accelerate.commands.launch" => Self::launched(Launcher::Accelerate, after),
                        module => Self { trainer: trainer_of(module), ..Self::plain(after) },
                    };
                }
                [option, _, after @ ..] if option == "-X" || option == "-W" => rest = after,
                [script, after @ ..] if is_script(script) => {
                    return Self { trainer: trainer_of(script), ..Self::plain(after) };
                }
                [option, after @ ..] if option.starts_with('-') && !option.starts_with("--") => rest = after,
                _ => return Self::plain(rest),
            }
        }
    }

    /// `rest` follows the launcher: its options, the script or module, and the arguments of that.
    fn launched(launcher: Launcher, mut rest: &'a [String]) -> Self {
        let (mut options, mut trainer) = (Vec::new(), None);
        while let [word, after @ ..] = rest {
            rest = after;
            if !word.starts_with('-') {
                trainer = trainer_of(word);
                break;
            }
            let (option, value) =
                word.split_once('=').map_or((word.as_str(), None), |(option, value)| (option, Some(value)));
            let option = option.trim_start_matches('-').replace('-', "_");
            let value = match (value, after) {
                (None, [next, beyond @ ..])
                    if !FLAGS.contains(&option.as_str()) && !next.starts_with('-') && !is_script(next) =>
                {
                    rest = beyond;
                    Some(next.as_str())
                }
                (value, _) => value,
            };
            options.push((option, value));
        }
        Self { arguments: rest, trainer, launcher: Some((launcher, options)) }
    }

    /// Number of processes that the launcher starts, on all machines together.
    ///
    /// # Errors
    /// The argument whose value is not a number, such as torchrun's `--nproc_per_node=gpu`.
    pub(super) fn processes(&self) -> Result<Processes, String> {
        let Some((launcher, options)) = &self.launcher else { return Ok(Processes::NoLauncher) };
        let number = |names: &[&str]| -> Result<Option<u64>, String> {
            let given = options.iter().rev().find(|(name, _)| names.contains(&name.as_str()));
            let Some((option, value)) = given else { return Ok(None) };
            let value = value.unwrap_or_default();
            match value.parse::<u32>() {
                Ok(number) if number > 0 => Ok(Some(number.into())),
                _ => Err(format!("--{option}={value}")),
            }
        };
        let number = match launcher {
            // Counts the processes of all machines.
            Launcher::Accelerate => number(&["num_processes"])?,
            Launcher::Torchrun => {
                Some(number(&["nproc_per_node"])?.unwrap_or(1) * number(&["nnodes"])?.unwrap_or(1))
            }
            Launcher::Deepspeed => {
                let nodes = number(&["num_nodes"])?.unwrap_or(1);
                number(&["num_gpus"])?.map(|number| number * nodes)
            }
        };
        if let Some(number) = number {
            return Ok(Processes::Number(number));
        }
        let file = options.iter().rev().find(|(name, _)| name == "config_file").and_then(|(_, file)| *file);
        Ok(Processes::Elsewhere(match (launcher, file) {
            (Launcher::Accelerate, Some(file)) => format!("is in {file}, which was not read"),
            (Launcher::Accelerate, None) => "is in accelerate's own configuration".to_owned(),
            _ => "is that of the machine's devices".to_owned(),
        }))
    }
}

/// Index of the program in a command's words.
fn program(words: &[String]) -> Option<usize> {
    let is_program = |at: usize, word: &String| {
        let next = words.get(at + 1).map(String::as_str);
        let before = at.checked_sub(1).and_then(|before| words.get(before));
        let is_value = before.is_some_and(|option| {
            let option = option.strip_prefix("--").unwrap_or_default();
            is_foreign_name(&option.replace('-', "_"))
        });
        if is_value || word.contains('=') {
            // The value of a key or of a variable may be a path with this ending.
            return false;
        }
        match name(word) {
            // With nothing to start, the word is the value of an option.
            "torchrun" | "deepspeed" => {
                words.get(at + 1..).unwrap_or_default().iter().any(|word| word == "-m" || is_script(word))
            }
            "accelerate" => next == Some("launch"),
            "trl" => matches!(next, Some("grpo" | "sft")),
            other => {
                let version = other.strip_prefix("python");
                version.is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || c == '.'))
                    && next.is_some_and(|next| next.starts_with('-') || is_script(next))
            }
        }
    };
    words.iter().enumerate().position(|(at, word)| is_program(at, word))
}

/// A program's name without its folder.
fn name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

fn is_script(word: &str) -> bool {
    Path::new(word).extension().is_some_and(|suffix| suffix == "py")
}

/// Whether a word ends the arguments: a pipe, a redirection, or `&`.
fn is_of_shell(word: &str) -> bool {
    matches!(word, "|" | "||" | "|&" | "&" | "<")
        || [">", "1>", "2>", "&>"].iter().any(|start| word.starts_with(start))
}

fn until_shell(words: &[String]) -> &[String] {
    let end = words.iter().position(|word| is_of_shell(word)).unwrap_or(words.len());
    words.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(ToOwned::to_owned).collect()
    }

    #[test]
    fn a_command_without_its_program() {
        let of = |text: &str| without_program(&words(text)).map(|words| words.join(" "));
        let keys = "algorithm.adv_estimator=grpo data.train_batch_size=1024";
        for command in [
            "python3 -m verl.trainer.main_ppo",
            "PYTHONUNBUFFERED=1 HYDRA_FULL_ERROR=1 python3 -u -m recipe.dapo.main_dapo",
            "set -x && /usr/bin/python3.11 main.py",
            "ray job submit --runtime-env=verl/env.yaml -- python3 -m verl.trainer.main_ppo",
            "srun --env env.yaml python3 -m verl.trainer.main_ppo",
        ] {
            assert_eq!(
                of(&format!("{command} {keys} 2>&1 | tee run.log")).as_deref(),
                Some(keys),
                "{command}"
            );
        }
        // The file that Hydra's options name, unless it is verl's own.
        let hydra = "python3 -m verl.trainer.main_ppo --config-path conf --config-name";
        assert_eq!(of(&format!("{hydra} ppo_trainer {keys}")).as_deref(), Some(keys));
        assert_eq!(of(&format!("{hydra}=mine {keys}")), Some(format!("conf/mine.yaml {keys}")));
        // Words of tamis before it are kept.
        let own = "world.yaml simulate.groups=320 ~filter";
        let mixed = of(&format!("{own} python3 -m verl.trainer.main_ppo {keys}"));
        assert_eq!(mixed, Some(format!("{own} {keys}")));
        // Without a program, and with one whose number of processes matters.
        assert_eq!((of(keys), has_program(&words(keys))), (None, false));
        let launched = "accelerate launch --num_processes 8 grpo.py --num_generations 8";
        assert_eq!((of(launched), has_program(&words(launched))), (None, true));
        // A key's value may be a path to an interpreter.
        assert_eq!(of("run.dir=/usr/bin/python3 rollout.n=8"), None);
    }
}
