use serde_json::Value;
use tamis_config::{Config, LossOn};
use tamis_data::dataset::BadRows;
use tamis_data::prompt_format::Formatter;
use tamis_data::sft_rows::{SftColumns, SftRows};
use tamis_run::durable::Disk;
use tamis_run::log::progress::Console;

use super::rows::{RowSettings, Tokenized, tokenize};
use super::*;
use crate::assemble::startup::Startup;
use crate::assemble::{learner, policy};
use crate::launcher::NoLauncher;
use crate::learner::{LearnerInfo, OptimizerReport};
use crate::prompts::codec::Codec;
use crate::support::loaded;

/// A policy whose log-probability of token t is -t.
#[derive(Default)]
struct Fixed {
    info: LearnerInfo,
    held: Vec<u32>,
    derivatives: Vec<f32>,
    num_passes: usize,
}

impl Learner for Fixed {
    fn info(&self) -> &LearnerInfo {
        &self.info
    }

    fn forward(&mut self, _: Network, wave: &Wave<'_>, _: f64) -> Pass<TokenColumns> {
        let tokens = wave.sequences.iter().flat_map(|sequence| sequence.completion);
        Ok(TokenColumns {
            logprobs: tokens.map(|&token| -(token as f32)).collect(),
            ..TokenColumns::default()
        })
    }

    fn forward_hold(&mut self, _: Trained, wave: &Wave<'_>) -> Pass<TokenColumns> {
        self.num_passes += 1;
        self.held = wave.sequences.iter().flat_map(|sequence| sequence.completion).copied().collect();
        self.forward(Network::Policy, wave, 1.0)
    }

    fn backward(&mut self, derivatives: TokenColumns) -> Pass<()> {
        self.derivatives.extend(derivatives.logprobs);
        Ok(())
    }

    fn discard(&mut self) -> Result<(), LearnerError> {
        Ok(())
    }

    fn optim_step(&mut self, _: Trained, _: f64) -> Result<OptimizerReport, LearnerError> {
        Ok(OptimizerReport { grad_norm: 1.0, skipped: false })
    }

    fn grad_norm(&mut self, _: Trained) -> Result<f64, LearnerError> {
        Ok(1.0)
    }
}

fn example(completion: &[u32], mask: &[bool]) -> Example {
    Example { prompt: vec![9], images: Vec::new(), completion: completion.to_vec(), mask: mask.to_vec() }
}

#[test]
fn the_loss_is_the_mean_over_all_tokens_with_a_loss_however_they_are_cut() {
    let rows = [example(&[1, 2, 5], &[true, true, false]), example(&[3], &[true])];
    let batch: Vec<&Example> = rows.iter().collect();
    for (micro_batch, num_passes) in
        [(None, 1), (Some(MicroBatch::Tokens(100)), 1), (Some(MicroBatch::Tokens(4)), 2)]
    {
        let mut learner = Fixed::default();
        let found = gather_gradient(&mut learner, &batch, micro_batch).expect("a pass");
        // (1 + 2 + 3) / 3.
        assert_eq!(found, (2.0, 3));
        let third = -1.0 / 3.0;
        assert_eq!(learner.derivatives, [third, third, 0.0, third]);
        assert_eq!(learner.num_passes, num_passes);
    }
    let loss = loss_of(&mut Fixed::default(), &rows, MicroBatch::Tokens(4)).expect("a pass");
    assert!((loss - 2.0).abs() < 1e-12, "{loss}");
    // Nothing to learn is no loss, and no gradient.
    let mut learner = Fixed::default();
    let masked = example(&[1, 2], &[false, false]);
    assert_eq!(gather_gradient(&mut learner, &[&masked], None).expect("a pass"), (0.0, 0));
    assert_eq!(learner.derivatives, [0.0, 0.0]);
    assert!(loss_of(&mut learner, &[masked], MicroBatch::Tokens(4)).expect("a pass").is_nan());
}

/// The tiny model of the reference vectors.
struct Tiny {
    config: Config,
    codec: Codec,
}

impl Tiny {
    fn new() -> Self {
        let folder = tamis_golden::folder().join("hf/sft");
        let yaml = format!(
            "model: {{path: {folder:?}}}\nsft: {{data: rows.jsonl, epochs: 1}}\nrun: {{threads: 1}}\n\
             train: {{total_steps: 0}}\n"
        );
        let mut config = loaded(&yaml, &[]).config;
        (config.data.max_prompt_length, config.rollout.max_response_length) = (1, 1);
        let codec = policy::codec(&config, String::new).expect("a codec");
        Self { config, codec }
    }

    fn learner(&self) -> Box<dyn RunLearner> {
        self.learner_until(&Interrupt::new())
    }

    fn learner_until(&self, interrupt: &Interrupt) -> Box<dyn RunLearner> {
        let (launcher, ui) = (NoLauncher::make(), Console::keeping_warnings());
        let disk = Disk::new();
        let startup = Startup {
            config: &self.config,
            codec: &self.codec,
            launcher: &*launcher,
            disk: &disk,
            folder: std::path::Path::new(""),
            interrupt,
            ui: &ui,
        };
        let model = policy::model(&self.config, &self.codec).expect("a model");
        learner::holder(startup, model)
    }

    fn tokenize(&self, rows: &Value, loss_on: LossOn, max_length: usize) -> Result<Tokenized, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rows.jsonl");
        let lines: Vec<String> = rows.as_array().expect("rows").iter().map(ToString::to_string).collect();
        std::fs::write(&path, lines.join("\n")).expect("written");
        let read = SftRows::read(&[path], &SftColumns::default(), BadRows::Error).expect("rows");
        let formatter = Formatter { has_template: true, ..Formatter::default() };
        let settings = RowSettings { loss_on, max_length, formatter };
        tokenize(&self.codec, &read.rows, &settings).map_err(|error| {
            tamis_core::fault::chain(&error).replace(&folder.path().display().to_string(), "FOLDER")
        })
    }
}

fn ids(value: &Value) -> Vec<i64> {
    value.as_array().expect("a list").iter().map(|id| id.as_i64().expect("an id")).collect()
}

/// Token ids and labels, loss and gradient norm of TRL's trainer.
#[test]
fn rows_and_loss_are_those_of_trl() {
    let tiny = Tiny::new();
    for case in tamis_golden::cases("trl_sft") {
        let name = case["name"].as_str().unwrap_or_default();
        let loss_on = match case["params"]["loss_on"].as_str() {
            Some("all") => LossOn::All,
            Some("completions") => LossOn::Completions,
            _ => LossOn::Answers,
        };
        let max_length = case["params"]["max_length"].as_u64().map_or(usize::MAX, |length| length as usize);
        let made = tiny.tokenize(&case["inputs"]["rows"], loss_on, max_length).expect("examples");
        let outputs = &case["outputs"];
        let theirs = outputs["input_ids"].as_array().expect("rows");
        assert_eq!(made.examples.len(), theirs.len(), "{name}");
        for (index, example) in made.examples.iter().enumerate() {
            let own: Vec<i64> =
                example.prompt.iter().chain(&example.completion).map(|&id| i64::from(id)).collect();
            let (theirs, labels) = (ids(&theirs[index]), ids(&outputs["labels"][index]));
            // What follows the last token with a loss is left out here.
            let last = labels.iter().rposition(|&label| label >= 0).expect("a label");
            assert_eq!(own, theirs[..=last], "{name}, row {index}");
            let masked = example.completion.iter().zip(&example.mask);
            let masked = masked.map(|(&id, &is_learned)| if is_learned { i64::from(id) } else { -100 });
            let of_prompt = std::iter::repeat_n(-100, example.prompt.len());
            // The first token follows nothing: its label is never read.
            let own: Vec<i64> = of_prompt.chain(masked).collect();
            assert_eq!(own[1..], labels[1..=last], "{name}, row {index}");
        }
        let batch: Vec<&Example> = made.examples.iter().collect();
        for micro_batch in [None, Some(MicroBatch::Tokens(40)), Some(MicroBatch::Sequences(1))] {
            let mut learner = tiny.learner();
            let (loss, num_tokens) = gather_gradient(&mut *learner, &batch, micro_batch).expect("a pass");
            assert_eq!(num_tokens as u64, outputs["num_items"].as_u64().expect("a number"), "{name}");
            let norm = learner.grad_norm(Trained::Policy).expect("a norm");
            let expected =
                [&outputs["loss"], &outputs["grad_norm"]].map(|value| value.as_f64().expect("a number"));
            tamis_golden::assert_close(name, &[loss, norm], &expected, 1e-5, 0.0);
        }
        let mut learner = tiny.learner();
        let loss = loss_of(&mut *learner, &made.examples, MicroBatch::Tokens(40)).expect("a pass");
        tamis_golden::assert_close(name, &[loss], &[outputs["loss"].as_f64().expect("a loss")], 1e-5, 0.0);
    }
}

/// Packed rows do not see each other: each has, to the bit, the loss that it has alone.
#[test]
fn no_row_sees_another() {
    let tiny = Tiny::new();
    let rows = serde_json::json!([{"text": "A tamis is a drum sieve."}, {"text": "It is round."}]);
    let examples = tiny.tokenize(&rows, LossOn::Answers, 100).expect("examples").examples;
    let mut learner = tiny.learner();
    let alone: Vec<f64> = examples
        .iter()
        .map(|example| {
            let own = std::slice::from_ref(example);
            loss_of(&mut *learner, own, MicroBatch::Tokens(100)).expect("a pass")
                * example.num_learned() as f64
        })
        .collect();
    let num_learned: usize = examples.iter().map(Example::num_learned).sum();
    let packed = loss_of(&mut *learner, &examples, MicroBatch::Tokens(100)).expect("a pass");
    tamis_golden::assert_close("packed", &[packed * num_learned as f64], &[alone.iter().sum()], 1e-12, 0.0);
}

#[test]
fn a_token_never_reaches_from_the_prompt_into_the_completion() {
    let tiny = Tiny::new();
    let made = |prompt: &str, completion: &str| {
        let rows = serde_json::json!([{"prompt": prompt, "completion": completion}]);
        tiny.tokenize(&rows, LossOn::Answers, 100).expect("examples").examples.remove(0)
    };
    let encode = |text: &str| tiny.codec.tokenizer().encode(text, false).expect("tokens");
    // The whole has one token where prompt and completion meet.
    let (prompt, completion) = ("What i", "s two");
    assert!(!encode("What is two").starts_with(&encode(prompt)), "they do not merge");
    let example = made(prompt, completion);
    assert_eq!(example.prompt, encode(prompt));
    assert_eq!(example.completion[..encode(completion).len()], encode(completion));
}

#[test]
fn rows_that_are_cut_or_have_no_loss_are_counted() {
    let tiny = Tiny::new();
    let rows = serde_json::json!([
        {"prompt": "What is two and two? ", "completion": "It is four."},
        {"prompt": "1+1=", "completion": "2"},
    ]);
    let made = tiny.tokenize(&rows, LossOn::Answers, 8).expect("examples");
    assert_eq!((made.examples.len(), made.num_cut, made.num_without_loss), (1, 1, 1));
    let made = tiny.tokenize(&rows, LossOn::All, 8).expect("examples");
    assert_eq!((made.examples.len(), made.num_cut, made.num_without_loss), (2, 1, 0));
    assert_eq!(made.examples[0].num_tokens(), 8);
    let refused = tiny.tokenize(
        &serde_json::json!([{"prompt": "a", "completion": "b", "tools": "no"}, {"messages": [{"role": "assistant", "content": "b"}], "tools": 1}]),
        LossOn::Answers,
        8,
    );
    let refused = refused.expect_err("tools are a list");
    assert!(refused.starts_with("sft: FOLDER/rows.jsonl, line 2 cannot be prepared"), "{refused}");
}

/// What hooks saw of updates.
#[derive(Default)]
struct Seen {
    made: Vec<SftUpdate>,
    after: Vec<SftUpdate>,
}

/// Trains a tiny model on rows of different lengths, two an update.
fn train_tiny(
    more: impl FnOnce(SftSettings) -> SftSettings,
    interrupt: &Interrupt,
    stop_after: Option<usize>,
) -> (Seen, Result<SftReport, Halt<SftError>>) {
    let tiny = Tiny::new();
    let texts =
        ["A tamis.", "A drum sieve of cloth.", "It.", "It is round and flat.", "Cooks use it to sift."];
    let rows: Value = texts.iter().map(|text| serde_json::json!({"text": text})).collect();
    let train = tiny.tokenize(&rows, LossOn::All, 100).expect("examples").examples;
    let examples = SftExamples { validation: train[..1].to_vec(), train };
    let settings = more(SftSettings {
        num_updates: 6,
        num_done: 0,
        unmeasured: None,
        batch_size: 2,
        fills_batches: false,
        learning_rate: LearningRate::constant(1e-3),
        micro_batch: Some(MicroBatch::Tokens(100)),
        target_accuracy: None,
        test_freq: 2,
        seed: 3,
    });
    let mut learner = tiny.learner_until(interrupt);
    let (mut made, mut after) = (Vec::new(), Vec::new());
    let hooks = SftHooks::<SftError> {
        check: &|_| Ok(()),
        begun: &mut |_| {},
        made: &mut |update| {
            made.push(*update);
            if stop_after == Some(update.number) {
                interrupt.signal();
            }
        },
        measure: &mut |_| Ok(None),
        after: &mut |_, update| {
            after.push(*update);
            Ok(())
        },
    };
    let ended = sft(&mut *learner, &examples, &settings, interrupt, hooks);
    (Seen { made, after }, ended)
}

/// As in TRL with `dataloader_drop_last=False`.
#[test]
fn the_last_update_of_an_epoch_has_the_rows_that_are_left() {
    let tiny = Tiny::new();
    let (seen, ended) = train_tiny(|settings| settings, &Interrupt::new(), None);
    assert_eq!(ended.expect("trained").num_updates, 6);
    let of = |update: &SftUpdate| update.num_tokens;
    let epochs: Vec<Vec<usize>> = seen.after.chunks(3).map(|epoch| epoch.iter().map(of).collect()).collect();
    // Five rows in threes of two, two and one, every row once.
    let text = |text: &str| tiny.codec.tokenizer().encode(text, true).expect("tokens").len();
    let whole: usize =
        ["A tamis.", "A drum sieve of cloth.", "It.", "It is round and flat.", "Cooks use it to sift."]
            .map(text)
            .iter()
            .sum();
    for epoch in &epochs {
        // An end token more, and one less for the first, which follows nothing.
        assert_eq!(epoch.iter().sum::<usize>(), whole, "{epochs:?}");
    }
    // A resume in the middle of an epoch draws the same rows.
    let (rest, _) = train_tiny(|settings| SftSettings { num_done: 4, ..settings }, &Interrupt::new(), None);
    assert_eq!(rest.after.iter().map(of).collect::<Vec<_>>(), epochs[1][1..]);
    // A batch that is larger than the data is one epoch.
    let (all, _) = train_tiny(|settings| SftSettings { batch_size: 64, ..settings }, &Interrupt::new(), None);
    assert!(all.after.iter().all(|update| update.num_tokens == whole));
}

/// An interruption between an update and its measurement loses neither: the resume measures the update that
/// was made, and does not make it again.
#[test]
fn an_update_that_is_made_is_measured_by_the_resume() {
    let interrupt = Interrupt::new();
    let (seen, ended) = train_tiny(|settings| settings, &interrupt, Some(2));
    assert!(matches!(ended, Err(Halt::Interrupted)));
    assert_eq!((seen.made.len(), seen.after.len()), (2, 1));
    let made = seen.made[1];
    let more = |settings| SftSettings { num_done: 2, unmeasured: Some(made), ..settings };
    let (resumed, ended) = train_tiny(more, &Interrupt::new(), None);
    ended.expect("trained");
    let numbers: Vec<usize> = resumed.after.iter().map(|update| update.number).collect();
    assert_eq!(numbers, [2, 3, 4, 5, 6]);
    assert_eq!((resumed.after[0].loss, resumed.made[0].number), (made.loss, 3));
    assert!(resumed.after[0].validation_loss.is_some());
    // In a state it survives, also without a number.
    for loss in [1.5, f64::NAN] {
        let text = serde_json::to_string(&SftUpdate { loss, ..made }).expect("written");
        let read: SftUpdate = serde_json::from_str(&text).expect("read");
        assert_eq!(read.loss.to_bits(), loss.to_bits());
    }
}
