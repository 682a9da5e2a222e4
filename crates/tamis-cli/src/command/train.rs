//! `tamis train`: begins a run, or resumes one.
//!
//! The arguments become a start of a run: a new one from layers of configuration, a resumed one from a folder
//! with changes. [`tamis_train`] does the rest. At the end come the closing lines, and an exit code for each
//! kind of error.

use std::cell::OnceCell;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use tamis_config::locate::Extent;
use tamis_config::source::Origin;
use tamis_config::{Config, Loaded, Note};
use tamis_core::fault::Fault;
use tamis_core::figure::{agreed, counted};
use tamis_core::printable::one_line;
use tamis_import::load_of_run;
use tamis_lab::advise::{Gains, end_advice};
use tamis_rollout::GeneratorError;
use tamis_run::directory::{CONFIG, RunDirectory, RunDirectoryError};
use tamis_run::durable::Disk;
use tamis_run::log::progress::{Console, Verbosity, fit_to_stderr};
use tamis_run::log::run_log::LineKind;
use tamis_run::metrics::about_acc;
use tamis_train::assemble::check::{CheckPurpose, Placeholders};
use tamis_train::assemble::hub::keep_revisions;
use tamis_train::checkpoint::SaveError;
use tamis_train::error::AssembleError;
use tamis_train::error::RunError;
use tamis_train::interrupt::{Interrupt, Reaction};
use tamis_train::learner::LearnerError;
use tamis_train::learner::sft::SftError;
use tamis_train::measure::validation::{OutcomeKind, Shown, ValidationReport};
use tamis_train::run::{ConfigText, Ending, RunStart, RunSummary, TrainEnd, not_begun, not_resumed, train};

use super::advise::{start_lines, start_lines_of_data};
use super::script::Script;
use super::{announce, follow_checked, new_errors, notes_on_changes, paired};
use crate::arguments::TrainArguments;
use crate::failure::{FAILED, Failure, INTERRUPTED, MISMATCH, UNREACHABLE, USAGE};

pub(crate) fn run(arguments: &TrainArguments) -> Result<u8, Failure> {
    if let Some(script) = arguments.layers.arguments.first().and_then(|word| Script::of(word)) {
        return script.run(arguments);
    }
    if arguments.dry_run {
        return Err(Failure::new(
            USAGE,
            "error: --dry-run is for a script\n  hint: `tamis config check CONFIG.yaml --plan` checks a configuration and starts nothing",
        ));
    }
    let interrupt = Interrupt::new();
    listen(&interrupt, "saves the last finished step; Ctrl-C again ends at once, without saving")?;
    let begin = if let Some(path) = &arguments.resume {
        resume(arguments, path, &interrupt)?
    } else if arguments.layers.arguments.is_empty() {
        return Err(Failure::new(
            USAGE,
            "error: no configuration was given\n  hint: `tamis train configs/quickstart.yaml`, or `tamis train --resume RUN_DIR`",
        ));
    } else {
        let (layers, line) = arguments.layers.here();
        let of_name = layers.clone();
        let (loaded, followed) = interrupt
            .or_abandon(move || layers.load_checked(Placeholders::Refused, Extent::Files))
            .map_err(|_| fail_unbegun(&not_begun()))??;
        if let Some(run) = run_to_continue(&loaded) {
            let arguments = TrainArguments { layers: of_name, ..arguments.clone() };
            let mut begin = resume(&arguments, &run, &interrupt)?;
            if let RunStart::Resume { now, .. } = &mut begin {
                now.headline = line;
            }
            return train_from(&arguments, begin, &interrupt);
        }
        let (mut notes, details) = notes_on_changes(&loaded);
        notes.extend(followed);
        notes.extend(taken_name(&loaded));
        let config = loaded.config.clone();
        let advice = interrupt.or_abandon(move || start_lines_of_data(&config));
        notes.extend(advice.map_err(|_| fail_unbegun(&not_begun()))?);
        RunStart::New(ConfigText { headline: line, details, ..ConfigText::of(loaded, notes) })
    };
    train_from(arguments, begin, &interrupt)
}

fn train_from(arguments: &TrainArguments, begin: RunStart, interrupt: &Interrupt) -> Result<u8, Failure> {
    let verbosity = match (arguments.verbose, arguments.quiet) {
        (true, _) => Verbosity::Verbose,
        (_, true) => Verbosity::Quiet,
        _ => Verbosity::Normal,
    };
    let begun: OnceCell<Console> = OnceCell::new();
    let console = |total, done| begun.get_or_init(|| Console::on_stderr(verbosity, total, done)).clone();
    let trained = train(begin, console, super::OUTSIDE, interrupt).map_err(|error| fail(&error))?;
    let summary = match trained {
        TrainEnd::Ended(summary) => summary,
        TrainEnd::Interrupted(interrupted) => return Err(fail_unbegun(&interrupted)),
    };
    let own = load_of_run(&summary.run.join(CONFIG), &[], &[]).ok().map(|own| own.config);
    let advice = own.as_ref().map_or_else(String::new, |config| advice(&summary, config));
    if let Some(console) = begun.get().filter(|_| !advice.is_empty()) {
        console.note(LineKind::Info, &advice);
    }
    // A table is not wrapped; sentences are.
    let advice = if std::io::stdout().is_terminal() { fit_to_stderr(&advice) } else { advice };
    announce(&format_closing(&summary, &advice, own.as_ref()))?;
    Ok(match summary.ending {
        Ending::Finished(_) | Ending::StoppedEarly(_) => 0,
        Ending::Interrupted => INTERRUPTED,
    })
}

/// The folder of the run that another system's command names, if something is there.
fn folder_of_name(loaded: &Loaded) -> Option<PathBuf> {
    let run = &loaded.config.run;
    let is_named = loaded.origin("run.name").is_some_and(Origin::is_from_user) && !loaded.notes.is_empty();
    let folder = run.dir.join(&run.name);
    (is_named && folder.exists()).then_some(folder)
}

/// The run of that name, which verl's `resume_mode=auto` continues.
fn run_to_continue(loaded: &Loaded) -> Option<PathBuf> {
    let is_auto = |note: &Note| note.key == "trainer.resume_mode" && note.value.as_deref() == Some("auto");
    loaded.notes.iter().any(is_auto).then(|| folder_of_name(loaded))?
}

fn taken_name(loaded: &Loaded) -> Option<String> {
    let folder = folder_of_name(loaded)?;
    let folder = folder.display();
    Some(format!(
        "{folder} exists, so this run takes another name; to continue that one: `tamis train --resume {folder}`, or \
         trainer.resume_mode=auto in a command of verl"
    ))
}

/// Ctrl-C stops soon and prints what happens; a second one ends the process.
pub(crate) fn listen(interrupt: &Interrupt, what: &'static str) -> Result<(), Failure> {
    let interrupt = interrupt.clone();
    ctrlc::set_handler(move || {
        use std::io::Write as _;
        let reaction = interrupt.signal();
        let mut out = std::io::stderr().lock();
        let _ = match reaction {
            Reaction::StopSoon => writeln!(out, "\nstopping: {what}"),
            Reaction::SameAsBefore => return,
            Reaction::ExitNow => writeln!(out, "\nended at once; what was saved before is complete"),
        };
        if reaction == Reaction::ExitNow {
            std::process::exit(i32::from(INTERRUPTED));
        }
    })
    .map_err(|error| Failure::new(FAILED, format!("error: failed to listen for Ctrl-C: {error}")))
}

fn resume(arguments: &TrainArguments, path: &Path, interrupt: &Interrupt) -> Result<RunStart, Failure> {
    let directory = RunDirectory::open(&Disk::new(), path).map_err(|error| fail(&error.into()))?;
    let (files, overrides) = arguments.layers.split();
    let own = directory.config();
    // An edit of `config.yaml` is a change like an override. If the original was removed, there is
    // nothing to compare with.
    let in_force = Some(directory.config_in_force()).filter(|path| path.is_file());
    let was = load_of_run(&in_force.unwrap_or_else(|| own.clone()), &[], &[])
        .map_err(|errors| new_errors(&[], errors))?;
    let checkpoint =
        directory.list_checkpoints().ok().and_then(|checkpoints| checkpoints.into_iter().next_back());
    let mut now =
        load_of_run(&own, &files, &overrides).map_err(|errors| new_errors(&was.warnings, errors))?;
    keep_revisions(&mut now.config, &was.config);
    let of_run = was.clone();
    let check = move || {
        let purpose = CheckPurpose::Resume(checkpoint.as_ref().map(|checkpoint| checkpoint.path.as_path()));
        let refused = |errors| new_errors(&of_run.warnings, errors);
        follow_checked(now, purpose, Placeholders::Refused, Extent::Files, refused)
    };
    let (now, followed) = interrupt.or_abandon(check).map_err(|_| fail_unbegun(&not_resumed()))??;
    let mut notes = super::new_notes(&was, &now);
    notes.extend(followed);
    let (run, config) = (directory.path().to_owned(), now.config.clone());
    let advice = interrupt.or_abandon(move || start_lines(&run, &config));
    notes.extend(advice.map_err(|_| fail_unbegun(&not_resumed()))?);
    let now = ConfigText::of(now, notes);
    Ok(RunStart::Resume { directory, was: Box::new(was.config), now })
}

fn fail_unbegun(interrupted: &Fault) -> Failure {
    Failure::of(INTERRUPTED, interrupted, interrupted.hint().map(str::to_owned))
}

fn fail(error: &RunError) -> Failure {
    Failure::of(exit_code(error), error, error.hint())
}

/// The exit code of an error of a run.
pub(super) fn exit_code(error: &RunError) -> u8 {
    match error {
        // A resume cannot continue from what the run left.
        RunError::Mismatch { .. }
        | RunError::CheckpointsGone { .. }
        | RunError::ReferenceGone { .. }
        | RunError::JournalDamaged { .. }
        | RunError::Checkpoint(
            SaveError::Checksum(_)
            | SaveError::Weights(_)
            | SaveError::State { .. }
            | SaveError::UnknownKey { .. }
            | SaveError::OtherStep { .. }
            | SaveError::Format { .. }
            | SaveError::Shape { .. }
            | SaveError::Elsewhere { .. },
        )
        | RunError::Directory(RunDirectoryError::ForeignLog { .. }) => MISMATCH,
        // A damaged file is no mistake in the configuration.
        RunError::Assemble(AssembleError::Checksum(_)) => FAILED,
        RunError::Assemble(AssembleError::Judge(_) | AssembleError::Teacher(_))
        | RunError::Servers(GeneratorError::Unreachable { .. })
        | RunError::LostAgain { .. }
        | RunError::Teacher { .. }
        | RunError::Learner(
            LearnerError::Lost { .. } | LearnerError::Taken { .. } | LearnerError::Launch(_),
        )
        | RunError::Launch(_) => UNREACHABLE,
        RunError::Assemble(_)
        | RunError::Sft(
            SftError::Example { .. }
            | SftError::Row { .. }
            | SftError::NoExamples
            | SftError::NothingLearned { .. },
        )
        | RunError::Gold { .. }
        | RunError::Memory { .. }
        | RunError::Plan { .. }
        | RunError::Directory(
            RunDirectoryError::NotARun { .. }
            | RunDirectoryError::Name { .. }
            | RunDirectoryError::NameTaken { .. },
        ) => USAGE,
        // A full disk is no mistake in the configuration.
        RunError::Directory(RunDirectoryError::NoRoom { cause, .. }) if !cause.is_full() => USAGE,
        _ => FAILED,
    }
}

/// What to change if nothing was learned; empty otherwise.
fn advice(summary: &RunSummary, config: &Config) -> String {
    if summary.sft.is_some() || summary.ending == Ending::Interrupted {
        return String::new();
    }
    let held_out = summary.before.as_ref().zip(summary.after.as_ref()).and_then(|(before, after)| {
        let is_share = [before, after].iter().all(|report| report.outcome == OutcomeKind::Accuracy);
        Some(Gains { difference: before.gains(after)?, is_share })
    });
    let advice = end_advice(&summary.run, config, held_out);
    advice.map_or_else(String::new, |advice| advice.lines().join("\n"))
}

/// The commands that a run which ended well leads to. `tamis eval` needs validation prompts, and rewards that
/// no script computes.
fn next_commands(run: &Path, config: Option<&Config>) -> String {
    let run = run.display();
    let can_measure = config.is_some_and(|config| config.has_validation_data() && config.script().is_none());
    let eval = if can_measure { format!("\n      tamis eval {run}") } else { String::new() };
    format!("next: tamis report {run}{eval}")
}

/// The last lines: before and after with samples, the run's folder, what to type next.
fn format_closing(summary: &RunSummary, advice: &str, config: Option<&Config>) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    let run = summary.run.display();
    if let (Some(before), Some(after)) = (&summary.before, &summary.after) {
        let prompts = match after.num_in_training {
            0 => format!("{} held-out", after.num_prompts),
            _ => counted(after.num_prompts, "prompt"),
        };
        let table = paired::table(["before RL", "after RL"], &prompts, before, after);
        let _ = write!(text, "\n{table}");
        if after.num_in_training > 0 {
            let _ = writeln!(text, "{}", not_held_out(after));
        }
        if after.outcome == OutcomeKind::Accuracy {
            let _ = writeln!(text, "{}", about_acc(false));
        }
        let mark = |is_correct: Option<bool>| match is_correct {
            Some(true) => " (right)",
            Some(false) => " (wrong)",
            None => "",
        };
        for (before, after) in same_prompts(&before.shown, &after.shown) {
            let _ = writeln!(
                text,
                "\n  {}\n    before  {}{}\n    after   {}{}\n    gold    {}",
                if before.question.is_empty() { shorten(&before.prompt) } else { before.question.clone() },
                shorten(&before.completion),
                mark(before.is_correct),
                shorten(&after.completion),
                mark(after.is_correct),
                shorten(&before.ground_truth)
            );
        }
        text.push('\n');
    }
    if !advice.is_empty() {
        let _ = writeln!(text, "{advice}\n");
    }
    if let (Some(report), Some(checkpoint), Ending::Finished(_)) =
        (&summary.sft, &summary.checkpoint, &summary.ending)
    {
        let checkpoint = checkpoint.display();
        let losses = report.first_validation_loss.zip(report.validation_loss);
        let losses = losses
            .map_or_else(String::new, |(first, last)| format!(", validation loss {first:.3} -> {last:.3}"));
        let updates = counted(report.num_updates, "update");
        let _ = writeln!(text, "done: {updates} of supervised fine-tuning{losses}, run directory {run}");
        let _ = writeln!(
            text,
            "next: tamis chat {run}\n      tamis train CONFIG.yaml model.path={checkpoint}    (reinforcement learning from it)"
        );
        return text;
    }
    let steps = counted(summary.steps, "step");
    match summary.ending {
        Ending::Finished(_) => {
            let _ = writeln!(text, "done: {steps}, run directory {run}");
            let _ = writeln!(text, "{}", next_commands(&summary.run, config));
        }
        Ending::StoppedEarly(reason) => {
            let _ = writeln!(
                text,
                "stopped early after {steps} ({}): {reason}\nsaved, run directory {run}",
                reason.name()
            );
            let _ = writeln!(text, "{}", next_commands(&summary.run, config));
        }
        Ending::Interrupted => {
            let _ = writeln!(text, "interrupted after {steps} and saved, run directory {run}");
            let train = config.map_or_else(|| "tamis train".to_owned(), Config::train_command);
            let _ = writeln!(text, "next: {train} --resume {run}");
        }
    }
    text
}

/// Completions of two validations, prompt by prompt. A prompt that failed in one of them is left out.
fn same_prompts<'s>(before: &'s [Shown], after: &'s [Shown]) -> Vec<(&'s Shown, &'s Shown)> {
    let mut rest: Vec<&Shown> = after.iter().collect();
    let is_same =
        |one: &Shown, other: &Shown| one.prompt == other.prompt && one.ground_truth == other.ground_truth;
    let pair = |one: &'s Shown| {
        let place = rest.iter().position(|other| is_same(one, other))?;
        Some((one, rest.remove(place)))
    };
    before.iter().filter_map(pair).collect()
}

/// That a validation is none of held-out prompts.
fn not_held_out(report: &ValidationReport) -> String {
    let (number, all) = (report.num_in_training, counted(report.num_prompts, "prompt"));
    let are = agreed(number, "is", "are");
    format!(
        "{number} of the {all} {are} in the training data, so this does not measure what is new to the policy"
    )
}

/// A text on one line, shortened.
pub(super) fn shorten(text: &str) -> String {
    const LONGEST: usize = 100;
    let flat = one_line(text);
    if flat.chars().count() <= LONGEST {
        flat
    } else {
        let cut: String = flat.chars().take(LONGEST).collect();
        format!("{cut}…")
    }
}
