//! Prompts that are answered with tools. An episode continues after an answer that calls tools, and ends with
//! an answer that calls none. The model's chat template writes the tools' schemas into the prompt; each
//! result is a message with the role `tool`. There is no reward here: a reward function scores the whole
//! episode, as without tools.

use std::sync::Arc;

use serde_json::Value;
use tamis_core::random::Key;
use tamis_core::setting::{Program, TimeSpan};
use tamis_data::prompt::Message;

use super::foreign::settings::{ForeignReach, ForeignSpec, WorkerPool};
use super::foreign::{Foreign, ForeignCalls};
use super::{Environment, EnvironmentFault, EpisodeEnd, TurnOutcome};
use crate::tool::{PythonTool, PythonToolSettings, Tool, tool_calls};

tamis_core::settings! {
    /// Tools that the policy may call in its answers to any prompt.
    pub struct ToolSettings {
        /// Python functions, each `FILE.py:NAME` or `MODULE:NAME`. The model sees their annotations and
        /// docstrings.
        functions: Vec<String> = Vec::new();
        /// Offer the Python interpreter as a tool, in a sandbox.
        interpreter: bool = false;
        /// Limits of that interpreter.
        sandbox: PythonToolSettings = PythonToolSettings::default();
        /// Most calls of one answer. Further ones are refused.
        max_calls: usize = 8, Between(1.0, 1024.0);
        /// Longest time of a function's call. The policy gets a message if a call takes longer.
        call_timeout: TimeSpan = TimeSpan::seconds(30), Any, Free;
        /// Python interpreter that runs the functions; `run.python`: that of this key.
        python: Program = Program::of_run(), NotEmpty, Free;
        ..workers: WorkerPool;
    }
}

impl ToolSettings {
    /// How its functions run; `None` if it has none.
    pub fn spec(&self) -> Option<ForeignSpec> {
        (!self.functions.is_empty()).then(|| ForeignSpec {
            reach: ForeignReach::Module { python: self.python.display().to_string() },
            settings: serde_json::json!({"kind": "tools", "functions": self.functions}),
            timeout: self.call_timeout.0,
            workers: self.workers.clone(),
        })
    }
}

/// The tools of a run.
pub struct Toolbox {
    own: Vec<Box<dyn Tool>>,
    elsewhere: Option<Arc<Foreign>>,
    schemas: Vec<Value>,
    /// Protection of the sandbox in which the policy's code runs.
    protection: Option<String>,
    max_calls: usize,
    max_turns: usize,
}

impl Toolbox {
    /// Makes it from settings; `elsewhere` runs its functions.
    ///
    /// # Errors
    /// A sandbox that protects less than required; two tools with one name; no tools.
    pub fn new(
        settings: &ToolSettings,
        elsewhere: Option<Arc<Foreign>>,
        max_turns: usize,
    ) -> Result<Self, String> {
        let mut own: Vec<Box<dyn Tool>> = Vec::new();
        let mut protection = None;
        if settings.interpreter {
            let tool = PythonTool::new(&settings.sandbox).map_err(|error| error.to_string())?;
            protection = Some(tool.sandbox().protection().to_string());
            own.push(Box::new(tool));
        }
        let mut schemas: Vec<Value> = own.iter().map(|tool| tool.schema()).collect();
        schemas.extend(elsewhere.iter().flat_map(|foreign| foreign.introduction().tools.clone()));
        let mut names: Vec<&str> = schemas.iter().filter_map(name_of).collect();
        names.sort_unstable();
        if let Some((twice, _)) = names.iter().zip(names.iter().skip(1)).find(|(one, next)| one == next) {
            return Err(format!("two tools are called `{twice}`"));
        }
        if names.is_empty() {
            return Err(
                "there is no tool: name some in `environment.functions`, or set `environment.interpreter`"
                    .to_owned(),
            );
        }
        Ok(Self { own, elsewhere, schemas, protection, max_calls: settings.max_calls, max_turns })
    }

    /// Their descriptions, in the form for chat templates.
    pub fn schemas(&self) -> &[Value] {
        &self.schemas
    }

    /// Protection of the sandbox in which the policy's code runs, in one line; `None` if no such code runs.
    pub fn protection(&self) -> Option<String> {
        self.protection.clone()
    }

    /// Warnings since the last call.
    pub fn take_warnings(&self) -> Vec<String> {
        let of = |tool: &dyn Tool| {
            let warnings = tool.take_warnings().into_iter();
            warnings.map(|warning| format!("the tool `{}`: {warning}", tool.name())).collect::<Vec<_>>()
        };
        self.own.iter().flat_map(|tool| of(&**tool)).collect()
    }

    /// A trajectory with them.
    pub fn begin(self: &Arc<Self>, luck: Key) -> Box<dyn Environment> {
        Box::new(ToolEpisode { tools: Arc::clone(self), luck, calls: None, shown: Vec::new(), num_turns: 0 })
    }
}

fn name_of(schema: &Value) -> Option<&str> {
    schema["function"]["name"].as_str()
}

struct ToolEpisode {
    tools: Arc<Toolbox>,
    luck: Key,
    calls: Option<ForeignCalls>,
    shown: Vec<Message>,
    num_turns: usize,
}

impl ToolEpisode {
    fn call(&mut self, name: &str, arguments: &Value) -> Result<(String, bool), EnvironmentFault> {
        if let Some(tool) = self.tools.own.iter().find(|tool| tool.name() == name) {
            return Ok(match tool.call(arguments) {
                Ok(answer) => (answer.text, answer.is_failure),
                Err(error) => return Err(EnvironmentFault::Broke(format!("the tool `{name}`: {error}"))),
            });
        }
        let is_known = self.tools.schemas.iter().any(|schema| name_of(schema) == Some(name));
        let Some(elsewhere) = self.tools.elsewhere.as_ref().filter(|_| is_known) else {
            let known: Vec<&str> = self.tools.schemas.iter().filter_map(name_of).collect();
            return Ok((
                format!("NameError: there is no tool '{name}': there are {}", known.join(", ")),
                true,
            ));
        };
        let mut calls = match self.calls.take() {
            Some(calls) => calls,
            None => elsewhere.begin_calls(self.luck)?,
        };
        match calls.call(name, arguments) {
            Ok(said) => {
                self.calls = Some(calls);
                Ok(said)
            }
            // It is closed with the calls of this trajectory; the next trajectory starts others.
            Err(EnvironmentFault::TimedOut { limit }) => {
                Ok((format!("TimeoutError: {name} took longer than {} s", limit.as_secs_f64()), true))
            }
            Err(fault) => Err(fault),
        }
    }
}

impl Environment for ToolEpisode {
    fn observe(&self) -> String {
        let contents: Vec<&str> = self.shown.iter().map(|message| message.content.as_str()).collect();
        contents.join("\n")
    }

    fn messages(&self) -> Vec<Message> {
        self.shown.clone()
    }

    /// `info`: `num_tool_calls`, and among them `num_failed_calls`, which include unreadable calls and those
    /// above the limit of an answer. Calls of the last turn are neither made nor counted.
    fn act(&mut self, text: &str) -> TurnOutcome {
        self.shown.clear();
        self.num_turns += 1;
        let calls = tool_calls(text);
        let (mut num_calls, mut num_failed) = (0_u32, 0_u32);
        let end = if calls.is_empty() {
            Some(EpisodeEnd::Terminated)
        } else {
            (self.num_turns >= self.tools.max_turns).then_some(EpisodeEnd::Truncated)
        };
        if end.is_none() {
            for (place, call) in calls.into_iter().enumerate() {
                let most = self.tools.max_calls;
                let made = match call {
                    _ if place >= most => {
                        Ok((format!("Error: no more than {most} calls are made of one answer"), true))
                    }
                    Ok(call) => self.call(&call.name, &call.arguments),
                    Err(error) => Ok((format!("Error: {error}"), true)),
                };
                match made {
                    Ok((content, failed)) => {
                        num_calls += 1;
                        num_failed += u32::from(failed);
                        self.shown.push(Message::new("tool", content));
                    }
                    Err(fault) => return TurnOutcome::failed(fault),
                }
            }
        }
        let info = vec![
            ("num_tool_calls".into(), f64::from(num_calls)),
            ("num_failed_calls".into(), f64::from(num_failed)),
        ];
        TurnOutcome { reward: None, end, info, fault: None }
    }

    /// Unknown here: a reward function decides.
    fn is_success(&self) -> Option<bool> {
        None
    }
}

#[cfg(test)]
mod tests {
    use tamis_core::random::Purpose;

    use super::*;
    use crate::tool::ToolAnswer;

    /// Adds two numbers; fails like a tool if it cannot.
    struct Add;

    impl Tool for Add {
        fn schema(&self) -> Value {
            serde_json::json!({"type": "function", "function": {"name": "add", "description": "", "parameters": {}}})
        }

        fn call(&self, arguments: &Value) -> Result<ToolAnswer, String> {
            let said = |text: String, is_failure| Ok(ToolAnswer { text, is_failure });
            match (arguments["a"].as_i64(), arguments["b"].as_i64()) {
                (Some(a), Some(b)) => said((a + b).to_string(), false),
                (None, Some(_)) if arguments["a"].is_string() => said("TypeError".to_owned(), true),
                _ => Err("it fell over".to_owned()),
            }
        }
    }

    fn begin(max_turns: usize, max_calls: usize) -> Box<dyn Environment> {
        let own: Vec<Box<dyn Tool>> = vec![Box::new(Add)];
        let schemas = vec![Add.schema()];
        let tools = Toolbox { own, elsewhere: None, schemas, protection: None, max_calls, max_turns };
        Arc::new(tools).begin(Key::new(1, Purpose::Environment))
    }

    fn call(name: &str, a: &str) -> String {
        format!("<tool_call>{{\"name\": \"{name}\", \"arguments\": {{\"a\": {a}, \"b\": 2}}}}</tool_call>")
    }

    #[test]
    fn an_answer_that_calls_goes_on_and_one_that_does_not_is_the_last() {
        let mut episode = begin(5, 2);
        let outcome = episode.act(&format!("{}{}{}", call("add", "1"), call("sub", "1"), call("add", "3")));
        assert_eq!(outcome.end, None);
        assert_eq!(outcome.info, [("num_tool_calls".into(), 3.0), ("num_failed_calls".into(), 2.0)]);
        let messages = episode.messages();
        assert!(messages.iter().all(|message| message.role == "tool"));
        let contents: Vec<&str> = messages.iter().map(|message| message.content.as_str()).collect();
        assert_eq!(
            contents,
            [
                "3",
                "NameError: there is no tool 'sub': there are add",
                "Error: no more than 2 calls are made of one answer"
            ]
        );
        // A call that cannot be parsed is reported, too.
        assert_eq!(episode.act("<tool_call>{add}</tool_call>").end, None);
        assert!(
            episode.observe().starts_with("Error: the tool call is not valid JSON"),
            "{}",
            episode.observe()
        );
        assert_eq!(episode.act("5").end, Some(EpisodeEnd::Terminated));
        assert!(episode.messages().is_empty());
    }

    #[test]
    fn turns_end_and_a_tool_that_cannot_work_fails_the_trajectory() {
        let mut episode = begin(3, 8);
        assert_eq!(episode.act(&call("add", "1")).end, None);
        let failed = episode.act(&call("add", "\"x\""));
        assert_eq!((failed.end, episode.observe().as_str()), (None, "TypeError"));
        assert_eq!(failed.info, [("num_tool_calls".into(), 1.0), ("num_failed_calls".into(), 1.0)]);
        // Calls that are not made are not counted.
        let last = episode.act(&call("add", "1"));
        assert_eq!(last.end, Some(EpisodeEnd::Truncated));
        assert_eq!(last.info, [("num_tool_calls".into(), 0.0), ("num_failed_calls".into(), 0.0)]);
        let fault = begin(2, 8).act(&call("add", "null")).fault.map(|fault| fault.to_string());
        assert_eq!(fault.as_deref(), Some("the tool `add`: it fell over"));
    }

    #[test]
    fn tools_that_are_none_are_refused() {
        let refused = Toolbox::new(&ToolSettings::default(), None, 2).err();
        assert!(refused.is_some_and(|refused| refused.starts_with("there is no tool")));
    }
}
