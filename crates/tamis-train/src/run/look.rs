//! Checks at the start, before there are weights: the directory, the prompts, the memory, the gold answers.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use tamis_config::{Config, GoldCheck, LauncherKind, ModelSource, ResumeDifference, resume_differences};
use tamis_core::figure;
use tamis_data::prompt::{Prompt, PromptContent};
use tamis_env::reward::gold::{FunctionGold, GoldExtent, GoldReport, check_gold_heard};
use tamis_env::reward::{Listener, RewardKind, Rewards};
use tamis_model::TransformerConfig;
use tamis_process::{interpreter, with_package};
use tamis_rollout::PreparedPrompt;

use super::recovery::Standing;
use super::start::{ConfigText, RunStart};
use super::state::RunState;
use crate::assemble::memory::{self, Held, Lengths, fit};
use crate::assemble::{advantage, critic, data, objective, policy, sft, teacher};
use crate::checkpoint::{self, Coverage, SaveError};
use crate::error::AssembleError;
use crate::error::RunError;
use crate::interrupt::{Halt, Interrupt};
use crate::launcher::{Launcher, PlanInput};
use crate::native;
use crate::prompts::codec::Codec;
use tamis_run::directory::RunDirectory;
use tamis_run::durable::Disk;
use tamis_run::log::progress::Console;

/// When the run was begun, in seconds since 1970.
pub(super) const STARTED: &str = "started";

/// The configuration, and the directory of a run that is resumed. Allowed differences are in it.
pub(super) fn settle_differences(begin: RunStart) -> Result<(ConfigText, Option<RunDirectory>), RunError> {
    let (directory, was, mut now) = match begin {
        RunStart::New(config) => return Ok((config, None)),
        RunStart::Resume { directory, was, now } => (directory, was, now),
    };
    if was.is_sft_alone() != now.config.is_sft_alone() {
        let run = directory.path().to_owned();
        let last = directory.list_checkpoints()?.pop();
        let checkpoint =
            last.map_or_else(|| "CHECKPOINT".to_owned(), |folder| folder.path.display().to_string());
        return Err(RunError::Mismatch {
            run,
            differences:
                "supervised fine-tuning alone (`train.total_steps: 0`) is a run of its own, and so is \
                          reinforcement learning after it"
                    .to_owned(),
            hint: format!(
                "begin a run from its checkpoint: `tamis train CONFIG.yaml model.path={checkpoint}`, without `sft`"
            ),
        });
    }
    let (refused, changed): (Vec<_>, Vec<_>) = resume_differences(&was, &now.config)
        .into_iter()
        .partition(|difference: &ResumeDifference| difference.refused);
    if !refused.is_empty() {
        let lines: Vec<String> = refused.iter().map(ResumeDifference::to_string).collect();
        let is_length = |difference: &ResumeDifference| {
            matches!(difference.key.as_str(), "train.total_steps" | "train.total_epochs")
        };
        let hint = if refused.iter().all(is_length) {
            how_to_begin_again(&was, &directory)
        } else {
            KEEP_KEYS.to_owned()
        };
        return Err(RunError::Mismatch {
            run: directory.path().to_owned(),
            differences: lines.join("\n"),
            hint,
        });
    }
    now.notes.extend(changed.iter().map(|difference| format!("changed on resume: {difference}")));
    Ok((now, Some(directory)))
}

/// What to do about keys that may not change.
pub(super) const KEEP_KEYS: &str =
    "leave these keys as they were, or begin a new run; `tamis config explain KEY` shows which may change";

/// What to do about another number of steps if the learning rate depends on it.
fn how_to_begin_again(was: &Config, directory: &RunDirectory) -> String {
    let run = directory.path().display();
    let checkpoint = directory.list_checkpoints().ok().and_then(|mut all| all.pop());
    let Some(checkpoint) = checkpoint else { return KEEP_KEYS.to_owned() };
    let sft = if was.sft.is_on() { " '~sft'" } else { "" };
    let command = match was.script() {
        Some(_) => was.train_command(),
        None => format!("tamis train {run}/config.yaml"),
    };
    format!(
        "the learning rate falls towards the last step, so with another number of steps the completed ones would have been different; to \
        train further begin a new run from the last checkpoint: `{command} model.path={} model.init=null{sft} \
         train.total_steps=STEPS`; a run with train.lr_schedule.kind: constant can be resumed with more steps",
        checkpoint.path.display()
    )
}

/// Results of the checks that need no folder. If they find mistakes, no folder is left behind.
pub(super) struct Start {
    /// The state of the last checkpoint and its folder.
    pub(super) state: Option<(RunState, PathBuf)>,
    pub(super) prompts: data::Prompts,
    pub(super) codec: Codec,
    /// What the run uses of the machines.
    pub(super) resources: Resources,
    /// A policy of the native engine, or one that begins with random weights.
    pub(super) native: Option<TransformerConfig>,
}

/// Lines about memory and machines, printed at the start.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Resources {
    pub(super) lines: Vec<String>,
    pub(super) warnings: Vec<String>,
}

impl Resources {
    pub(super) fn add_plan(
        &mut self,
        launcher: &dyn Launcher,
        config: &Config,
        input: PlanInput<'_>,
        interrupt: &Interrupt,
    ) -> Result<(), Halt<RunError>> {
        let plan = match launcher.plan(config, input, interrupt) {
            Ok(plan) => plan,
            Err(Halt::Interrupted) => return Err(Halt::Interrupted),
            Err(Halt::Failed(never)) => match never {},
        };
        if let Some((message, hint)) = plan.refusal {
            return Err(RunError::Plan { message, hint }.into());
        }
        self.lines.extend(plan.lines);
        self.warnings.extend(plan.warnings);
        Ok(())
    }
}

impl Start {
    pub(super) fn look(
        given: &ConfigText,
        existing: Option<&RunDirectory>,
        standing: &Standing,
        interrupt: &Interrupt,
    ) -> Result<Self, Halt<RunError>> {
        let config = &given.config;
        let last = match existing {
            Some(directory) => directory.list_checkpoints()?.pop(),
            None => None,
        };
        if let (Some(directory), None) = (existing, &last)
            && directory.had_checkpoint()
        {
            let (run, last_step) = (directory.path().to_owned(), directory.last_logged_step());
            return Err(RunError::CheckpointsGone { run, last_step }.into());
        }
        let state = match last {
            Some(folder) => {
                let path = folder.path.clone();
                interrupt
                    .or_abandon(move || checkpoint::verify(&path, Coverage::Whole))?
                    .map_err(SaveError::from)?;
                Some((RunState::read(&folder.path)?, folder.path))
            }
            None => None,
        };
        let (of_run, folder) = (config.clone(), state.as_ref().map(|(_, folder)| folder.clone()));
        let (prompts, codec, lengths) = interrupt.or_abandon(move || -> Result<_, AssembleError> {
            let mut prompts = data::prompts(&of_run)?;
            if sft::needs_alphabet(&of_run) && folder.is_none() {
                prompts.add_alphabet(&sft::read(&of_run)?.alphabet());
            }
            let codec = match &folder {
                Some(folder) => policy::codec_of(&of_run, folder)?,
                None => policy::codec(&of_run, || prompts.alphabet())?,
            };
            let mut prompts = prompts.format_prompts(&of_run, &codec)?;
            prompts.warnings.extend(codec.peer_warning());
            let lengths = lengths(&of_run, &codec, &prompts);
            Ok((prompts, codec, lengths))
        })??;
        let from = state.as_ref().map(|(_, folder)| folder.as_path());
        let unused_teacher = teacher::check_all(config, &codec, &prompts.train)?;
        policy::check_regex(config, given.places.rollout_regex.as_deref(), &codec)?;
        let mut resources = Resources::default();
        resources.warnings.extend(unused_teacher);
        let (own, reference) = (config.model.path.as_ref(), config.model.reference.as_ref());
        let named = own.filter(|_| from.is_none()).into_iter().chain(reference).map(ModelSource::folder);
        let warnings = interrupt.or_abandon({
            let named: Vec<PathBuf> = named.collect();
            move || named.iter().filter_map(|folder| tamis_model::head_warning(folder)).collect::<Vec<_>>()
        })?;
        resources.warnings.extend(warnings);
        let native = if config.learns_elsewhere() {
            policy::limits(config, &codec, from)?;
            config.model.init.as_ref().and_then(|_| policy::shape(config, &codec, from).ok())
        } else {
            let shape = policy::shape(config, &codec, from)?;
            let critic = match &state {
                Some((state, folder)) if state.critic.is_some() => Some(native::critic_shape(folder)?),
                _ => critic::shape(config, &shape)?,
            };
            let free = tamis_model::available_memory();
            let (line, warning) = memory(config, &shape, critic.as_ref(), lengths, free)?;
            resources.lines.push(line);
            resources.warnings.extend(warning);
            Some(shape)
        };
        // After a learner was lost, what the run has started takes memory.
        if standing.recovery.is_none() && config.cluster.launcher != LauncherKind::Ray {
            let input = PlanInput { checkpoint: from, native: native.as_ref(), logs: None };
            resources.add_plan(&*standing.launcher, config, input, interrupt)?;
        }
        objective::objective(config)?;
        objective::correction(config)?;
        advantage::advantage(config)?;
        advantage::shapings(config)?;
        Ok(Self { state, prompts, codec, resources, native })
    }
}

pub(super) fn new_directory(disk: &Disk, given: &ConfigText) -> Result<RunDirectory, RunError> {
    let directory = RunDirectory::create(disk, &given.config.run.dir, &given.config.run.name)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs());
    directory.disk().write_file(&directory.path().join(STARTED), now.to_string().as_bytes())?;
    for path in [directory.config_in_force(), directory.config()] {
        directory.disk().write_file(&path, given.text.as_bytes())?;
    }
    Ok(directory)
}

/// The first line: the run's folder, the step it continues after, and the steps it trains again. `logged` is
/// the last step with a row in its metrics.
pub(super) fn opening_line(run: &Path, step: Option<u64>, is_new: bool, logged: Option<u64>) -> String {
    let run = run.display();
    if is_new {
        return format!("run directory {run}");
    }
    let first = step.unwrap_or(0) + 1;
    let again = match logged.filter(|last| *last >= first) {
        Some(last) if last == first => format!("; step {first} came after it and is trained again"),
        Some(last) => format!("; steps {first} to {last} came after it and are trained again"),
        None => String::new(),
    };
    match step {
        Some(step) => format!("resuming {run} after step {step}, the last checkpoint{again}"),
        None => format!(
            "resuming {run} from its beginning: there is no checkpoint{}",
            again.replace(" came after it and", "")
        ),
    }
}

/// Names of the numbers that trajectories will have, after a check of the gold answers if one is wanted. Also
/// whether these are all: the names of an external function are not known before it has scored something.
pub(super) fn score_names(
    config: &Config,
    prompts: &data::Prompts,
    rewards: &Rewards,
    ui: &Console,
    listener: &dyn Listener,
) -> Result<(BTreeSet<String>, bool), Halt<RunError>> {
    let mut names = rewards.score_names();
    if config.data.check_gold == GoldCheck::Off {
        let is_complete = rewards.functions().iter().all(|named| !named.nature.is_external);
        return Ok((names, is_complete));
    }
    // Who wants every rejected answer refused has all of them looked at.
    let extent =
        if config.data.check_gold == GoldCheck::Error { GoldExtent::All } else { GoldExtent::Sample };
    let report = check_gold_heard(&prompts.train, rewards, extent, listener)
        .map_err(|error| AssembleError::from(error).halt().map(RunError::from))?;
    names.extend(report.score_names.iter().cloned());
    refuse_gold(config, prompts, &report)?;
    for function in &report.functions {
        let text = function.to_string();
        if function.is_clean() {
            text.lines().for_each(|line| ui.say(line));
        } else {
            ui.warn(text.trim_end());
        }
    }
    report.notes().iter().for_each(|note| ui.say(note));
    if let Some(missing) = report.describe_missing() {
        ui.warn(&missing);
    }
    Ok((names, report.knows_names(rewards)))
}

/// Refuses data without a ground truth for a function that compares with one, and a function that accepts no
/// gold answer. If `data.check_gold` says so, it also refuses a function that rejects some.
fn refuse_gold(config: &Config, prompts: &data::Prompts, report: &GoldReport) -> Result<(), RunError> {
    let off = "or set data.check_gold=off to train without this check";
    let blind: Vec<String> = report.blind.iter().map(|name| format!("`{name}`")).collect();
    if !blind.is_empty() && config.environments().next().is_none() {
        let (word, verb) = if blind.len() == 1 { ("reward", "compares") } else { ("rewards", "compare") };
        let columns: BTreeSet<&str> =
            prompts.train.iter().flat_map(|prompt| prompt.columns.keys().map(String::as_str)).collect();
        let columns = columns.into_iter().collect::<Vec<_>>().join(", ");
        return Err(RunError::Gold {
            message: format!(
                "{word} {} {verb} with a ground truth, and no training prompt has one",
                blind.join(" and ")
            ),
            hint: format!(
                "name the column of the answers in data.columns.ground_truth (the columns are {columns}), {off}"
            ),
        });
    }
    // Of an environment a gold answer is no episode, so a function that needs one has reason to reject it.
    let is_played = config.environments().next().is_some();
    let is_excused = |function: &FunctionGold| {
        is_played && function.is_external && !(function.fails_on_all() && function.reads_gold == Some(true))
    };
    let hopeless: Vec<&FunctionGold> =
        report.functions.iter().filter(|function| function.is_hopeless() && !is_excused(function)).collect();
    if !hopeless.is_empty() {
        let shown: String = hopeless.iter().map(ToString::to_string).collect();
        let cause = hopeless.iter().find_map(|function| {
            missing_package(config, function).or_else(|| likely_cause(function, report))
        });
        let cause = cause.unwrap_or_default();
        return Err(RunError::Gold {
            message: format!("no gold answer is accepted:\n{}", shown.trim_end()),
            hint: format!(
                "{cause}look at what the function got, above; correct it, choose the verifier that fits the ground truth's form, {off}"
            ),
        });
    }
    if !report.is_clean() && config.data.check_gold == GoldCheck::Error {
        return Err(RunError::Gold {
            message: format!("gold answers are rejected by their own verifier:\n{report}"),
            hint:
                "choose the verifier that fits the ground truth's form, or set data.check_gold=warn to continue"
                    .to_owned(),
        });
    }
    Ok(())
}

/// How to install the package that a Python function misses when it is called.
fn missing_package(config: &Config, function: &FunctionGold) -> Option<String> {
    let reward = config.reward.iter().find(|reward| reward.name == function.name)?;
    let RewardKind::Python(settings) = &reward.kind else { return None };
    let python = interpreter(&settings.python.to_string_lossy());
    let fix = with_package(&function.to_string(), &python, "the reward's `python`")?;
    Some(format!("{fix}; "))
}

/// Why an external function may take no gold answer, if the answers show it.
fn likely_cause(function: &FunctionGold, report: &GoldReport) -> Option<String> {
    if !function.is_external {
        return None;
    }
    if function.unanswered == function.checked {
        return Some(
            "a function that ends without `return` answers `None`, which is no score: return a number; "
                .to_owned(),
        );
    }
    let column = report.number_column.as_ref().filter(|_| function.rejects_all())?;
    Some(format!(
        "`{column}` holds numbers, and a completion is text: if the function compares the two, write `str({column})`; "
    ))
}

/// The prompts of a split as the model sees them. Prints what was left out or cut.
pub(super) fn prepare_prompts(
    codec: &Codec,
    config: &Config,
    prompts: Vec<Prompt>,
    split: &'static str,
    ui: &Console,
    interrupt: &Interrupt,
) -> Result<Vec<PreparedPrompt>, Halt<RunError>> {
    let limit = config.data.max_prompt_length;
    let overlong = config.data.overlong_prompts;
    let codec = codec.clone();
    let prepared = interrupt
        .or_abandon(move || codec.prepare(prompts, split, overlong, limit))?
        .map_err(AssembleError::from)?;
    if prepared.num_dropped + prepared.num_truncated > 0 {
        ui.say(&format!(
            "{split}: {} over {limit} tokens left out, {} cut",
            figure::counted(prepared.num_dropped, "prompt"),
            prepared.num_truncated
        ));
    }
    for warning in &prepared.warnings {
        ui.warn(warning);
    }
    Ok(prepared.prompts)
}

/// Lengths of prompts and gold answers in tokens. Only the longest texts are tokenized, because tokenizing
/// all takes long.
fn lengths(config: &Config, codec: &Codec, prompts: &data::Prompts) -> Lengths {
    const TOKENIZED: usize = 32;
    // More bytes than any tokenizer puts into one token on average.
    const MOST_BYTES: usize = 64;
    let size = |prompt: &Prompt| match &prompt.content {
        PromptContent::Text(text) => text.len(),
        PromptContent::Messages(messages) => messages.iter().map(|message| message.content.len()).sum(),
    };
    let limit = config.data.max_prompt_length;
    let longest = |split: &[Prompt], name| {
        let mut order: Vec<&Prompt> = split.iter().collect();
        order.sort_by_key(|&prompt| std::cmp::Reverse(size(prompt)));
        // Such a text is cut or refused, so the longest prompt has the length of the limit.
        if order.first().is_some_and(|&longest| size(longest) / MOST_BYTES > limit) {
            return limit;
        }
        let longest = order.into_iter().take(TOKENIZED).cloned().collect();
        match codec.prepare(longest, name, config.data.overlong_prompts, limit) {
            // If some prompts are left out, others may be as long as the limit.
            Ok(prepared) if prepared.num_dropped == 0 => {
                prepared.prompts.iter().map(|prompt| prompt.token_ids.len()).max().unwrap_or(0)
            }
            _ => limit,
        }
    };
    let gold = || {
        let gold = prompts.train.iter().filter_map(|prompt| prompt.ground_truth.as_deref());
        let gold = gold.max_by_key(|gold| gold.len()).unwrap_or("");
        // Plus the end token.
        codec.tokenizer().encode(gold, false).map_or(gold.len(), |tokens| tokens.len()) + 1
    };
    Lengths {
        prompt: longest(&prompts.train, "train").max(longest(&prompts.validation, "validation")),
        gold: if config.imitates() { gold() } else { 0 },
        num_validation_prompts: prompts.validation.len(),
        num_alike: if config.environments().next().is_some() {
            1
        } else {
            num_alike(&prompts.train) * config.gen_batch_size().div_ceil(prompts.train.len().max(1))
        },
    }
}

/// Number of copies of the most frequent prompt.
fn num_alike(prompts: &[Prompt]) -> usize {
    let mut counts: HashMap<Vec<&str>, usize> = HashMap::new();
    for prompt in prompts {
        let texts = match &prompt.content {
            PromptContent::Text(text) => vec![text.as_str()],
            PromptContent::Messages(messages) => {
                messages.iter().map(|message| message.content.as_str()).collect()
            }
        };
        *counts.entry(texts).or_default() += 1;
    }
    counts.into_values().max().unwrap_or(1)
}

/// Estimates the memory and refuses what cannot fit, as [`fit`] does.
fn memory(
    config: &Config,
    model: &TransformerConfig,
    critic: Option<&TransformerConfig>,
    lengths: Lengths,
    free: Option<u64>,
) -> Result<(String, Option<String>), RunError> {
    let sequences = if config.samples_at_servers() { "" } else { "rollout.max_num_seqs, " };
    let held = Held {
        what: "the trajectories held at once",
        bytes: memory::trajectories(config, lengths.num_validation_prompts),
        too_long: "completions reach rollout.max_response_length",
        keys: format!("{sequences}data.gen_batch_size, validate.n or validate.max_prompts"),
    };
    fit(config, memory::estimate(config, model, critic, lengths), &held, free)
}

#[cfg(test)]
mod tests {
    use tamis_model::Architecture;

    use super::*;
    use crate::assemble::memory::PROGRAM;
    use crate::support::{loaded, prompt};

    const LENGTHS: Lengths = Lengths { prompt: 100, gold: 3, num_validation_prompts: 6, num_alike: 1 };

    #[test]
    fn a_resume_says_which_steps_are_trained_again() {
        let line = |step, logged| opening_line(Path::new("runs/a"), step, false, logged);
        insta::assert_snapshot!(line(Some(5), Some(7)), @"resuming runs/a after step 5, the last checkpoint; steps 6 to 7 came after it and are trained again");
        insta::assert_snapshot!(line(Some(5), Some(6)), @"resuming runs/a after step 5, the last checkpoint; step 6 came after it and is trained again");
        insta::assert_snapshot!(line(Some(5), Some(5)), @"resuming runs/a after step 5, the last checkpoint");
        insta::assert_snapshot!(line(None, Some(2)), @"resuming runs/a from its beginning: there is no checkpoint; steps 1 to 2 are trained again");
        assert_eq!(line(None, None), "resuming runs/a from its beginning: there is no checkpoint");
    }

    fn config(limit: Option<u64>) -> Config {
        let yaml = "model: {init: {architecture: llama, hidden_size: 16, num_heads: 1}}\ndata: {task: \
                    arithmetic}\nreward: [{kind: number}]\n\
            train: {total_steps: 1}\n";
        let limit: Vec<String> = limit.iter().map(|limit| format!("model.memory_limit={limit}")).collect();
        loaded(yaml, &limit.iter().map(String::as_str).collect::<Vec<_>>()).config
    }

    /// The lines about the memory of a small run on a machine with so many free bytes, or the numbers of its
    /// refusal.
    fn describe(free: Option<u64>, limit: Option<u64>) -> Result<(String, Option<String>), String> {
        memory(&config(limit), &model(), None, LENGTHS, free).map_err(|error| match error {
            RunError::Memory { needed, limit, remedy, .. } => format!("{needed} of {limit}; {remedy}"),
            other => panic!("{other}"),
        })
    }

    fn model() -> TransformerConfig {
        let mut model = TransformerConfig::new(Architecture::Llama, 32, 16, 384, 4, 1, 1024);
        model.num_kv_heads = 1;
        model
    }

    /// Weights, their gradients, the two moments, and the program.
    fn certain() -> u64 {
        crate::assemble::memory::estimate(&config(None), &model(), None, LENGTHS).certain() + PROGRAM
    }

    /// Free memory is compared only with what is needed in any case; the rest is a warning. A limit that the
    /// user set is compared with everything.
    #[test]
    fn a_run_is_refused_for_what_is_certain_and_warned_of_what_may_be() {
        let (line, warning) = describe(None, None).expect("nothing is known of the machine");
        assert!(line.starts_with("memory: at most ") && warning.is_none(), "{line}");
        let (same, none) = describe(Some(1 << 50), None).expect("it fits");
        assert_eq!((same, none), (line.clone(), None));
        let (same, warning) = describe(Some(certain()), None).expect("what is certain fits");
        assert_eq!(same, line, "the warning is none of its lines");
        let warning = warning.expect("it may not fit");
        assert!(
            warning.contains("of memory is free: the run continues, but will not fit if completions reach"),
            "{warning}"
        );
        assert!(warning.contains("\n  hint: lower train.micro_batch_tokens"), "{warning}");
        let refused = describe(Some(certain() - 1), None).expect_err("it does not fit");
        assert!(refused.ends_with("or free some memory"), "{refused}");
        let refused = describe(Some(1 << 50), Some(certain())).expect_err("the limit holds for all of it");
        assert!(refused.ends_with("or raise model.memory_limit"), "{refused}");
        assert!(describe(Some(0), Some(1 << 50)).expect("the limit that was set holds").1.is_none());
    }

    /// Tokenizing a text of megabytes takes seconds, and its length is the limit anyway.
    #[test]
    fn what_is_far_over_the_limit_is_not_tokenized() {
        let config = config(None);
        let limit = config.data.max_prompt_length;
        let codec = policy::codec(&config, || "1".to_owned()).expect("a tokenizer of characters");
        let of = |num_characters: usize| {
            let mut prompts = data::Prompts::default();
            prompts.train = vec![prompt(0, &"1".repeat(num_characters))];
            lengths(&config, &codec, &prompts).prompt
        };
        assert_eq!((of(3), of(limit), of(limit + 1)), (3, limit, limit));
        let start = std::time::Instant::now();
        assert_eq!(of(32 << 20), limit);
        assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
    }
}
