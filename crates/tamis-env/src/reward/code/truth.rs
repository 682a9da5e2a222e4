//! The tests in a ground truth.

use serde_json::{Map, Value as Json};

/// The tests of one prompt, as the row has them.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Truth {
    /// Standard input and expected output of a program.
    Programs(Vec<(String, String)>),
    /// Arguments and expected value of a function.
    Calls {
        /// Its name, or that of a method of `Solution`.
        function: String,
        /// Code before the program.
        setup: String,
        /// Arguments and value.
        cases: Vec<(Vec<Json>, Json)>,
    },
    Assertions {
        /// Code before the program, and once more before a test.
        setup: String,
        tests: Vec<String>,
    },
}

impl Truth {
    pub(super) fn read(truth: &str) -> Result<Self, String> {
        let text = truth.trim();
        let of_code = |code: &str| Self::of_tests(String::new(), vec![code.to_owned()]);
        if !text.starts_with(['{', '[', '"']) {
            return of_code(truth);
        }
        match serde_json::from_str(text) {
            Ok(Json::Object(keys)) => Self::of_object(&keys),
            Ok(Json::Array(items)) => Self::of_tests(String::new(), texts(&items, "tests")?),
            Ok(Json::String(code)) => of_code(&code),
            // Python may begin like that.
            _ if text.contains("assert") => of_code(truth),
            Ok(_) => Err("it is not a JSON object, list or text".to_owned()),
            Err(error) => Err(format!("it is neither JSON ({error}) nor test code")),
        }
    }

    fn of_object(keys: &Map<String, Json>) -> Result<Self, String> {
        let text = |key: &str| match keys.get(key) {
            None | Some(Json::Null) => Ok(String::new()),
            Some(Json::String(text)) => Ok(text.clone()),
            Some(_) => Err(format!("`{key}` is not text")),
        };
        let list = |key: &str| match keys.get(key) {
            Some(Json::Array(items)) => Ok(items),
            Some(_) => Err(format!("`{key}` is not a list")),
            None => Err(format!("`{key}` is missing")),
        };
        let setup = text("setup")?;
        match keys.get("tests") {
            Some(Json::String(code)) => return Self::of_tests(setup, vec![code.clone()]),
            Some(Json::Array(items)) => return Self::of_tests(setup, texts(items, "tests")?),
            Some(_) => return Err("`tests` is not a list of texts".to_owned()),
            None => {}
        }
        if !keys.contains_key("inputs") {
            return Err("it has neither `tests` nor `inputs` and `outputs`".to_owned());
        }
        let (inputs, outputs) = (list("inputs")?, list("outputs")?);
        if inputs.len() != outputs.len() || inputs.is_empty() {
            return Err(format!(
                "`inputs` and `outputs` must have the same length, at least 1: got {} and {}",
                inputs.len(),
                outputs.len()
            ));
        }
        let pairs = inputs.iter().zip(outputs);
        let function = text("fn_name")?;
        if function.is_empty() {
            let cases = pairs.map(|(input, output)| (lines(input), lines(output))).collect();
            return Ok(Self::Programs(cases));
        }
        let cases = pairs.map(|(input, output)| call(input, output)).collect::<Result<_, _>>()?;
        Ok(Self::Calls { function, setup, cases })
    }

    fn of_tests(setup: String, tests: Vec<String>) -> Result<Self, String> {
        if tests.iter().all(|test| test.trim().is_empty()) {
            return Err("there is no test".to_owned());
        }
        let tests = tests.into_iter().filter(|test| !test.trim().is_empty()).collect();
        Ok(Self::Assertions { setup, tests })
    }
}

fn texts(items: &[Json], key: &str) -> Result<Vec<String>, String> {
    let text = |item: &Json| {
        item.as_str().map(str::to_owned).ok_or_else(|| format!("`{key}` contains {item}, which is not text"))
    };
    items.iter().map(text).collect()
}

/// Input or output of a program: text, or a list of lines.
fn lines(value: &Json) -> String {
    match value {
        Json::String(text) => text.clone(),
        Json::Array(items) => items.iter().map(lines).collect::<Vec<_>>().join("\n"),
        other => other.to_string(),
    }
}

/// Arguments and value of a call: a list and any JSON, or both as text, an argument a line.
fn call(input: &Json, output: &Json) -> Result<(Vec<Json>, Json), String> {
    let parse =
        |text: &str| serde_json::from_str(text).map_err(|error| format!("`{text}` is not JSON: {error}"));
    match (input, output) {
        (Json::Array(arguments), _) => Ok((arguments.clone(), output.clone())),
        (Json::String(text), Json::String(value)) => {
            let arguments = text.lines().filter(|line| !line.trim().is_empty()).map(parse);
            Ok((arguments.collect::<Result<_, _>>()?, parse(value)?))
        }
        (Json::String(text), _) => {
            let arguments = text.lines().filter(|line| !line.trim().is_empty()).map(parse);
            Ok((arguments.collect::<Result<_, _>>()?, output.clone()))
        }
        _ => Ok((vec![input.clone()], output.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_form_is_read() {
        let tests = |setup: &str, tests: &[&str]| Truth::Assertions {
            setup: setup.to_owned(),
            tests: tests.iter().map(|&test| test.to_owned()).collect(),
        };
        let of = |json: Json| Truth::read(&json.to_string()).unwrap();
        assert_eq!(Truth::read("assert f(1) == 2").unwrap(), tests("", &["assert f(1) == 2"]));
        assert_eq!(Truth::read("[x] = [1]\nassert x").unwrap(), tests("", &["[x] = [1]\nassert x"]));
        assert_eq!(of(json!("assert f(1)")), tests("", &["assert f(1)"]));
        assert_eq!(of(json!(["assert f(1)", " "])), tests("", &["assert f(1)"]));
        assert_eq!(of(json!({"tests": ["assert a"], "setup": "a = 1"})), tests("a = 1", &["assert a"]));
        assert_eq!(of(json!({"tests": "assert a"})), tests("", &["assert a"]));
        let programs = |pairs: &[(&str, &str)]| {
            Truth::Programs(pairs.iter().map(|&(one, two)| (one.to_owned(), two.to_owned())).collect())
        };
        let cases = json!({"inputs": ["1\n2", ["3", "4"]], "outputs": ["3\n", 7]});
        assert_eq!(of(cases), programs(&[("1\n2", "3\n"), ("3\n4", "7")]));
        let calls = |cases: Vec<(Vec<Json>, Json)>| Truth::Calls {
            function: "f".to_owned(),
            setup: String::new(),
            cases,
        };
        let cases =
            json!({"fn_name": "f", "inputs": [[1, "a"], "[1, 2]\n3", 5], "outputs": [["x"], "[4]", null]});
        let expected = vec![
            (vec![json!(1), json!("a")], json!(["x"])),
            (vec![json!([1, 2]), json!(3)], json!([4])),
            (vec![json!(5)], json!(null)),
        ];
        assert_eq!(of(cases), calls(expected));
    }

    #[test]
    fn what_cannot_be_used_is_told() {
        let error = |json: Json| Truth::read(&json.to_string()).unwrap_err();
        insta::assert_snapshot!(error(json!({"test": "assert f"})), @"it has neither `tests` nor `inputs` and `outputs`");
        insta::assert_snapshot!(error(json!({"tests": [1]})), @"`tests` contains 1, which is not text");
        insta::assert_snapshot!(error(json!({"tests": 1})), @"`tests` is not a list of texts");
        insta::assert_snapshot!(error(json!({"tests": []})), @"there is no test");
        insta::assert_snapshot!(error(json!({"inputs": ["1"], "outputs": []})), @"`inputs` and `outputs` must have the same length, at least 1: got 1 and 0");
        insta::assert_snapshot!(error(json!({"inputs": ["1"]})), @"`outputs` is missing");
        insta::assert_snapshot!(error(json!({"inputs": ["x"], "outputs": ["1"], "fn_name": "f"})), @"`x` is not JSON: expected value at line 1 column 1");
        insta::assert_snapshot!(Truth::read("").unwrap_err(), @"there is no test");
        insta::assert_snapshot!(Truth::read("{\"inputs\"").unwrap_err(), @"it is neither JSON (EOF while parsing an object at line 1 column 9) nor test code");
    }
}
