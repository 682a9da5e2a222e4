//! `tamis serve`: a run's policy or a model behind HTTP.
//!
//! It turns the arguments into the settings of `tamis_serve`, and reads the checkpoint, the tokenizer and the
//! key. The functions that read the policy also serve `tamis chat`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use chrono::Local;
use tamis_core::fault;
use tamis_core::figure::counted;
use tamis_core::printable::cut_middle;
use tamis_import::load_run_to_show;
use tamis_run::log::progress::Console;
use tamis_serve::{NativeServer, RequestLine, RequestLog, ServeSettings, ServedPolicy, SlowDown};
use tamis_text::peers::PeerDifference;
use tamis_text::tokenizer::Tokenizer;
use tamis_train::assemble::policy;
use tamis_train::error::AssembleError;
use tamis_train::interrupt::{Interrupt, Interrupted};
use tamis_train::prompts::codec::{Codec, CodecError};

use super::eval::{find, name_on_hub};
use super::eval_two::refuse_twice;
use super::train::listen;
use super::{Needed, announce, follow_model, named_or_newest, warn};
use crate::arguments::{ServeArguments, WhenPaused};
use crate::failure::{FAILED, Failure, INTERRUPTED, USAGE};

/// Largest number of bytes that are read of a key file.
const LONGEST_KEY: u64 = 4096;

pub(crate) fn run(arguments: &ServeArguments) -> Result<u8, Failure> {
    let settings = settings(arguments)?;
    let mut sources = arguments.sources.clone();
    if sources.is_empty() {
        sources.push(named_or_newest(None, Needed::Checkpoint)?);
    }
    let names = names(arguments, &sources)?;
    let interrupt = Interrupt::new();
    listen(
        &interrupt,
        "running requests are answered with the tokens they have so far; Ctrl-C again ends at once",
    )?;
    let progress = Console::lines_on_stderr();
    let mut policies: Vec<ServedPolicy> = Vec::new();
    for (source, name) in sources.into_iter().zip(names) {
        let policy = match interrupt.or_abandon(move || read_policy(&source, name)) {
            Ok(policy) => policy?,
            Err(Interrupted) => return Err(Failure::new(INTERRUPTED, "interrupted")),
        };
        if let Some(first) = policies.first() {
            refuse_twice(&first.folder, &policy.folder, "serve")?;
        }
        progress.say(&format!(
            "serving {} ({} parameters) on {}",
            policy.folder.display(),
            policy.model.num_parameters(),
            counted(settings.threads, "thread")
        ));
        if policy.template.is_none() {
            progress.warn(&format!(
                "the tokenizer of {} has no chat template, so /v1/chat/completions is refused",
                policy.folder.display()
            ));
        }
        policies.push(policy);
    }
    let has_several = policies.len() > 1;
    let failed = |error| of_fault(&error);
    let server = NativeServer::begin(policies, &settings).map_err(failed)?;
    if has_several {
        progress.say("requests choose by `model`; the chat page at / shows both answers side by side");
    }
    announce(&format!("listening on http://{}\n", server.address()))?;
    let log = arguments.verbose.then(|| Arc::new(print_request) as RequestLog);
    server.run(&interrupt.flag(), log).map_err(failed)?;
    Ok(0)
}

/// Why the server or the engine cannot continue.
pub(super) fn of_fault(error: &tamis_serve::Fault) -> Failure {
    let code = if error.is_usage() { USAGE } else { FAILED };
    Failure::of(code, error, error.hint())
}

/// Longest path that is printed whole.
const LONGEST_PATH: usize = 100;

/// A line of `-v`. Nothing may be there to read it.
fn print_request(line: &RequestLine) {
    let tokens = |tokens: Option<usize>| tokens.map_or_else(|| "-".to_owned(), |tokens| tokens.to_string());
    let _ = writeln!(
        std::io::stderr().lock(),
        "{} {} {} {} prompt_tokens={} completion_tokens={} seconds={:.3}",
        Local::now().format("%Y-%m-%dT%H:%M:%S"),
        cut_middle(&line.method, LONGEST_PATH),
        cut_middle(&line.path, LONGEST_PATH),
        line.status,
        tokens(line.usage.map(|usage| usage.prompt_tokens)),
        tokens(line.usage.map(|usage| usage.completion_tokens)),
        line.elapsed.as_secs_f64()
    );
}

/// The names of the models for clients.
fn names(arguments: &ServeArguments, sources: &[PathBuf]) -> Result<Vec<String>, Failure> {
    let given = &arguments.served_model_name;
    if given.is_empty() {
        let of = |source: &PathBuf| source.display().to_string().trim_start_matches("hf://").to_owned();
        return Ok(sources.iter().map(of).collect());
    }
    if given.len() == sources.len() {
        return Ok(given.clone());
    }
    let (names, models) = (counted(given.len(), "name"), counted(sources.len(), "model"));
    Err(Failure::new(
        USAGE,
        format!(
            "error: --served-model-name: {names} for {models}\n  hint: give it once for each: `--served-model-name before \
             --served-model-name after`"
        ),
    ))
}

/// The checkpoint with its tokenizer, and the template of the run that it belongs to.
pub(super) fn read_policy(source: &Path, name: String) -> Result<ServedPolicy, Failure> {
    let failed = |error: &AssembleError| {
        let code = if matches!(error, AssembleError::Checksum(_)) { FAILED } else { USAGE };
        let other = || {
            "`tamis serve` is the native engine: serve this model with vLLM or SGLang, and name them in rollout.servers"
                .to_owned()
        };
        Failure::of(code, error, if error.is_other_architecture() { Some(other()) } else { error.hint() })
    };
    let (folder, run_config) = match name_on_hub(source) {
        Some(model) => (follow_model(model)?, None),
        None => find(source)?,
    };
    let codec = match run_config {
        Some(run) => {
            let overrides = [format!("model.path={}", folder.display()), "model.init=null".to_owned()];
            let loaded = load_run_to_show(&run, &overrides)
                .map_err(|errors| Failure::new(USAGE, errors.to_string()))?;
            policy::codec_of(&loaded.config, &folder)
        }
        None => own_codec(&folder).map_err(AssembleError::from),
    };
    let codec = codec.map_err(|error| failed(&error))?;
    let model = policy::load(&folder).map_err(|error| failed(&error))?;
    warn_of_head(&folder);
    if let Some(difference) = PeerDifference::find(&folder, codec.tokenizer()) {
        warn(&difference.to_string());
    }
    let rows = codec.tokenizer().num_rows();
    if rows > model.config().vocab_size {
        return Err(Failure::new(
            USAGE,
            format!(
                "error: the tokenizer in {} has {rows} tokens, the model only {}\n  hint: use the tokenizer that belongs to the model",
                folder.display(),
                model.config().vocab_size
            ),
        ));
    }
    Ok(ServedPolicy {
        name,
        model,
        tokenizer: codec.tokenizer().clone(),
        template: codec.template().cloned(),
        template_arguments: codec.template_arguments().clone(),
        end_token_ids: codec.end_token_ids().to_vec(),
        load: Box::new(|path| {
            let model = policy::load(path).map_err(|error| fault::chain(&error))?;
            warn_of_head(path);
            Ok(model)
        }),
        folder,
    })
}

/// Warns about weights with another output head than their configuration says.
fn warn_of_head(folder: &Path) {
    if let Some(warning) = policy::head_warning(folder) {
        warn(&warning);
    }
}

/// Tokenizer and template of a folder.
fn own_codec(folder: &Path) -> Result<Codec, CodecError> {
    Codec::new(Tokenizer::load(folder)?, None, serde_json::Map::new(), Some(folder))
}

pub(super) fn num_cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn settings(arguments: &ServeArguments) -> Result<ServeSettings, Failure> {
    let whole = |number: u32| number as usize;
    Ok(ServeSettings {
        host: arguments.host.clone(),
        port: arguments.port,
        api_key: arguments.api_key_file.as_deref().map(read_key).transpose()?,
        threads: arguments.threads.map_or_else(num_cores, usize::from),
        max_num_seqs: whole(arguments.max_num_seqs),
        max_cached_tokens: arguments.max_cached_tokens.map(|tokens| tokens as usize),
        max_queued: whole(arguments.max_queued),
        max_logprobs: whole(arguments.max_logprobs),
        max_body_bytes: whole(arguments.max_body_bytes),
        max_connections: usize::from(arguments.max_connections),
        request_timeout: Duration::from_secs(arguments.request_timeout.into()),
        idle_timeout: Duration::from_secs(arguments.idle_timeout.into()),
        refuses_while_paused: arguments.when_paused == WhenPaused::Refuse,
        slow_down: slow_down(arguments)?,
    })
}

pub(super) fn read_key(path: &Path) -> Result<String, Failure> {
    let refused = |problem: String| {
        let text = format!(
            "error: --api-key-file {}: {problem}\n  hint: write one line with the key, of letters, digits and signs",
            path.display()
        );
        Err(Failure::new(USAGE, text))
    };
    let text = match tamis_file::read_text(path, LONGEST_KEY) {
        Ok(text) => text,
        Err(error) => return refused(error.to_string()),
    };
    let key = text.trim();
    if key.is_empty() {
        return refused("the file is empty".to_owned());
    }
    if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return refused("the key contains spaces or characters that are not allowed in a header".to_owned());
    }
    Ok(key.to_owned())
}

fn slow_down(arguments: &ServeArguments) -> Result<Option<SlowDown>, Failure> {
    let ServeArguments { test_step_ms, test_sample_ms, test_lengths, .. } = arguments;
    if test_step_ms.is_none() && test_sample_ms.is_none() && test_lengths.is_none() {
        return Ok(None);
    }
    let time = |milliseconds: Option<f64>| Duration::try_from_secs_f64(milliseconds.unwrap_or(0.0) / 1e3);
    let lengths = match test_lengths.as_deref() {
        Some(&[median, sigma]) if median >= 1.0 && sigma >= 0.0 => Some((median, sigma)),
        None => None,
        Some(_) => {
            return Err(Failure::new(
                USAGE,
                "error: --test-lengths takes a median from 1 and a sigma from 0",
            ));
        }
    };
    match (time(*test_step_ms), time(*test_sample_ms)) {
        (Ok(step), Ok(per_sample)) => Ok(Some(SlowDown { step, per_sample, lengths })),
        _ => Err(Failure::new(USAGE, "error: --test-step-ms and --test-sample-ms take milliseconds from 0")),
    }
}
