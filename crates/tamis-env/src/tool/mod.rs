//! Tools that a model calls in its answers.
//!
//! A [`Tool`] is shown to the model by its [`schema`](Tool::schema), which the chat template writes into the
//! prompt. Data flows in a circle: the answer's text → [`tool_calls`] → [`Tool::call`] → the text of a tool
//! message → the next answer. Errors are text too, so the model can correct its call.

mod calls;
mod python;

use serde_json::Value as Json;

pub use calls::{ToolCall, split_tool_calls, tool_calls};
pub use python::{PythonTool, PythonToolSettings};

/// A tool's answer to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolAnswer {
    /// For the model.
    pub text: String,
    /// Whether the call failed because of the model's text.
    pub is_failure: bool,
}

/// A tool that a model may call.
pub trait Tool: Send + Sync {
    /// Its description in OpenAI's form, for chat templates:
    /// `{"type": "function", "function": {"name", "description", "parameters"}}`.
    fn schema(&self) -> Json;

    /// Its answer to a call with these arguments.
    ///
    /// # Errors
    /// The tool itself failed. A mistake of the model is an answer.
    fn call(&self, arguments: &Json) -> Result<ToolAnswer, String>;

    /// Warnings since the last call.
    fn take_warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Its name in the schema.
    fn name(&self) -> String {
        self.schema()["function"]["name"].as_str().unwrap_or_default().to_owned()
    }
}
