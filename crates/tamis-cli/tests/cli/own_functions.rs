//! A loss and an advantage in the user's Python file: the same run as with the built-in ones, resumed to the
//! bit, and refused with file and line.

use serde_json::Value;

use crate::tamis::{Folder, Replaced as _, TINY, unfiltered};

/// Lists, so that no NumPy is needed.
const FUNCTIONS: &str = r#"
from math import exp

def loss(columns, low=0.2, high=0.2):
    losses, derivatives = [], []
    for new, old, advantage in zip(columns.logprobs, columns.old_logprobs, columns.advantages):
        ratio = exp(float(new) - float(old))
        free = -float(advantage) * ratio
        held = -float(advantage) * min(max(ratio, 1 - low), 1 + high)
        losses.append(max(free, held))
        derivatives.append(0.0 if held > free else free)
    return losses, derivatives

def plain(columns):
    """The policy gradient: no exponential, so that every bit is the built-in loss's."""
    pairs = [(float(logprob), float(advantage)) for logprob, advantage in zip(columns.logprobs, columns.advantages)]
    return [-advantage * logprob for logprob, advantage in pairs], [-advantage for _, advantage in pairs]

def advantage(columns):
    print(f"{len(columns.rewards)} rewards")
    result = []
    offsets = [int(offset) for offset in columns.group_offsets]
    for start, end in zip(offsets, offsets[1:]):
        rewards = [float(reward) for reward in columns.rewards[start:end]]
        mean = sum(rewards) / len(rewards)
        result += [reward - mean for reward in rewards]
    return result
"#;

fn folder() -> Folder {
    Folder::new()
        .with("config.yaml", &TINY.replaced("total_steps: 6", "total_steps: 4"))
        .with("my.py", FUNCTIONS)
}

/// The rows of a run without clocks, and without the shares of clipped tokens, which only built-in losses
/// report.
fn rows(folder: &Folder, name: &str) -> Vec<Vec<(String, Value)>> {
    let is_left_out = |name: &str| {
        ["time", "timing", "perf/", "per_second", "throughput", "clip"].iter().any(|part| name.contains(part))
    };
    let rows = folder.rows(name).into_iter();
    rows.map(|row| {
        let fields = row.as_object().cloned().unwrap_or_default().into_iter();
        fields.filter(|(name, _)| !is_left_out(name)).collect()
    })
    .collect()
}

#[track_caller]
fn is_near(one: &[Vec<(String, Value)>], other: &[Vec<(String, Value)>], tolerance: f64) {
    assert_eq!(one.len(), other.len());
    for (one, other) in one.iter().zip(other) {
        let names = |row: &[(String, Value)]| row.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        assert_eq!(names(one), names(other));
        for ((name, one), (_, other)) in one.iter().zip(other) {
            let is_same = match (one.as_f64(), other.as_f64()) {
                (Some(one), Some(other)) => (one - other).abs() <= tolerance * (1.0 + one.abs()),
                _ => one == other,
            };
            assert!(is_same, "{name}: {one} against {other}");
        }
    }
}

#[test]
fn a_loss_in_python_trains_as_the_built_in_one() {
    let folder = folder();
    for (name, built_in, own, tolerance) in [
        (
            "clip",
            "{kind: clip, dual_clip: null, clip_high: 0.3}",
            "{kind: python, path: my.py, kwargs: {high: 0.3}}",
            1e-6,
        ),
        ("plain", "{kind: reinforce}", "{kind: python, path: 'my.py:plain'}", 0.0),
    ] {
        let train = |run: &str, loss: &str| {
            let arguments = [format!("run.name={run}"), format!("objective.loss={loss}")];
            let more = ["objective.kl={in: loss, coefficient: 0.01}", "objective.entropy.coefficient=0.001"];
            let all =
                [&["train", "config.yaml"][..], &more, &arguments.each_ref().map(String::as_str)].concat();
            folder.tamis(&all).succeeds()
        };
        train(name, built_in);
        let own_name = format!("own_{name}");
        train(&own_name, own);
        is_near(&rows(&folder, name), &rows(&folder, &own_name), tolerance);
    }
}

#[test]
fn an_advantage_in_python_trains_as_the_built_in_one() {
    let folder = folder();
    folder.tamis(&["train", "config.yaml", "objective.advantage={kind: grpo, scale: none}"]).succeeds();
    let own = ["run.name=own", "objective.advantage={kind: python, path: my.py}"];
    folder.tamis(&[&["train", "config.yaml"][..], &own].concat()).succeeds();
    is_near(&rows(&folder, "tiny"), &rows(&folder, "own"), 1e-12);
    // What it prints is in the log, with the step.
    let log = folder.read("runs/own/run.log");
    let is_printed =
        |line: &&str| line.contains("objective.advantage (my.py), step ") && line.ends_with(": 16 rewards");
    let printed = log.lines().filter(is_printed).count();
    assert!(printed >= 4, "{log}");
    assert!(folder.read("runs/own/advantage.log").contains("16 rewards\n"));
}

#[test]
fn a_run_with_functions_of_its_own_is_resumed_to_the_bit() {
    let folder = folder();
    let own =
        ["objective.loss={kind: python, path: my.py}", "objective.advantage={kind: python, path: my.py}"];
    let train =
        |more: &[&str]| folder.tamis(&[&["train", "config.yaml"][..], &own, more].concat()).succeeds();
    train(&["run.name=whole"]);
    train(&["run.name=cut", "train.total_steps=2"]);
    folder.tamis(&["train", "--resume", "runs/cut", "train.total_steps=4"]).succeeds();
    assert!(folder.weights("whole", 4) == folder.weights("cut", 4));
}

#[test]
fn functions_that_cannot_be_used_are_refused_before_anything_is_generated() {
    let folder = folder().with(
        "bad.py",
        "def wrong(columns):\n    zeros = [0.0] * len(columns.mask)\n    return list(columns.logprobs), zeros\n\n\
         def broken(columns):\n    return columns.nothing\n\n\
         def reads_reference(columns):\n    zeros = [0.0 * float(x) for x in columns.ref_logprobs]\n    return zeros, zeros\n\n\
         def constant(columns):\n    return [1.0] * len(columns.mask), [0.0] * len(columns.mask)\n\n\
         def reads_tokens(columns):\n    return list(columns.token_rewards)[:len(columns.rewards)]\n",
    );
    let printed = |command: &str, setting: &str| {
        let arguments = match command {
            "train" => vec!["train", "config.yaml", setting],
            _ => vec!["config", "check", "config.yaml", setting],
        };
        let ended = folder.tamis(&arguments);
        assert!(!folder.join("runs/tiny").exists());
        assert_eq!(ended.code, Some(2), "{}", ended.shown());
        ended.stderr + &ended.stdout
    };
    for (setting, expected) in [
        ("objective.loss={kind: python, path: none.py}", "`objective.loss.path`: there is no file none.py"),
        ("objective.loss={kind: python}", "`objective.loss.path` is missing"),
        (
            "objective.loss={kind: python, path: 'bad.py:wrong'}",
            "objective.loss: `wrong` (bad.py:1) returns a wrong derivative for 11 of 11 tokens of a made batch",
        ),
        ("objective.loss={kind: python, path: 'bad.py:broken'}", "bad.py\", line 6, in broken"),
        (
            "objective.loss={kind: python, path: 'bad.py:absent'}",
            "bad.py has no function `absent`; it has wrong, broken",
        ),
        ("objective.advantage={kind: python, path: 'bad.py:broken'}", "bad.py\", line 6, in broken"),
        // Without a KL in the loss there is no reference, and without one in the reward none per token.
        ("objective.loss={kind: python, path: 'bad.py:reads_reference'}", "in reads_reference"),
        ("objective.advantage={kind: python, path: 'bad.py:reads_tokens'}", "in reads_tokens"),
        (
            "objective.loss={kind: python, path: 'bad.py:constant'}",
            "objective.loss: `constant` (bad.py:12) returns a loss that does not depend on `columns.logprobs`",
        ),
        (
            "objective.loss={kind: python, path: my.py, python: no-such-python}",
            "there is no program no-such-python",
        ),
    ] {
        for command in ["train", "check"] {
            let text = printed(command, setting);
            assert!(text.contains(expected), "{command} {setting}: {text}");
        }
    }
}

/// The check passes the run's own rewards by their names, as the run does.
#[test]
fn an_advantage_reads_the_scores_of_a_reward_by_its_name() {
    let folder = Folder::new()
        .with("config.yaml", &TINY.replaced("total_steps: 6", "total_steps: 1"))
        .with("my.py", "def advantage(columns):\n    return list(columns.scores['digits'])\n");
    let own = ["reward=[{kind: number, name: digits}]", "objective.advantage={kind: python, path: my.py}"];
    folder.tamis(&[&["train", "config.yaml"][..], &own].concat()).succeeds();
}

#[test]
fn one_completion_per_prompt_goes_with_an_advantage_that_compares_beyond_the_group() {
    let folder = Folder::new().with("config.yaml", &unfiltered(TINY).replaced("total_steps: 6", "total_steps: 2")).with(
        "my.py",
        "def advantage(columns):\n    mean = sum(map(float, columns.rewards)) / len(columns.rewards)\n    \
         return [float(reward) - mean for reward in columns.rewards]\n",
    );
    let own = ["rollout.n=1", "objective.advantage={kind: python, path: my.py}"];
    folder.tamis(&[&["train", "config.yaml"][..], &own].concat()).succeeds();
}

#[test]
fn a_number_that_is_not_finite_is_named_with_its_step_and_sample() {
    let functions = "import os\n\n\
        def loss(columns):\n    \
        log = 'runs/tiny/metrics.jsonl'\n    \
        bad = os.path.exists(log) and 'actor/lr' in open(log).read()\n    \
        scale = float('nan') if bad else 1.0\n    \
        pairs = [(float(x), float(a)) for x, a in zip(columns.logprobs, columns.advantages)]\n    \
        return [-a * x * scale for x, a in pairs], [-a for _, a in pairs]\n\n\
        def advantage(columns):\n    \
        return [float('inf') if row == 9 and len(columns.rewards) == 16 else 0.5 for row in range(len(columns.rewards))]\n";
    for (section, what) in [
        ("loss", "objective.loss in step 2: `loss` (my.py:3) returned a loss of NaN for token 0 of sample "),
        (
            "advantage",
            "objective.advantage in step 1: `advantage` (my.py:10) returned an advantage of inf for sample 1 of prompt ",
        ),
    ] {
        let folder = folder().with("my.py", functions);
        let own = format!("objective.{section}={{kind: python, path: my.py}}");
        let ended = folder.tamis(&["train", "config.yaml", &own]);
        assert_eq!(ended.code, Some(1), "{}", ended.shown());
        ended.says(what);
        let (_, named) = ended.stderr.split_once(" of prompt ").expect("a prompt");
        let number: String = named.chars().take_while(char::is_ascii_digit).collect();
        assert!(number.parse::<u64>().is_ok(), "{}", ended.shown());
    }
}
