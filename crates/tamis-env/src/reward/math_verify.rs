//! `math_verify`: the library math-verify, in separate processes, called as by TRL's `accuracy_reward`.
//! Reference: `trl.rewards.accuracy_reward`, 1.16.0, with math-verify 0.9.0. The program that tamis ships
//! reads requests like any external reward ([`protocol`](super::command::protocol)). It needs only a row's
//! ground truth, so nothing else is sent. It reports its package versions first. Another antlr than the
//! tested one changes the library's verdicts, so it is refused.

use tamis_core::setting::Program;
use tamis_data::prompt::{Prompt, PromptContent};
use tamis_process::interpreter;

use super::as_written::as_written;
use super::command::protocol::{Introduced, KnownRows};
use super::command::{CommandReward, ProcessPool};
use super::error::RewardError;
use super::failure::RewardFailure;
use super::function::{Logged, RewardFunction, RewardInput, RewardOutcome};
use super::gsm8k::answer_part;
use super::settings::{BuildError, Nature, RewardContext, RewardFile, RewardSettings};

/// The program: `python3 tamis_math_verify.py`.
pub const PROGRAM: &str = include_str!("../../python/tamis_math_verify.py");

/// Name of the program's file.
pub const FILE: &str = "tamis_math_verify.py";

/// The fix if the packages are missing or have other versions.
const INSTALL: &str = "give it an environment of its own: `python3 -m venv .venv-math && .venv-math/bin/pip install \
    math-verify==0.9.0 latex2sympy2_extended==1.11.0 antlr4-python3-runtime==4.13.2`, and set its `python` to \
    .venv-math/bin/python";

tamis_core::settings! {
    /// Interpreter with math-verify, and limits on its processes. `score` and `acc` are 1 if the library
    /// finds the completion's answer equal to the ground truth, otherwise 0. No answer if it cannot read the
    /// ground truth. A ground truth that is a whole GSM8K solution is reduced to its answer.
    pub struct MathVerifySettings {
        /// Python interpreter with `math-verify` 0.9.0, `latex2sympy2_extended` 1.11.0 and
        /// `antlr4-python3-runtime` 4.13.2; `run.python`: that of this key.
        python: Program = Program::of_run(), NotEmpty, Free;
        /// Number of processes that score at the same time.
        num_processes: usize = 2, Between(1.0, 1024.0), Free;
        ..pool: ProcessPool;
    }
}

/// Sends completions to the program.
struct MathVerify {
    command: CommandReward,
}

impl RewardSettings for MathVerifySettings {
    fn build(&self, context: &RewardContext<'_>) -> Result<Box<dyn RewardFunction>, BuildError> {
        let program = context.host.install(FILE, PROGRAM)?;
        let argv = vec![interpreter(&self.python.to_string_lossy()), program.display().to_string()];
        let command = self.pool.start(argv, self.num_processes, &program, None, context)?;
        let introduced = command.introduce(&KnownRows::default()).map_err(|failure| match failure {
            RewardFailure::Interrupted => RewardError::Interrupted.into(),
            failure => context.fail(&format!("math-verify cannot be used: {failure}"), INSTALL),
        })?;
        let introduced = match introduced {
            Introduced::Function(introduced) => introduced,
            Introduced::Missing(problem) => return Err(context.fail(&problem, INSTALL)),
        };
        if let Some(problem) = introduced.problem {
            return Err(context.fail(&problem, INSTALL));
        }
        context.listener.say(&format!("reward `{}`: {}", context.name, introduced.signature));
        Ok(Box::new(MathVerify { command }))
    }

    fn nature(&self) -> Nature {
        Nature { gives_acc: true, ..Nature::EXTERNAL }
    }

    fn gives_outcome(&self) -> bool {
        true
    }

    fn files(&self) -> Vec<RewardFile> {
        vec![RewardFile { key: "python".to_owned(), path: self.python.0.clone(), hint: None }]
    }
}

impl RewardFunction for MathVerify {
    fn score(&self, batch: &[RewardInput<'_>]) -> Vec<RewardOutcome> {
        self.score_logged(batch).0
    }

    fn score_logged(&self, batch: &[RewardInput<'_>]) -> (Vec<RewardOutcome>, Vec<Logged>) {
        let prompts: Vec<Prompt> = batch.iter().map(|input| bare(input.prompt)).collect();
        let inputs: Vec<RewardInput<'_>> = prompts
            .iter()
            .zip(batch)
            .map(|(prompt, input)| RewardInput::text(prompt, input.completion))
            .collect();
        self.command.score_logged(&inputs)
    }

    fn concurrency(&self) -> usize {
        self.command.concurrency()
    }

    fn gold_completions(&self, prompt: &Prompt) -> Vec<String> {
        let Some(truth) = &prompt.ground_truth else { return Vec::new() };
        let answer = as_written(answer_part(truth).unwrap_or(truth)).trim();
        let plain = answer.trim_matches('$');
        vec![format!("\\boxed{{{plain}}}"), format!("${plain}$"), answer.to_owned()]
    }
}

/// The part of a row that the program needs.
fn bare(prompt: &Prompt) -> Prompt {
    let truth = prompt.ground_truth.as_deref();
    Prompt {
        id: prompt.id,
        content: PromptContent::Text(String::new()),
        ground_truth: truth.map(|truth| answer_part(truth).unwrap_or(truth).to_owned()),
        data_source: String::new(),
        columns: serde_json::Map::new(),
        images: Vec::new(),
        place: None,
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use super::*;
    use crate::reward::Listener;
    use crate::reward::gold::check_gold;
    use crate::reward::judge::JudgeSettings;
    use crate::reward::listener::Heard;
    use crate::reward::model::ModelSettings;
    use crate::reward::settings::RewardHost;
    use crate::reward::{NamedReward, Rewards, has_python, test_prompt};

    /// A stand-in for the library: a ground truth is read as it is, and an answer is the content of a box.
    const LIBRARY: &str = r#"
import os
class LatexExtractionConfig:
    def __init__(self, **settings):
        assert settings["boxed_match_priority"] == 0 and settings["try_extract_without_anchor"] is False
class Endless:
    def __str__(self):
        raise ValueError("Exceeds the limit (4300 digits)")
def parse(text, extraction_config=None, extraction_mode=None, parsing_timeout=None):
    print("it prints")
    assert parsing_timeout == 10
    if text == "unreadable":
        return []
    if extraction_config is None:
        return [text]
    assert extraction_mode == "first_match"
    if text == "raise":
        raise ValueError("no good")
    if text == "endless":
        return [Endless()]
    if text == "die":
        os._exit(3)
    return [text[7:-1]] if text.startswith("\\boxed{") else []
def verify(gold, answer, timeout_seconds):
    assert timeout_seconds == 5
    return gold == answer
"#;

    struct TestHost<'a>(&'a Path);

    impl RewardHost for TestHost<'_> {
        fn install(&self, name: &str, program: &str) -> Result<PathBuf, BuildError> {
            std::fs::write(self.0.join(name), program).unwrap();
            Ok(self.0.join(name))
        }

        fn check_judge(&self, _: &JudgeSettings, _: &RewardContext<'_>) -> Result<(), BuildError> {
            unreachable!()
        }

        fn connect_judge(
            &self,
            _: &JudgeSettings,
            _: &RewardContext<'_>,
        ) -> Result<Box<dyn RewardFunction>, BuildError> {
            unreachable!()
        }

        fn check_model(&self, _: &ModelSettings, _: &RewardContext<'_>) -> Result<(), BuildError> {
            unreachable!()
        }

        fn connect_model(
            &self,
            _: &ModelSettings,
            _: &RewardContext<'_>,
        ) -> Result<Box<dyn RewardFunction>, BuildError> {
            unreachable!()
        }
    }

    /// The function, over an interpreter that finds only these packages, and its messages.
    fn built(
        packages: &[(&str, &str)],
    ) -> (tempfile::TempDir, Result<Box<dyn RewardFunction>, BuildError>, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        std::fs::write(path.join("math_verify.py"), LIBRARY).unwrap();
        let normalization =
            "class NormalizationConfig:\n    def __init__(self, units):\n        assert units\n";
        std::fs::write(path.join("latex2sympy2_extended.py"), normalization).unwrap();
        for (name, version) in packages {
            let about = path.join(format!("{}-{version}.dist-info", name.replace('-', "_")));
            std::fs::create_dir(&about).unwrap();
            let text = format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n");
            std::fs::write(about.join("METADATA"), text).unwrap();
        }
        let python = path.join("python");
        // `-S`: without the packages of this machine.
        let script = format!("#!/bin/sh\nPYTHONPATH='{}' exec python3 -S \"$@\"\n", path.display());
        std::fs::write(&python, script).unwrap();
        std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
        let heard = Arc::new(Heard::default());
        let listener: Arc<dyn Listener> = heard.clone();
        let host = TestHost(path);
        let context = RewardContext { listener: &listener, host: &host, ..RewardContext::alone("judge", 8) };
        let settings = MathVerifySettings { python: Program(python), ..MathVerifySettings::default() };
        let function = settings.build(&context);
        (folder, function, heard.text())
    }

    const TESTED: [(&str, &str); 3] =
        [("math-verify", "0.9.0"), ("latex2sympy2_extended", "1.11.0"), ("antlr4-python3-runtime", "4.13.2")];

    #[test]
    fn verdicts_are_the_librarys() {
        if !has_python() {
            return;
        }
        let (_folder, function, said) = built(&TESTED);
        let function = function.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(
            said,
            "reward `judge`: math-verify 0.9.0, latex2sympy2_extended 1.11.0, antlr4-python3-runtime 4.13.2"
        );
        let judge = |truth: Option<&str>, completion: &str| {
            let prompt = Prompt { ground_truth: truth.map(str::to_owned), ..test_prompt("") };
            function.score(&[RewardInput::text(&prompt, completion)]).remove(0)
        };
        assert_eq!(judge(Some("4"), r"\boxed{4}"), RewardOutcome::verified(1.0, true));
        assert_eq!(judge(Some("4"), "4"), RewardOutcome::verified(0.0, false));
        assert_eq!(judge(Some("so\n#### 1,024"), r"\boxed{1,024}"), RewardOutcome::verified(1.0, true));
        assert_eq!(judge(Some("unreadable"), r"\boxed{4}"), RewardOutcome::NoAnswer);
        assert_eq!(judge(None, r"\boxed{4}"), RewardOutcome::NoAnswer);
        // The answer that it read is the completion's vote.
        let prompt = Prompt { ground_truth: Some("4".to_owned()), ..test_prompt("") };
        let inputs =
            [r"so \boxed{5}", r"\boxed{5}", "5"].map(|completion| RewardInput::text(&prompt, completion));
        let (_, logged) = function.score_logged(&inputs);
        let preds: Vec<Option<&str>> =
            logged.iter().map(|logged| logged.columns.get("pred").map(String::as_str)).collect();
        assert_eq!(preds, [None, Some("5"), None]);
        assert_eq!(judge(Some("4"), "endless"), RewardOutcome::verified(0.0, false));
        let RewardOutcome::Failed(failure) = judge(Some("4"), "raise") else { panic!("no failure") };
        assert_eq!(failure.to_string(), "the function failed: math-verify failed: ValueError: no good");
        // If it cannot stop a completion's evaluation, that completion gets no score, and the next one is
        // judged.
        assert!(matches!(judge(Some("4"), "die"), RewardOutcome::Failed(RewardFailure::Ended { .. })));
        assert_eq!(judge(Some("4"), r"\boxed{4}"), RewardOutcome::verified(1.0, true));
        let prompts: Vec<Prompt> = ["4", "$5$", "x\n#### 6", "72.0", "unreadable"].map(test_prompt).into();
        let named = NamedReward { nature: Nature::EXTERNAL, ..NamedReward::verifier("judge", function) };
        let report = check_gold(&prompts, &Rewards::new(vec![named]).unwrap()).unwrap();
        let found = &report.functions[0];
        // The stand-in reads `$5$` as it is, and `72.0` differs from the 72 that a model writes.
        assert_eq!((found.checked, found.accepted, found.unanswered), (5, 2, 1), "{report}");
    }

    #[test]
    fn other_packages_are_refused_with_what_to_install() {
        if !has_python() {
            return;
        }
        let refused = |packages: &[(&str, &str)]| {
            let (folder, function, _) = built(packages);
            let Err(BuildError::Setting { message, hint }) = function.map(drop) else {
                panic!("not refused")
            };
            assert!(hint.contains(
                "pip install math-verify==0.9.0 latex2sympy2_extended==1.11.0 antlr4-python3-runtime==4.13.2"
            ));
            let place = folder.path().display().to_string();
            let message = message.replace(&place, "FOLDER");
            let at = message.find(' ').unwrap_or(0);
            // Which interpreter it is differs by machine.
            let (start, rest) = message.split_at(at + " `judge`: ".len());
            format!("{start}PYTHON {}", rest.split_once(' ').map_or("", |(_, rest)| rest))
        };
        insta::assert_snapshot!(refused(&[]), @"reward `judge`: PYTHON lacks math-verify and latex2sympy2_extended and antlr4-python3-runtime");
        insta::assert_snapshot!(refused(&TESTED[..2]), @"reward `judge`: PYTHON lacks antlr4-python3-runtime");
        let mut other = TESTED;
        other[2].1 = "4.9.3";
        insta::assert_snapshot!(refused(&other), @"reward `judge`: PYTHON has antlr4-python3-runtime 4.9.3, with which math-verify gives other verdicts than with 4.13.2 (hydra-core brings 4.9.3)");
        // The page and the program name the versions that the hint does.
        let page =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/rewards.md")).unwrap();
        for (name, version) in TESTED {
            assert!(page.contains(&format!("{name}=={version}")), "{name}");
            assert!(PROGRAM.contains(&format!("\"{name}\": \"{version}\"")), "{name}");
        }
    }
}
