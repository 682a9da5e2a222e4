//! `python`: the sandboxed interpreter as a tool.

use std::fmt::Write as _;

use serde_json::{Value as Json, json};

use super::{Tool, ToolAnswer};
use crate::sandbox::{Code, Exit, Sandbox, SandboxError, SandboxSettings};

/// Most lines of a traceback in an answer to the model.
const TRACEBACK_LINES: usize = 12;

tamis_core::settings! {
    /// The Python interpreter that a model may call.
    pub struct PythonToolSettings {
        /// Most characters of an answer to the model. A longer answer is cut in the middle.
        max_answer: usize = 8192, Between(64.0, 1_073_741_824.0);
        ..sandbox: SandboxSettings;
    }
}

/// Runs the code of a call in a sandbox, each call in a fresh process. Nothing is kept between calls.
#[derive(Debug)]
pub struct PythonTool {
    sandbox: Sandbox,
    max_answer: usize,
}

impl PythonTool {
    /// Finds the interpreter and tests the protection.
    pub fn new(settings: &PythonToolSettings) -> Result<Self, SandboxError> {
        Ok(Self { sandbox: Sandbox::new(&settings.sandbox)?, max_answer: settings.max_answer })
    }

    /// The sandbox, which reports its protection.
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }
}

impl Tool for PythonTool {
    fn take_warnings(&self) -> Vec<String> {
        self.sandbox.take_warnings()
    }

    fn schema(&self) -> Json {
        let seconds = self.sandbox.settings().timeout;
        json!({
            "type": "function",
            "function": {
                "name": "python",
                "description": format!(
                    "Runs a Python program and returns what it prints. Every call starts anew, without network and \
                     with an empty working folder, and may take {seconds}."
                ),
                "parameters": {
                    "type": "object",
                    "properties": {
                        "code": {"type": "string", "description": "The program. Use print to see a result."}
                    },
                    "required": ["code"]
                }
            }
        })
    }

    /// A call fails if the program ends with another exit code than 0, as after an exception, or at a limit.
    fn call(&self, arguments: &Json) -> Result<ToolAnswer, String> {
        let Some(code) = arguments["code"].as_str() else {
            let text = "TypeError: python() needs the argument 'code', a string".to_owned();
            return Ok(ToolAnswer { text, is_failure: true });
        };
        let execution = self.sandbox.run(&Code::new(code)).map_err(|error| error.to_string())?;
        let mut answer = execution.stdout;
        let settings = self.sandbox.settings();
        let fault = match execution.exit {
            Exit::Exited(_) => None,
            Exit::TimedOut => Some(format!("TimeoutError: the program ran longer than {}", settings.timeout)),
            Exit::OutOfMemory => {
                Some(format!("MemoryError: the program took more than {} MiB", settings.memory_mb))
            }
            Exit::Killed(signal) => Some(format!("RuntimeError: the program was killed by signal {signal}")),
        };
        let lines: Vec<&str> = execution.stderr.trim_end().lines().collect();
        let shown = lines[lines.len().saturating_sub(TRACEBACK_LINES)..].join("\n");
        for part in [shown, fault.unwrap_or_default()] {
            if !answer.is_empty() && !answer.ends_with('\n') && !part.is_empty() {
                answer.push('\n');
            }
            answer.push_str(&part);
        }
        if execution.truncated > 0 {
            let _ = write!(answer, "\n[{} bytes of output were left out]", execution.truncated);
        }
        let answer = shorten(answer.trim_end(), self.max_answer);
        let text = match execution.exit {
            Exit::Exited(0) if answer.is_empty() => "[no output: use print to see a result]".to_owned(),
            Exit::Exited(code) if answer.is_empty() => format!("[no output, exit code {code}]"),
            _ => answer,
        };
        Ok(ToolAnswer { text, is_failure: !matches!(execution.exit, Exit::Exited(0)) })
    }
}

/// The beginning and the end of a text that is too long.
fn shorten(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let half = most / 2;
    let beginning: String = text.chars().take(half).collect();
    let end: String = text.chars().skip(count - half).collect();
    format!("{beginning}\n[{} characters left out]\n{end}", count - 2 * half)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tamis_core::setting::TimeSpan;

    use super::*;
    use crate::tool::tool_calls;

    fn tool(timeout: Duration) -> Option<PythonTool> {
        let sandbox = SandboxSettings { timeout: TimeSpan(timeout), ..SandboxSettings::default() };
        let tool = PythonTool::new(&PythonToolSettings { max_answer: 200, sandbox });
        tool.map_err(|error| println!("skipped: {error}")).ok()
    }

    #[test]
    fn a_model_calls_it() {
        let Some(tool) = tool(Duration::from_secs(120)) else { return };
        assert_eq!(tool.name(), "python");
        insta::assert_snapshot!(tool.schema(), @r#"{"type":"function","function":{"name":"python","description":"Runs a Python program and returns what it prints. Every call starts anew, without network and with an empty working folder, and may take 120s.","parameters":{"type":"object","properties":{"code":{"type":"string","description":"The program. Use print to see a result."}},"required":["code"]}}}"#);
        let text =
            "<tool_call>\n{\"name\": \"python\", \"arguments\": {\"code\": \"print(2**10)\"}}\n</tool_call>";
        let calls = tool_calls(text);
        let sum = ToolAnswer { text: "1024".to_owned(), is_failure: false };
        assert_eq!(tool.call(&calls[0].as_ref().unwrap().arguments).unwrap(), sum);
        let run = |code: &str| tool.call(&json!({ "code": code })).unwrap().text;
        insta::assert_snapshot!(run("x = 1"), @"[no output: use print to see a result]");
        insta::assert_snapshot!(run("import sys; sys.exit(3)"), @"[no output, exit code 3]");
        insta::assert_snapshot!(run("print('so far')\nint('x')"), @r#"
        so far
        Traceback (most recent call last):
          File "code.py", line 2, in <module>
            int('x')
        ValueError: invalid literal for int() with base 10: 'x'
        "#);
        insta::assert_snapshot!(run("x = bytearray(10**11)").lines().last().unwrap_or_default(), @"MemoryError");
        insta::assert_snapshot!(run("import os; os.kill(os.getpid(), 11)"), @"RuntimeError: the program was killed by signal 11");
        let long = run("print('a' * 150 + 'b' * 151)");
        assert_eq!(long, format!("{}\n[101 characters left out]\n{}", "a".repeat(100), "b".repeat(100)));
        insta::assert_snapshot!(tool.call(&json!({"source": "1"})).unwrap().text, @"TypeError: python() needs the argument 'code', a string");
    }

    #[test]
    fn a_program_that_fails_is_a_call_that_failed() {
        let Some(tool) = tool(Duration::from_secs(120)) else { return };
        let fails = |arguments: Json| tool.call(&arguments).unwrap().is_failure;
        for code in ["print(1)", "import sys; print('x', file=sys.stderr)", "raise SystemExit"] {
            assert!(!fails(json!({ "code": code })), "{code}");
        }
        let killed = "import os; os.kill(os.getpid(), 11)";
        for code in ["int('x')", "import sys; sys.exit(3)", "x = bytearray(10**11)", "1 +", killed] {
            assert!(fails(json!({ "code": code })), "{code}");
        }
        assert!(fails(json!({"source": "1"})) && fails(json!({"code": 1})) && fails(json!({})));
    }

    #[test]
    fn a_limit_is_told() {
        let Some(tool) = tool(Duration::from_millis(500)) else { return };
        let answer = tool.call(&json!({"code": "while True: pass"})).unwrap();
        assert!(answer.is_failure);
        insta::assert_snapshot!(answer.text, @"TimeoutError: the program ran longer than 500ms");
    }
}
