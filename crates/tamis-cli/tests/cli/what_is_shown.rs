//! A run's lines about its prompts, its settings and its steps.

use crate::tamis::{Ended, Folder, Replaced as _, TINY, failures, words};

/// A template of characters that the tiny model knows: the number of messages follows the last of them.
const TEMPLATE: &str = "{{ messages[-1].content }}{{ messages|length }}";

const QUESTIONS: &str =
    "{\"question\": \"1+1=\", \"answer\": \"2\"}\n{\"question\": \"1+2=\", \"answer\": \"3\"}\n";
const TEXTS: &str = "{\"prompt\": \"1+1=\", \"answer\": \"2\"}\n{\"prompt\": \"1+2=\", \"answer\": \"3\"}\n";
const CHATS: &str = "{\"prompt\": \
     [{\"role\": \"user\", \"content\": \"1+1=\"}], \"answer\": \"2\"}\n{\"prompt\": \
     [{\"role\": \"system\", \"content\": \"1\"}, \
     {\"role\": \"user\", \"content\": \"1+2=\"}], \"answer\": \"3\"}\n";

fn trained(rows: &str, template: Option<&str>, overrides: &[&str]) -> Ended {
    trained_in(&Folder::tiny(), rows, template, overrides)
}

fn trained_in(folder: &Folder, rows: &str, template: Option<&str>, overrides: &[&str]) -> Ended {
    folder.write("rows.jsonl", rows);
    let mut arguments = words(
        "train tiny.yaml data.task=null ~data.arithmetic data.train=rows.jsonl data.train_batch_size=2 \
         ~data.gen_batch_size data.check_gold=off train.total_steps=1 ~train.ppo_mini_batch_size ~filter \
         ~schedule ~validate sft.steps=1 sft.batch_size=2",
    );
    if let Some(template) = template {
        folder.write("chat.jinja", template);
        arguments.push("model.chat_template=chat.jinja");
    }
    arguments.extend(overrides);
    folder.tamis(&arguments)
}

fn form(ended: &Ended) -> String {
    let about = |line: &&str| line.contains("first prompt") || line.contains("prompt_format");
    ended.stderr.lines().filter(about).collect::<Vec<_>>().join("\n")
}

#[test]
fn questions_become_user_messages_where_the_model_has_a_template() {
    let printed = |rows, template, overrides: &[&str]| form(&trained(rows, template, overrides).succeeds());
    insta::assert_snapshot!(printed(QUESTIONS, None, &[]), @"first prompt (4 tokens, text without a chat template): 1+1=");
    insta::assert_snapshot!(printed(QUESTIONS, Some(TEMPLATE), &[]), @"first prompt (5 tokens, by the chat template): 1+1=1");
    insta::assert_snapshot!(printed(QUESTIONS, Some(TEMPLATE), &["data.prompt_format=text"]), @"
warning: `model.chat_template` has no effect: `data.prompt_format` is `text`
first prompt (4 tokens, text without a chat template): 1+1=
");
    insta::assert_snapshot!(printed(QUESTIONS, Some(TEMPLATE), &["data.system_prompt=2"]), @"first prompt (5 tokens, by the chat template): 1+1=2");
    // A column that is named as the prompt counts as a question, too.
    let renamed = QUESTIONS.replaced("question", "task");
    insta::assert_snapshot!(printed(&renamed, Some(TEMPLATE), &["data.columns.prompt=task"]), @"first prompt (5 tokens, by the chat template): 1+1=1");
}

/// Fields of messages and columns for the template reach it, as in transformers.
#[test]
fn the_template_gets_whole_messages_and_the_columns_of_the_row() {
    let template = "{{ messages[0].content }}{{ messages[0].name }}{{ messages[1].thinking }}{{ mode }}";
    let row = "{\"prompt\": [{\"role\": \"user\", \"content\": \"1+1=\", \"name\": \"7\"}, \
         {\"role\": \"tool\", \"content\": null, \"reasoning_content\": \"8\"}], \
         \"chat_template_kwargs\": {\"mode\": \"9\"}, \"answer\": \"2\"}\n";
    let rows = row.to_owned() + &row.replaced("\"1+1=\"", "\"1+2=\"");
    insta::assert_snapshot!(form(&trained(&rows, Some(template), &[]).succeeds()), @"first prompt (7 tokens, by the chat template): 1+1=789");
    let text = "{\"question\": \"1+1=\", \"answer\": \"2\", \"tools\": [{\"name\": \"f\"}]}\n";
    trained(&text.replaced("1+1=", "1+2=").repeat(2), None, &[]).succeeds().says(
        "warning: the column `tools` is for the chat template, \
        but rows that have it are sent as bare text: it has no effect there",
    );
}

#[test]
fn the_text_of_a_column_prompt_stays_text_and_is_warned_of() {
    let printed = |rows, template, overrides: &[&str]| form(&trained(rows, template, overrides).succeeds());
    insta::assert_snapshot!(printed(TEXTS, None, &[]), @"first prompt (4 tokens, text without a chat template): 1+1=");
    insta::assert_snapshot!(printed(TEXTS, Some(TEMPLATE), &[]), @"
warning: 2 of 2 prompts are the text of a column `prompt` and are sent without the model's chat template: data.prompt_format=chat makes each a user message, data.prompt_format=text confirms that this is intended
first prompt (4 tokens, text without a chat template): 1+1=
");
    insta::assert_snapshot!(printed(TEXTS, Some(TEMPLATE), &["data.prompt_format=text"]), @"
warning: `model.chat_template` has no effect: `data.prompt_format` is `text`
first prompt (4 tokens, text without a chat template): 1+1=
");
    insta::assert_snapshot!(printed(TEXTS, Some(TEMPLATE), &["data.prompt_format=chat"]), @"first prompt (5 tokens, by the chat template): 1+1=1");
}

#[test]
fn rows_of_messages_go_through_the_template() {
    let printed = |overrides: &[&str]| form(&trained(CHATS, Some(TEMPLATE), overrides).succeeds());
    insta::assert_snapshot!(printed(&[]), @"first prompt (5 tokens, by the chat template): 1+1=1");
    insta::assert_snapshot!(printed(&["data.prompt_format=chat"]), @"first prompt (5 tokens, by the chat template): 1+1=1");
    insta::assert_snapshot!(printed(&["data.system_prompt=2"]), @"first prompt (5 tokens, by the chat template): 1+1=2");
}

#[test]
fn prompts_that_cannot_have_the_form_asked_for() {
    let printed = |rows, template, overrides: &[&str]| trained(rows, template, overrides).short();
    insta::assert_snapshot!(failures([
        printed(QUESTIONS, None, &["data.prompt_format=chat"]),
        printed(CHATS, Some(TEMPLATE), &["data.prompt_format=text"]),
        printed(QUESTIONS, None, &["data.system_prompt=2"]),
        printed(TEXTS, Some(TEMPLATE), &["data.system_prompt=2"]),
        printed(QUESTIONS, Some(TEMPLATE), &["data.system_prompt=2", "data.prompt_format=text"]),
        printed(CHATS, None, &[]),
    ]), @r"
    exit code 2
    error: `data.prompt_format`: prompt 0 of the training data (rows.jsonl, line 1): data.prompt_format is `chat`, but the model has no chat template
      at command line: data.prompt_format=«chat»
      hint: add chat_template.jinja to the model's folder or name one with model.chat_template, or set data.prompt_format=text
    error: `data.prompt_format`: prompt 0 of the training data (rows.jsonl, line 1): its prompt is a list of messages, but data.prompt_format is `text`
      at command line: data.prompt_format=«text»
      hint: set data.prompt_format=auto (or chat) to render messages with the chat template
    error: `data.system_prompt`: prompt 0 of the training data (rows.jsonl, line 1): it is sent as bare text, but data.system_prompt needs a conversation in the model's chat template
      at command line: data.system_prompt=«2»
      hint: the model has no chat template: add chat_template.jinja to the model's folder or name one with model.chat_template, or remove data.system_prompt
    error: `data.system_prompt`: prompt 0 of the training data (rows.jsonl, line 1): it is sent as bare text, but data.system_prompt needs a conversation in the model's chat template
      at command line: data.system_prompt=«2»
      hint: set data.prompt_format=chat, which makes a user message of every text, or remove data.system_prompt
    error: `data.system_prompt` has no place: `data.prompt_format` is `text`, which sends bare text without the chat template
      at command line: data.system_prompt=«2»
      hint: set `data.prompt_format: chat`, or remove `data.system_prompt`
    error: `model`: prompt 0 of the training data (rows.jsonl, line 1) cannot be prepared: the tokenizer has no chat template; add chat_template.jinja to its folder, or give prompts as text instead of messages
      at tiny.yaml:2:1: «model»:
    ");
}

#[test]
fn a_template_around_every_text_prompt() {
    let with = |rows: &str, template: &str| {
        let folder = Folder::tiny().with("around.jinja", template);
        trained_in(&folder, rows, None, &["data.prompt_template=around.jinja"])
    };
    insta::assert_snapshot!(form(&with(QUESTIONS, "\n{{ content | trim }}+3=\n").succeeds()), @"first prompt (7 tokens, text without a chat template): 1+1=+3=");
    insta::assert_snapshot!(failures([
        with(CHATS, "{{ content }}"),
        with(QUESTIONS, "{{ content"),
        trained(QUESTIONS, None, &["data.prompt_template=missing.jinja"]),
    ]), @r"
    exit code 2
    error: `data.prompt_template`: prompt 0 of the training data (rows.jsonl, line 1) cannot be prepared: data.prompt_template goes around text, but this prompt is a list of messages: remove the setting, or give prompts as text
      at command line: data.prompt_template=«around.jinja»
    error: `data.prompt_template`: around.jinja: the chat template does not parse (line 1): syntax error: unexpected end of input, expected end of variable block
      at command line: data.prompt_template=«around.jinja»
    error: `data.prompt_template`: failed to read the template missing.jinja: No such file or directory (os error 2)
      at command line: data.prompt_template=«missing.jinja»
      hint: name a file with a Jinja template, or leave it out
    ");
}

#[test]
fn a_resumed_run_and_eval_show_the_same_first_prompt() {
    let folder = Folder::tiny();
    let template = "{{ messages[-1].content }}1";
    folder.write("chat.jinja", template);
    let template = "model.chat_template=chat.jinja";
    let first = form(&folder.tamis(&["train", "tiny.yaml", template, "train.total_steps=2"]).succeeds());
    insta::assert_snapshot!(first, @"first prompt (5 tokens, by the chat template): 9+2=1");
    let resumed = form(&folder.tamis(&["train", "--resume", "runs/tiny", "train.total_steps=3"]).succeeds());
    assert_eq!(resumed, first);
    let evaluated = form(&folder.tamis(&["eval", "runs/tiny"]).succeeds());
    insta::assert_snapshot!(evaluated, @"first prompt (5 tokens, by the chat template): 9+8=1");
    // Without a template, prompts of the built-in tasks stay text.
    let bare = Folder::tiny();
    insta::assert_snapshot!(form(&bare.tamis(&["train", "tiny.yaml", "train.total_steps=1"]).succeeds()), @"first prompt (4 tokens, text without a chat template): 9+2=");
}

/// Every number as `N`, so that a line does not depend on weights and clock.
fn without_numbers(text: &str) -> String {
    let mut shown = String::new();
    let mut is_number = false;
    for character in text.chars() {
        let goes_on = character.is_ascii_digit() || (is_number && matches!(character, '.' | 'e' | '-'));
        if !goes_on {
            shown.push(character);
        } else if !is_number {
            shown.push('N');
        }
        is_number = goes_on;
    }
    // A clock decides between 950 and 1.2k.
    shown.replace("Nk tok/s", "N tok/s").replace("NM tok/s", "N tok/s")
}

/// The first line that begins so, without its numbers.
fn line(ended: &Ended, start: &str) -> String {
    let found = ended.stderr.lines().find(|line| line.starts_with(start));
    without_numbers(found.unwrap_or_else(|| panic!("no line `{start}`: {}", ended.stderr)))
}

#[test]
fn the_line_of_a_step_names_what_it_shows() {
    let run = |overrides: &[&str]| {
        let folder = Folder::tiny();
        let run = "train tiny.yaml train.total_steps=2 validate.test_freq=0 validate.before_train=false";
        let mut arguments = words(run);
        arguments.extend(overrides);
        folder.tamis(&arguments).succeeds()
    };
    // One update a step: the policy's own divergence is 0, and not shown.
    insta::assert_snapshot!(line(&run(&["train.ppo_mini_batch_size=4", "objective.kl.in=none"]), "step 1/2 "), @"step N/N  reward N (std N)  of all generated: reward N, accuracy N%  rounds N  dropped N%  length N  entropy N  grad N  lr N  time Ns (generation Ns = N% at N tok/s, update Ns = N% at N tok/s, MFU N%)  Ns left");
    // No filter: what was generated is what was trained on, and nothing is dropped.
    let loss = "objective.kl={in: loss, estimator: k3, coefficient: 0.1}";
    let kl = ["~filter", "~schedule", "~data.gen_batch_size", "~sft", loss];
    insta::assert_snapshot!(line(&run(&kl), "step 1/2 "), @"step N/N  reward N (std N)  accuracy N%  zero \
         advantage in N% of groups  length N (N% truncated)  entropy N  ref_kl N  grad N  lr N  time Ns \
         (generation Ns = N% at N tok/s, update Ns = N% at N tok/s, MFU N%)  Ns left");
    let reward = "objective.kl={in: reward, estimator: k1, coefficient: 0.1}";
    let penalty = ["~filter", "~schedule", "~data.gen_batch_size", reward];
    insta::assert_snapshot!(line(&run(&penalty), "step 1/2 "), @"step N/N  reward N (std N)  accuracy N%  \
         zero advantage in N% of groups  length N  entropy N  kl_penalty N  grad N  lr N  time Ns \
         (generation Ns = N% at N tok/s, update Ns = N% at N tok/s, MFU N%)  Ns left");
    let several = run(&["objective.kl.in=none"]);
    insta::assert_snapshot!(line(&several, "step 1/2 "), @"step N/N  reward N (std N)  of all generated: \
         reward N, accuracy N%  rounds N  dropped N%  length N  entropy N  ppo_kl N  grad N  lr N  time Ns \
         (generation Ns = N% at N tok/s, update Ns = N% at N tok/s, MFU N%)  Ns left");
    // Each line comes once if there is no terminal, and the last step has no time left.
    assert_eq!(several.stderr.lines().filter(|line| line.starts_with("step 1/2 ")).count(), 1);
    assert!(!line(&several, "step 2/2 ").contains("left"));
    run(&["run.loggers=[jsonl]"]).never_says("step 1/2 ");
}

#[test]
fn an_accuracy_is_called_one_and_a_mean_score_is_not() {
    let folder = Folder::tiny();
    let correct = folder.tamis(&["train", "tiny.yaml", "train.total_steps=2"]).succeeds();
    insta::assert_snapshot!(line(&correct, "validation after step 2"), @"validation after step N: accuracy \
         N% (N prompts), mean length N tokens");
    let closing = without_numbers(&correct.stdout);
    let table = closing.lines().find(|line| line.contains("held-out")).unwrap_or_default();
    insta::assert_snapshot!(table.split_whitespace().collect::<Vec<_>>().join(" "), @"accuracy (N held-out) N% N%");
    let reward = "reward=[{kind: length, max_length: 3}]";
    let validated = [reward, "data.val=rows.jsonl", "validate.test_freq=1", "validate.before_train=true"];
    let scored = trained(QUESTIONS, None, &validated).succeeds();
    insta::assert_snapshot!(line(&scored, "validation after step 1"), @"validation after step N: mean score \
         -N (N prompts), mean length N tokens");
    let closing = without_numbers(&scored.stdout);
    let table = closing.lines().find(|line| line.starts_with("mean score (")).unwrap_or_default();
    insta::assert_snapshot!(table.split_whitespace().collect::<Vec<_>>().join(" "), @"mean score (N prompts) -N -N");
}

#[test]
fn the_objective_and_what_differs_from_its_preset_stand_at_the_start() {
    let folder = Folder::tiny();
    let overrides = ["preset=grpo", "train.total_steps=1", "objective.loss.clip_high=0.28"];
    let mut arguments = vec!["train", "tiny.yaml"];
    arguments.extend(overrides);
    let ended = folder.tamis(&arguments).succeeds();
    let about = |line: &&str| line.starts_with("objective") || line.contains("(preset ");
    let shown: Vec<&str> = ended.stderr.lines().filter(about).collect();
    insta::assert_snapshot!(shown.join("\n"), @"
objective.loss.clip_high: 0.28 (preset grpo has 0.2; command line)
filter: variance on acc (preset grpo has none; tiny.yaml:13)
objective: preset grpo; clip 0.2/0.28; seq-mean-token-mean; KL k3 times 0.04 in the loss; advantage grpo (divided by the deviation)
");
    // The run's own configuration and `config show` contain every value, and what it follows.
    let of_run = folder.read("runs/tiny/config.yaml");
    arguments.splice(0..1, ["config", "show"]);
    let here = folder.join("").display().to_string();
    assert_eq!(folder.tamis(&arguments).succeeds().stdout, of_run.replace(here.trim_end_matches('/'), "DIR"));
    let followed: Vec<&str> =
        of_run.lines().filter(|line| line.contains(" follows ")).map(str::trim).collect();
    insta::assert_snapshot!(followed.join("\n"), @"
head_dim: 8  # 8 follows hidden_size / num_heads
metric: acc  # acc follows reward
rounds_in_flight: 1  # 1 follows schedule.mode, rollout.backend
");
    // A resumed run has the same.
    folder.tamis(&["train", "--resume", "runs/tiny", "train.total_steps=2"]).succeeds();
    assert!(folder.read("runs/tiny/config.yaml").contains("metric: acc  # acc follows reward"), "{of_run}");
}

#[test]
fn the_accuracy_of_a_step_is_that_of_acc() {
    let both = "reward: [{kind: number}, {kind: format, pattern: '^.{2,9}$', weight: 0.1}]";
    let judge = "reward: [{kind: command, argv: [python3, judge.py], num_processes: 1}]";
    let program = "import json, sys\nfor line in sys.stdin:\n    request = json.loads(line)\n    \
                   print(json.dumps({'id': request['id'], 'score': len(request['completion']) % 2}), flush=True)\n";
    let limit = "schedule: {max_num_gen_batches: 2, on_limit: use_partial}";
    for (reward, metric) in [(both, "format"), (both, "length"), (both, "acc"), (judge, "score")] {
        let folder = Folder::new().with("judge.py", program);
        let config = TINY
            .replaced("reward: [{kind: number}]", reward)
            .replaced("filter: {kind: variance}", &format!("filter: {{kind: variance, metric: {metric}}}"))
            .replaced("schedule: {max_num_gen_batches: 50}", limit);
        folder.write("config.yaml", &config);
        let ended = folder.tamis(&["train", "config.yaml"]).succeeds();
        let lines = format!("{}{}", ended.stdout, ended.stderr);
        let mut num_steps = 0;
        for metrics in folder.read("runs/tiny/metrics.jsonl").lines() {
            let metrics: serde_json::Value = serde_json::from_str(metrics).expect("JSON");
            // Validation before the first step has none.
            let Some(step) = metrics["step"].as_u64().filter(|_| metrics["groups/generated"].is_number())
            else {
                continue;
            };
            let start = format!("step {step}/6  ");
            let line = lines.lines().find(|line| line.starts_with(&start)).expect("a line");
            let acc = metrics["all/rewards/acc/mean"].as_f64();
            let shown = acc.map(|acc| format!("accuracy {:.1}%", 100.0 * acc));
            assert_eq!(acc.is_some(), metric != "score", "{metric}");
            match shown {
                Some(shown) => assert!(line.contains(&shown), "{metric}: {shown} in {line}"),
                None => assert!(!line.contains("accuracy"), "{line}"),
            }
            num_steps += 1;
        }
        assert_eq!(num_steps, 6, "{metric}");
    }
}
