//! What a run says of its prompts, its settings and its steps.

mod tamis;

use tamis::{Ended, Folder};

/// A template that shows its parts with characters of the tiny model's alphabet: `+` and the number of messages end the prompt.
const TEMPLATE: &str = "{{ messages[-1].content }}+{{ messages|length }}=";

const QUESTIONS: &str =
    "{\"question\": \"1+1\", \"answer\": \"2=\"}\n{\"question\": \"1+2\", \"answer\": \"3=\"}\n";
const TEXTS: &str = "{\"prompt\": \"1+1\", \"answer\": \"2=\"}\n{\"prompt\": \"1+2\", \"answer\": \"3=\"}\n";
const CHATS: &str = "{\"prompt\": [{\"role\": \"user\", \"content\": \"1+1\"}], \"answer\": \"2=\"}\n{\"prompt\": [{\"role\": \"system\", \"content\": \"1\"}, {\"role\": \"user\", \"content\": \"1+2\"}], \"answer\": \"3=\"}\n";

/// Trains one step on rows of a file, with a template or without, and overrides.
fn trained(rows: &str, template: Option<&str>, overrides: &[&str]) -> Ended {
    trained_in(&Folder::tiny(), rows, template, overrides)
}

fn trained_in(folder: &Folder, rows: &str, template: Option<&str>, overrides: &[&str]) -> Ended {
    folder.write("rows.jsonl", rows);
    let mut arguments = vec![
        "train",
        "tiny.yaml",
        "data.task=null",
        "~data.arithmetic",
        "data.train=rows.jsonl",
        "data.train_batch_size=2",
        "~data.gen_batch_size",
        "data.check_gold=off",
        "train.total_steps=1",
        "~train.ppo_mini_batch_size",
        "~filter",
        "~schedule",
        "~validate",
        "warm_start={steps: 1, batch_size: 2}",
    ];
    if let Some(template) = template {
        folder.write("chat.jinja", template);
        arguments.push("model.chat_template=chat.jinja");
    }
    arguments.extend(overrides);
    folder.tamis(&arguments)
}

/// The lines about the form of the prompts.
fn form(ended: &Ended) -> String {
    let about = |line: &&str| line.contains("first prompt") || line.contains("prompt_format");
    ended.stderr.lines().filter(about).collect::<Vec<_>>().join("\n")
}

#[test]
fn questions_become_user_messages_where_the_model_has_a_template() {
    let said = |rows, template, overrides: &[&str]| form(&trained(rows, template, overrides).succeeds());
    insta::assert_snapshot!(said(QUESTIONS, None, &[]), @"first prompt (3 tokens, text without a chat template): 1+1");
    insta::assert_snapshot!(said(QUESTIONS, Some(TEMPLATE), &[]), @"first prompt (6 tokens, by the chat template): 1+1+1=");
    insta::assert_snapshot!(said(QUESTIONS, Some(TEMPLATE), &["data.prompt_format=text"]), @"
warning: `model.chat_template` has no effect: `data.prompt_format` is `text`
first prompt (3 tokens, text without a chat template): 1+1
");
    insta::assert_snapshot!(said(QUESTIONS, Some(TEMPLATE), &["data.system_prompt=2"]), @"first prompt (6 tokens, by the chat template): 1+1+2=");
    // A column of another name that is said to hold the prompt is a question too.
    let renamed = QUESTIONS.replace("question", "task");
    insta::assert_snapshot!(said(&renamed, Some(TEMPLATE), &["data.columns.prompt=task"]), @"first prompt (6 tokens, by the chat template): 1+1+1=");
}

#[test]
fn the_text_of_a_column_prompt_stays_text_and_is_warned_of() {
    let said = |rows, template, overrides: &[&str]| form(&trained(rows, template, overrides).succeeds());
    insta::assert_snapshot!(said(TEXTS, None, &[]), @"first prompt (3 tokens, text without a chat template): 1+1");
    insta::assert_snapshot!(said(TEXTS, Some(TEMPLATE), &[]), @"
warning: 2 of 2 prompts are the text of a column `prompt` and are sent without the model's chat template: data.prompt_format=chat makes each a user message, data.prompt_format=text says that this is meant
first prompt (3 tokens, text without a chat template): 1+1
");
    insta::assert_snapshot!(said(TEXTS, Some(TEMPLATE), &["data.prompt_format=text"]), @"
warning: `model.chat_template` has no effect: `data.prompt_format` is `text`
first prompt (3 tokens, text without a chat template): 1+1
");
    insta::assert_snapshot!(said(TEXTS, Some(TEMPLATE), &["data.prompt_format=chat"]), @"first prompt (6 tokens, by the chat template): 1+1+1=");
}

#[test]
fn rows_of_messages_go_through_the_template() {
    let said = |overrides: &[&str]| form(&trained(CHATS, Some(TEMPLATE), overrides).succeeds());
    insta::assert_snapshot!(said(&[]), @"first prompt (6 tokens, by the chat template): 1+1+1=");
    insta::assert_snapshot!(said(&["data.prompt_format=chat"]), @"first prompt (6 tokens, by the chat template): 1+1+1=");
    insta::assert_snapshot!(said(&["data.system_prompt=2"]), @"first prompt (6 tokens, by the chat template): 1+1+2=");
}

#[test]
fn prompts_that_cannot_have_the_form_asked_for() {
    let said = |rows, template, overrides: &[&str]| trained(rows, template, overrides).failure();
    insta::assert_snapshot!(said(QUESTIONS, None, &["data.prompt_format=chat"]), @"
exit code 2
error: prompt 1 of the training data (rows.jsonl): data.prompt_format is `chat`, and the model has no chat template
  hint: add chat_template.jinja to the model's folder or name one with model.chat_template, or set data.prompt_format=text
");
    insta::assert_snapshot!(said(CHATS, Some(TEMPLATE), &["data.prompt_format=text"]), @"
exit code 2
error: prompt 1 of the training data (rows.jsonl): its prompt is a list of messages, and data.prompt_format is `text`
  hint: set data.prompt_format=auto (or chat) to render messages with the chat template
");
    insta::assert_snapshot!(said(QUESTIONS, None, &["data.system_prompt=2"]), @"
exit code 2
error: prompt 1 of the training data (rows.jsonl): data.system_prompt has no place in it, because it is sent as text without the chat template
  hint: the model has no chat template: add chat_template.jinja to the model's folder or name one with model.chat_template, or take data.system_prompt out
");
    insta::assert_snapshot!(said(TEXTS, Some(TEMPLATE), &["data.system_prompt=2"]), @"
exit code 2
error: prompt 1 of the training data (rows.jsonl): data.system_prompt has no place in it, because it is sent as text without the chat template
  hint: set data.prompt_format=chat, or take data.system_prompt out
");
    insta::assert_snapshot!(said(QUESTIONS, Some(TEMPLATE), &["data.system_prompt=2", "data.prompt_format=text"]), @"
exit code 2
error: `data.system_prompt` has no place: `data.prompt_format` is `text`, which sends bare text without the chat template
 --> command line
  |
1 | data.system_prompt=2
  |                    ^
  hint: set `data.prompt_format: chat`, or take `data.system_prompt` out

1 error in the configuration
");
    insta::assert_snapshot!(said(CHATS, None, &[]), @"
exit code 2
error: prompt 1 of the training data cannot be prepared
  caused by: the tokenizer has no chat template; add chat_template.jinja to its folder, or give prompts as text instead of messages
");
}

#[test]
fn a_template_around_every_text_prompt() {
    let with = |rows: &str, template: &str| {
        let folder = Folder::tiny().with("around.jinja", template);
        trained_in(&folder, rows, None, &["data.prompt_template=around.jinja"])
    };
    insta::assert_snapshot!(form(&with(QUESTIONS, "\n{{ content | trim }}+3=\n").succeeds()), @"first prompt (6 tokens, text without a chat template): 1+1+3=");
    insta::assert_snapshot!(with(CHATS, "{{ content }}").failure(), @"
exit code 2
error: prompt 1 of the training data cannot be prepared
  caused by: data.prompt_template goes around text, and this prompt is a list of messages: take the setting out, or give prompts as text
");
    insta::assert_snapshot!(with(QUESTIONS, "{{ content").failure(), @"
exit code 2
error: data.prompt_template around.jinja cannot be filled in
  caused by: the chat template does not parse (line 1): syntax error: unexpected end of input, expected end of variable block
");
    insta::assert_snapshot!(trained(QUESTIONS, None, &["data.prompt_template=missing.jinja"]).failure(), @"
exit code 2
error: failed to read data.prompt_template missing.jinja
  caused by: No such file or directory (os error 2)
  hint: `data.prompt_template` is taken from the folder in which tamis is started
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
    // Without a template the built-in tasks are the text that they were.
    let bare = Folder::tiny();
    insta::assert_snapshot!(form(&bare.tamis(&["train", "tiny.yaml", "train.total_steps=1"]).succeeds()), @"first prompt (4 tokens, text without a chat template): 9+2=");
}
