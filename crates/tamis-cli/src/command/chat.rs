//! `tamis chat`: conversations with one model, or with two side by side.
//!
//! It runs the engine of `tamis_serve` without HTTP. In a terminal it prompts and streams answers; in a pipe
//! each line of the input is a message, and stdout has only answers.

use std::io::{BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tamis_core::figure::counted;

use serde_json::{Value, json};
use tamis_core::printable::{lines, one_line};
use tamis_serve::{Answered, LocalEngine, ServeSettings, SlowDown};

use super::eval_two::refuse_twice;
use super::serve::{num_cores, of_fault, read_policy};
use super::{Needed, named_or_newest, show};
use crate::arguments::ChatArguments;
use crate::failure::{FAILED, Failure, INTERRUPTED, USAGE};

/// Largest number of bytes that are read of a line.
const LONGEST_LINE: u64 = 16 << 20;

pub(crate) fn run(arguments: &ChatArguments) -> Result<u8, Failure> {
    let mut sources = arguments.sources.clone();
    if sources.is_empty() {
        sources.push(named_or_newest(None, Needed::Checkpoint)?);
    }
    let is_terminal = std::io::stdin().is_terminal();
    let speakers = sources.iter().map(|source| Speaker::begin(source, arguments));
    let mut speakers = speakers.collect::<Result<Vec<Speaker<'_>>, Failure>>()?;
    if let [first, second] = speakers.as_slice() {
        refuse_twice(&first.folder, &second.folder, "chat")?;
    }
    let has_several = speakers.len() > 1;
    if is_terminal {
        say("/new begins again, /quit or Ctrl-D ends, Ctrl-C stops an answer\n");
    }
    let ctrl_c = CtrlC::listen(is_terminal)?;
    for number in 1.. {
        if is_terminal {
            say("> ");
        }
        let Some(line) = read_line()? else { break };
        match line.trim() {
            "" => {}
            "/new" => speakers.iter_mut().for_each(|speaker| speaker.conversation.begin_again()),
            "/quit" => return Ok(0),
            _ => {
                for Speaker { name, engine, conversation, .. } in &mut speakers {
                    // Two answers differ because of their models, not by chance.
                    let seed = has_several.then_some(number);
                    if has_several {
                        show(&format!("[{name}]\n"))?;
                    }
                    match ctrl_c.during(|stop| conversation.ask(engine, &line, seed, stop)) {
                        // The user can send another message.
                        Err(failure) if is_terminal && failure.code() == FAILED => failure.print(),
                        asked => asked?,
                    }
                }
            }
        }
    }
    if is_terminal {
        say("\n");
    }
    Ok(0)
}

/// A model with its conversation.
struct Speaker<'a> {
    name: String,
    folder: PathBuf,
    engine: LocalEngine,
    conversation: Conversation<'a>,
}

impl<'a> Speaker<'a> {
    fn begin(source: &Path, arguments: &'a ChatArguments) -> Result<Self, Failure> {
        let policy = read_policy(source, String::new())?;
        let has_template = policy.template.is_some();
        let folder = policy.folder.display().to_string();
        if arguments.system.is_some() && !has_template {
            let text = format!(
                "error: --system needs a chat template, and the tokenizer of {folder} has none\n  hint: leave it out; each line is a prompt of its own"
            );
            return Err(Failure::new(USAGE, text));
        }
        say(&format!("chatting with {folder} ({} parameters)\n", policy.model.num_parameters()));
        if !has_template {
            say("the tokenizer has no chat template: each line is a prompt of its own\n");
        }
        let settings = ServeSettings {
            threads: num_cores(),
            max_num_seqs: 1,
            slow_down: arguments.test_step_ms.map(|step| SlowDown {
                step: Duration::from_millis(step),
                per_sample: Duration::ZERO,
                lengths: None,
            }),
            ..ServeSettings::default()
        };
        Ok(Self {
            name: one_line(&source.display().to_string()),
            folder: policy.folder.clone(),
            engine: LocalEngine::begin(policy, settings).map_err(|error| of_fault(&error))?,
            conversation: Conversation::new(arguments, has_template),
        })
    }
}

/// Shown to the user; stdout has only answers.
fn say(text: &str) {
    let _ = write!(std::io::stderr().lock(), "{}", lines(text));
}

/// The next line without its end; `None` at the end of the input.
fn read_line() -> Result<Option<String>, Failure> {
    let failed = |reason: &str| {
        Failure::new(
            USAGE,
            format!("error: failed to read from stdin: {reason}\n  hint: write one prompt a line"),
        )
    };
    let mut line = String::new();
    let mut input = std::io::stdin().lock().take(LONGEST_LINE);
    input.read_line(&mut line).map_err(|error| failed(&error.to_string()))?;
    if input.limit() == 0 {
        return Err(failed(&format!("a line has more than {LONGEST_LINE} bytes")));
    }
    Ok((!line.is_empty()).then(|| line.trim_end_matches(['\r', '\n']).to_owned()))
}

/// Ctrl-C in a terminal stops an answer once; at any other time it ends the program. In a pipe it always ends
/// the program, as it does without a handler.
struct CtrlC {
    stop: Arc<AtomicBool>,
    ends: Arc<AtomicBool>,
}

impl CtrlC {
    fn listen(is_terminal: bool) -> Result<Self, Failure> {
        let (stop, ends) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
        let both = (stop.clone(), ends.clone());
        if !is_terminal {
            return Ok(Self { stop, ends });
        }
        ctrlc::set_handler(move || {
            let (stop, ends) = &both;
            if ends.swap(true, Ordering::SeqCst) {
                say("\n");
                std::process::exit(i32::from(INTERRUPTED));
            }
            stop.store(true, Ordering::SeqCst);
        })
        .map_err(|error| Failure::new(FAILED, format!("error: failed to listen for Ctrl-C: {error}")))?;
        Ok(Self { stop, ends })
    }

    /// Answers. Ctrl-C meanwhile sets the flag.
    fn during<T>(&self, answer: impl FnOnce(&AtomicBool) -> T) -> T {
        self.stop.store(false, Ordering::SeqCst);
        self.ends.store(false, Ordering::SeqCst);
        let answered = answer(&self.stop);
        self.ends.store(true, Ordering::SeqCst);
        answered
    }
}

/// The conversation so far, and how to sample.
struct Conversation<'a> {
    arguments: &'a ChatArguments,
    /// `None`: each line is a prompt of its own.
    messages: Option<Vec<Value>>,
}

impl<'a> Conversation<'a> {
    fn new(arguments: &'a ChatArguments, has_template: bool) -> Self {
        let system = arguments.system.iter().map(|text| json!({"role": "system", "content": text}));
        Self { arguments, messages: has_template.then(|| system.collect()) }
    }

    fn begin_again(&mut self) {
        *self = Self::new(self.arguments, self.messages.is_some());
    }

    /// Shows the answer piece by piece, and keeps it.
    fn ask(
        &mut self,
        engine: &LocalEngine,
        line: &str,
        seed: Option<u64>,
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let ChatArguments { temperature, max_tokens, .. } = *self.arguments;
        let mut request = json!({"temperature": temperature, "max_tokens": max_tokens, "stream": true});
        if let Some(seed) = seed {
            request["seed"] = json!(seed);
        }
        let question = json!({"role": "user", "content": line});
        match &self.messages {
            Some(said) => request["messages"] = said.iter().chain([&question]).cloned().collect(),
            None => request["prompt"] = json!(line),
        }
        let mut shown = Ok(());
        let asked = engine.answer(request, stop, |piece| {
            let written = show(piece);
            if written.is_err() {
                stop.store(true, Ordering::SeqCst);
            }
            shown = std::mem::replace(&mut shown, Ok(())).and(written);
        });
        let Answered { text, finish_reason, usage } = asked.map_err(|error| {
            let hint = self.messages.as_ref().map(|_| "`/new` begins again".to_owned());
            Failure::of(FAILED, &error, hint)
        })?;
        shown.and_then(|()| show("\n"))?;
        if finish_reason.as_deref() == Some("length") {
            say(&if usage.completion_tokens == max_tokens as usize {
                format!("(cut at {}; --max-tokens allows more)\n", counted(max_tokens, "token"))
            } else {
                "(cut: the model's context is full)\n".to_owned()
            });
        }
        if let Some(said) = &mut self.messages {
            said.extend([question, json!({"role": "assistant", "content": text})]);
        }
        Ok(())
    }
}
