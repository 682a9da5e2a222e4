//! A program's own report on its episode: the last line of its output that is a number, or an object with
//! `reward`, `success` and `info`.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};
use tamis_env::environment::names::is_number_name;

/// The outcome of an episode, as its program reports it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ProgramOutcome {
    /// Reward; `None` if the program gave none.
    pub reward: Option<f64>,
    /// Success, if the program reported it.
    pub success: Option<bool>,
    /// Other numbers; yes is 1 and no is 0.
    pub info: BTreeMap<String, f64>,
}

/// Why an episode has no outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramFailure {
    /// A message, with the last lines of its program's standard error if it was started.
    pub reason: String,
    /// Whether its program took too long.
    pub is_late: bool,
}

impl fmt::Display for ProgramFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.reason)
    }
}

impl From<String> for ProgramFailure {
    fn from(reason: String) -> Self {
        Self { reason, is_late: false }
    }
}

const KEYS: [&str; 3] = ["reward", "success", "info"];

/// Reads the end of a program's output: the last line that is an object with one of the keys, or a
/// number as the very last line. `unnamed` receives numbers that cannot become a metric, which are left
/// out.
///
/// # Errors
/// A message, if a line looks like an outcome and is not one.
pub(super) fn read(output: &str, unnamed: &mut dyn FnMut(&str)) -> Result<ProgramOutcome, String> {
    let mut lines = output.lines().map(str::trim).filter(|line| !line.is_empty());
    let Some(last) = lines.next_back() else { return Ok(ProgramOutcome::default()) };
    if let Ok(reward) = last.parse::<f64>() {
        return if reward.is_finite() {
            Ok(ProgramOutcome { reward: Some(reward), ..ProgramOutcome::default() })
        } else {
            Err(format!("its last line {last:?} is not a reward: print a finite number"))
        };
    }
    let found = std::iter::once(last).chain(lines.rev()).find_map(|line| {
        if !line.starts_with('{') {
            return None;
        }
        match serde_json::from_str::<Map<String, Value>>(line) {
            Ok(fields) => {
                KEYS.iter().any(|key| fields.contains_key(*key)).then(|| read_fields(&fields, unnamed))
            }
            // A dictionary as Python prints it, or a number that JSON does not have.
            Err(error) => KEYS[..2]
                .iter()
                .any(|key| line.contains(&format!("\"{key}\"")) || line.contains(&format!("'{key}'")))
                .then(|| Err(format!("it is not JSON: {error}"))),
        }
        .map(|read| read.map_err(|reason| wrong(line, &reason)))
    });
    found.unwrap_or_else(|| Ok(ProgramOutcome::default()))
}

fn wrong(line: &str, reason: &str) -> String {
    let shown: String = line.chars().take(120).collect();
    format!(
        "what it printed about its episode cannot be read: {reason}; print one line such as {{\"reward\": 1.0, \
         \"success\": true, \"info\": {{\"steps\": 3}}}}, got {shown}"
    )
}

fn read_fields(fields: &Map<String, Value>, unnamed: &mut dyn FnMut(&str)) -> Result<ProgramOutcome, String> {
    let mut outcome = ProgramOutcome::default();
    for (key, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        match key.as_str() {
            "reward" => outcome.reward = Some(value.as_f64().ok_or("`reward` must be a number")?),
            "success" => outcome.success = Some(value.as_bool().ok_or("`success` must be true or false")?),
            "info" => {
                let numbers = value.as_object().ok_or("`info` must be an object of numbers")?;
                for (name, value) in numbers {
                    let number = value.as_f64().or_else(|| value.as_bool().map(f64::from));
                    let number = number.ok_or_else(|| format!("`info.{name}` must be a number"))?;
                    if is_number_name(name) {
                        outcome.info.insert(name.clone(), number);
                    } else {
                        unnamed(name);
                    }
                }
            }
            other => return Err(format!("there is no `{other}`: numbers of your own belong under `info`")),
        }
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads an outcome whose numbers all have valid names.
    fn read(output: &str) -> Result<ProgramOutcome, String> {
        super::read(output, &mut |name| panic!("{name:?} is left out"))
    }

    fn reward(reward: f64) -> ProgramOutcome {
        ProgramOutcome { reward: Some(reward), ..ProgramOutcome::default() }
    }

    #[test]
    fn the_last_line_that_is_an_outcome_counts() {
        assert_eq!(read("0.25\n"), Ok(reward(0.25)));
        assert_eq!(read("thinking\n-3\n\n  \n"), Ok(reward(-3.0)));
        let all = "{\"reward\": 1, \"success\": false, \"info\": {\"steps\": 3, \"is_late\": true}}";
        let info = BTreeMap::from([("steps".to_owned(), 3.0), ("is_late".to_owned(), 1.0)]);
        assert_eq!(read(all), Ok(ProgramOutcome { reward: Some(1.0), success: Some(false), info }));
        let lines = "{\"reward\": 0}\n{\"reward\": 0.5}\nclosing the connection\n{\"answer\": 42}";
        assert_eq!(read(lines), Ok(reward(0.5)));
        let success = ProgramOutcome { success: Some(true), ..ProgramOutcome::default() };
        assert_eq!(read("{\"success\": true, \"reward\": null}"), Ok(success));
    }

    #[test]
    fn a_number_that_no_metric_can_be_named_after_is_left_out() {
        let mut unnamed = Vec::new();
        let output = "{\"reward\": 1, \"info\": {\"two words\": 1, \"\": 2, \"steps\": 3}}";
        let outcome = super::read(output, &mut |name| unnamed.push(name.to_owned()));
        let info = BTreeMap::from([("steps".to_owned(), 3.0)]);
        assert_eq!(outcome, Ok(ProgramOutcome { reward: Some(1.0), success: None, info }));
        unnamed.sort();
        assert_eq!(unnamed, ["", "two words"]);
    }

    #[test]
    fn without_such_a_line_nothing_is_known() {
        // A number counts only as the very last line; others are ignored.
        for output in ["", "\n \n", "done", "0.5\ndone", "{\"answer\": 1}", "[1.0]", "true", "{broken"] {
            assert_eq!(read(output), Ok(ProgramOutcome::default()), "{output:?}");
        }
    }

    #[test]
    fn a_line_that_is_meant_as_an_outcome_and_is_none_is_an_error() {
        for (output, reason) in [
            ("nan", "print a finite number"),
            ("-inf", "print a finite number"),
            ("{\"reward\": NaN}", "not JSON"),
            ("{'reward': 1.0}", "not JSON"),
            ("{\"reward\": \"1\"}", "`reward` must be a number"),
            ("{\"reward\": 1, \"success\": 1}", "`success` must be true or false"),
            ("{\"reward\": 1, \"info\": [1]}", "`info` must be an object"),
            ("{\"reward\": 1, \"info\": {\"name\": \"x\"}}", "`info.name` must be a number"),
            ("{\"reward\": 1, \"steps\": 3}", "there is no `steps`: numbers of your own belong under `info`"),
            ("{\"reward\": 1}\n{\"reward\": []}", "got {\"reward\": []}"),
        ] {
            let error = read(output).expect_err(output);
            assert!(error.contains(reason), "{output}: {error}");
        }
    }
}
