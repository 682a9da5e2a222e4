use std::collections::BTreeMap;
use std::error::Error as _;
use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tamis_core::fault::Fault;

use super::*;
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;

/// A template in the form of released models. `tests/chat_templates/README.md` lists their sources.
struct Model {
    source: &'static str,
    begin: &'static str,
    ends: &'static [&'static str],
    /// A tool call in the model's own form.
    call: &'static str,
}

const CALL: &str = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": \"x\"}}\n</tool_call>";

const QWEN2_5: Model = Model {
    source: include_str!("../../tests/chat_templates/qwen2_5.jinja"),
    begin: "<|endoftext|>",
    ends: &["<|im_end|>", "<|endoftext|>"],
    call: CALL,
};
const QWEN3: Model = Model { source: include_str!("../../tests/chat_templates/qwen3.jinja"), ..QWEN2_5 };
const SMOLLM2: Model = Model {
    source: include_str!("../../tests/chat_templates/smollm2.jinja"),
    begin: "<|im_start|>",
    ends: &["<|im_end|>"],
    call: CALL,
};
const HEADERS: Model = Model {
    source: include_str!("../../tests/chat_templates/headers.jinja"),
    begin: "<|begin_of_text|>",
    ends: &["<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"],
    call: "{\"name\": \"add\", \"parameters\": {\"a\": 1, \"b\": \"x\"}}",
};
const HEADERS_WITH_TOOLS: Model =
    Model { source: include_str!("../../tests/chat_templates/headers_with_tools.jinja"), ..HEADERS };
const MODELS: [&Model; 5] = [&QWEN2_5, &QWEN3, &SMOLLM2, &HEADERS, &HEADERS_WITH_TOOLS];

/// The byte-level tokenizer of the reference, with Llama's special tokens added.
static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let source = tamis_golden::folder().join("hf/tokenizer");
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(source.join("tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    let first = Tokenizer::load(&source).unwrap().num_rows();
    let names = [
        "<|begin_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
    ];
    let added: Map<String, Value> = (first..)
        .zip(names)
        .map(|(id, name)| (id.to_string(), json!({"content": name, "special": true})))
        .collect();
    let config = json!({"eos_token": "<|im_end|>", "added_tokens_decoder": added});
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    Tokenizer::load(folder.path()).unwrap()
});

fn ids(text: &str) -> Vec<u32> {
    TOKENIZER.encode(text, false).unwrap()
}

/// Token by token, as no tokenizer would split it.
fn odd_ids(text: &str) -> Vec<u32> {
    let mut buffer = [0; 4];
    text.chars().flat_map(|letter| ids(letter.encode_utf8(&mut buffer))).collect()
}

fn decode(ids: &[u32]) -> String {
    TOKENIZER.decode(ids, false).unwrap()
}

fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn tools() -> Map<String, Value> {
    let properties = json!({"a": {"type": "integer"}, "b": {"type": "string"}});
    let parameters = json!({"type": "object", "properties": properties});
    let function = json!({"name": "add", "description": "Adds.", "parameters": parameters});
    fields(json!({"tools": [{"type": "function", "function": function}]}))
}

impl Model {
    fn template(&self) -> ChatTemplate {
        let special = [("bos_token", self.begin), ("eos_token", self.ends[0])];
        let special: BTreeMap<_, _> = special.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
        ChatTemplate::new(self.source, &special).unwrap()
    }

    fn end_ids(&self) -> Vec<u32> {
        self.ends.iter().map(|end| TOKENIZER.token_id(end).unwrap()).collect()
    }

    fn check(&self, arguments: &Map<String, Value>) -> Result<TurnTemplate, Fault> {
        check_template(&self.template(), &TOKENIZER, arguments, &self.end_ids())
    }

    fn differences(&self, arguments: &Map<String, Value>) -> String {
        let checked = self.check(arguments).unwrap();
        let shown: Vec<String> = checked.differences().iter().map(ToString::to_string).collect();
        shown.join("\n")
    }

    /// Plays an episode. Each round is the policy's sample, its message, and the messages that follow.
    /// Returns the tokens of the whole and its messages.
    fn episode(
        &self,
        arguments: &Map<String, Value>,
        prompt: &[Value],
        rounds: &[(Vec<u32>, Value, Vec<Value>)],
    ) -> (Vec<u32>, Vec<Value>) {
        let checked = self.check(arguments).unwrap();
        let mut messages = prompt.to_vec();
        let text = self.template().prompt(&messages, arguments).unwrap().text;
        let mut transcript = ids(&text);
        for (sampled, answer, new) in rounds {
            transcript.extend(sampled);
            messages.push(answer.clone());
            let continuation = checked.continuation(&TOKENIZER, &messages, new, sampled).unwrap();
            assert_eq!(decode(&continuation.token_ids), continuation.text);
            for message in new.iter().filter(|message| message["role"] == "user") {
                let content = message["content"].as_str().unwrap_or_default().trim();
                assert!(continuation.text.contains(content), "{content:?} in {:?}", continuation.text);
            }
            transcript.extend(continuation.token_ids);
            messages.extend(new.iter().cloned());
        }
        (transcript, messages)
    }
}

fn user(content: &str) -> Value {
    json!({"role": "user", "content": content})
}

fn assistant(content: &str) -> Value {
    json!({"role": "assistant", "content": content})
}

fn prompt() -> [Value; 2] {
    [json!({"role": "system", "content": "Be brief."}), user("Where?")]
}

#[test]
fn transcripts_read_as_the_template_renders_the_whole() {
    for model in MODELS {
        read_as_a_whole(model);
    }
}

fn read_as_a_whole(model: &Model) {
    let answer = |text: &str| odd_ids(text).into_iter().chain([model.end_ids()[0]]).collect::<Vec<u32>>();
    let rounds = [
        (answer("Up, then é left."), assistant("Up, then é left."), vec![user("A wall. 墙")]),
        // Truncated.
        (odd_ids("Down"), assistant("Down"), vec![user("Free."), user("Go on.")]),
        (answer(""), assistant(""), vec![user("Again.")]),
    ];
    let (transcript, messages) = model.episode(&Map::new(), &prompt(), &rounds);
    let whole = model.template().prompt(&messages, &Map::new()).unwrap().text;
    assert_eq!(decode(&transcript), whole);
    let (transcript, messages) = model.episode(&Map::new(), &prompt()[1..], &rounds);
    let whole = model.template().prompt(&messages, &Map::new()).unwrap().text;
    assert_eq!(decode(&transcript), whole);
}

#[test]
fn transcripts_with_tools_read_as_the_template_renders_the_whole() {
    for (model, two_calls) in [(&QWEN2_5, true), (&QWEN3, true), (&HEADERS_WITH_TOOLS, false)] {
        read_with_tools_as_a_whole(model, two_calls);
    }
}

fn read_with_tools_as_a_whole(model: &Model, two_calls: bool) {
    let answer = |text: &str| odd_ids(text).into_iter().chain([model.end_ids()[0]]).collect::<Vec<u32>>();
    let call = json!({"type": "function", "id": "call00001", "function": {
        "name": "add", "arguments": {"a": 1, "b": "x"},
    }});
    let result =
        |text: &str| json!({"role": "tool", "name": "add", "tool_call_id": "call00001", "content": text});
    let calls = |calls: Value| json!({"role": "assistant", "content": "", "tool_calls": calls});
    let mut rounds = vec![(answer(model.call), calls(json!([call])), vec![result("42 <|im_end|>")])];
    if two_calls {
        let text = format!("{0}\n{0}", model.call);
        rounds.push((answer(&text), calls(json!([call, call])), vec![result("1"), result("2")]));
    }
    rounds.push((answer("It is 42."), assistant("It is 42."), vec![user("Thanks.")]));
    let (transcript, messages) = model.episode(&tools(), &prompt(), &rounds);
    let whole = model.template().prompt(&messages, &tools()).unwrap().text;
    assert_eq!(decode(&transcript), whole);
}

/// Llama's own templates, if the user has put them there. After an answer they write the same as templates of
/// their form here.
#[test]
fn released_templates_that_lie_beside() {
    let Some(folder) = tamis_golden::data("chat_templates") else { return };
    for (file, form) in [("llama3.jinja", &HEADERS), ("llama3_1.jinja", &HEADERS_WITH_TOOLS)] {
        let Ok(source) = std::fs::read_to_string(folder.join(file)) else {
            eprintln!("skipped: no {file} in {}", folder.display());
            continue;
        };
        let model = Model { source: source.leak(), ..*form };
        read_as_a_whole(&model);
        if file == "llama3_1.jinja" {
            read_with_tools_as_a_whole(&model, false);
        }
        let sampled = ids("Up");
        for new in [user("Wall."), json!({"role": "tool", "content": "42"})] {
            assert_eq!(continuation(&model, &new, &sampled), continuation(form, &new, &sampled));
        }
        assert_eq!(model.differences(&tools()), form.differences(&tools()));
    }
}

/// Values that a template of this form gets from the model's side: a date, tools, and tools in the system's
/// message.
#[test]
fn arguments_of_a_template_with_tools() {
    let render = |more: Value, messages: &[Value]| {
        let arguments: Map<String, Value> = tools().into_iter().chain(fields(more)).collect();
        HEADERS_WITH_TOOLS.template().prompt(messages, &arguments).map(|prompt| prompt.text)
    };
    let with_day = render(json!({"date_string": "2 June 2025"}), &prompt()).unwrap();
    assert!(with_day.contains("It is 2 June 2025.\n\nBe brief.<|eot_id|>"), "{with_day}");
    let (system, question) = with_day.split_once("<|eot_id|>").unwrap();
    assert!(!system.contains("\"name\": \"add\"") && question.contains("\"name\": \"add\""));
    let before = render(json!({"tools_in_user_message": false}), &prompt()).unwrap();
    let (system, question) = before.split_once("<|eot_id|>").unwrap();
    assert!(system.contains("\"name\": \"add\"") && !question.contains("\"name\": \"add\""));
    let call = json!({"function": {"name": "search", "arguments": {"query": "walls", "place": "here"}}});
    let called = json!({"role": "assistant", "content": "", "tool_calls": [call]});
    let own = json!({"builtin_tools": ["search", "code_interpreter"]});
    let own =
        render(own, &[user("Where?"), called, json!({"role": "ipython", "content": {"found": 2}})]).unwrap();
    assert!(own.contains("Shell: ipython\nOwn tools: search\n"), "{own}");
    assert!(own.contains("<|python_tag|>search.call(query=\"walls\", place=\"here\")<|eom_id|>"), "{own}");
    assert!(own.contains("<|start_header_id|>ipython<|end_header_id|>\n\n{\"found\": 2}<|eot_id|>"), "{own}");
    let two = json!({"role": "assistant", "content": "", "tool_calls": [call, call]});
    assert!(matches!(
        render(json!({}), &[user("Where?"), two, user("Go on.")]),
        Err(TemplateError::Raised { .. })
    ));
    // Tools have no place without a user message.
    let system = json!({"role": "system", "content": "Be brief."});
    let alone = render(json!({}), &[system]);
    assert!(matches!(alone, Err(TemplateError::Raised { .. })), "{alone:?}");
}

/// SmolLM2's template writes a tool's result as a message of that role, and has no place for calls.
#[test]
fn tool_messages_of_a_template_that_knows_no_tools() {
    for (model, role) in [(&SMOLLM2, "tool"), (&HEADERS, "tool")] {
        let end = model.end_ids()[0];
        let sampled: Vec<u32> = odd_ids(model.call).into_iter().chain([end]).collect();
        let result = json!({"role": role, "content": "42"});
        let rounds = [(sampled, assistant(model.call), vec![result])];
        let (transcript, messages) = model.episode(&tools(), &prompt(), &rounds);
        let whole = model.template().prompt(&messages, &tools()).unwrap().text;
        assert_eq!(decode(&transcript), whole);
    }
}

fn continuation(model: &Model, new: &Value, sampled: &[u32]) -> String {
    let messages = [user("Where?"), assistant("Up")];
    let checked = model.check(&tools()).unwrap();
    checked.continuation(&TOKENIZER, &messages, std::slice::from_ref(new), sampled).unwrap().text
}

#[test]
fn continuations() {
    let result = json!({"role": "tool", "content": "42"});
    let shown = |model: &Model| {
        let sampled = [ids("Up"), model.end_ids()[..1].to_vec()].concat();
        let texts = [continuation(model, &user("Wall."), &sampled), continuation(model, &result, &sampled)];
        format!("{texts:#?}")
    };
    insta::assert_snapshot!(shown(&QWEN2_5), @r#"
[
    "\n<|im_start|>user\nWall.<|im_end|>\n<|im_start|>assistant\n",
    "\n<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
]
"#);
    assert_eq!(shown(&QWEN3), shown(&QWEN2_5));
    insta::assert_snapshot!(shown(&SMOLLM2), @r#"
[
    "\n<|im_start|>user\nWall.<|im_end|>\n<|im_start|>assistant\n",
    "\n<|im_start|>tool\n42<|im_end|>\n<|im_start|>assistant\n",
]
"#);
    insta::assert_snapshot!(shown(&HEADERS), @r#"
[
    "<|start_header_id|>user<|end_header_id|>\n\nWall.<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "<|start_header_id|>tool<|end_header_id|>\n\n42<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
]
"#);
    insta::assert_snapshot!(shown(&HEADERS_WITH_TOOLS), @r#"
[
    "<|start_header_id|>user<|end_header_id|>\n\nWall.<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "<|start_header_id|>ipython<|end_header_id|>\n\n\"42\"<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
]
"#);
}

#[test]
fn an_answer_without_an_end_gets_one() {
    let end = |sampled: &[u32]| continuation(&QWEN2_5, &user("<|im_end|>"), sampled);
    let whole = "<|im_end|>\n<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(end(&ids("Up")), whole);
    assert_eq!(end(&[]), whole);
    // Spelled in ordinary tokens, it does not end the turn.
    assert_eq!(end(&odd_ids("Up<|im_end|>")), whole);
    assert_eq!(end(&ids("Up<|im_end|>")), whole["<|im_end|>".len()..]);
    // Another end token replaces the template's.
    assert_eq!(end(&ids("Up<|endoftext|>")), whole["<|im_end|>".len()..]);
    // An end token in the middle does not count.
    assert_eq!(end(&ids("<|im_end|>Up")), whole);
    let llama = |sampled: &[u32]| continuation(&HEADERS_WITH_TOOLS, &user("x"), sampled);
    assert_eq!(llama(&ids("Up")), format!("<|eot_id|>{}", llama(&ids("Up<|eom_id|>"))));
}

fn written(source: &'static str) -> Model {
    Model { source, begin: "<s>", ends: &["<|endoftext|>"], call: "" }
}

#[test]
fn ends_that_are_ordinary_text() {
    let model = written(
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
    );
    let end = |sampled: &[u32]| continuation(&model, &user("x"), sampled);
    assert_eq!(end(&ids("Up")), "[end]\n[user]x[end]\n[assistant]");
    // A stop string that is the template's own end of turn is not written twice.
    assert_eq!(end(&[ids("Up"), ids("[end]")].concat()), "\n[user]x[end]\n[assistant]");
    // This end token is not part of the template: both stay.
    assert_eq!(end(&ids("Up<|endoftext|>")), "[end]\n[user]x[end]\n[assistant]");
    assert_eq!(model.check(&Map::new()).unwrap().turn_end(), "[end]\n");
    // An end that is only written if something follows.
    let model = written(
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if not loop.last or add_generation_prompt %}<|endoftext|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
    );
    assert_eq!(model.check(&Map::new()).unwrap().turn_end(), "<|endoftext|>");
    assert_eq!(
        continuation(&model, &user("x"), &ids("Up<|endoftext|>")),
        "\n[user]x<|endoftext|>\n[assistant]"
    );
}

#[test]
fn differences_name_the_message() {
    insta::assert_snapshot!(QWEN2_5.differences(&tools()), @"");
    insta::assert_snapshot!(SMOLLM2.differences(&tools()), @"");
    insta::assert_snapshot!(HEADERS.differences(&Map::new()), @r#"message 2 (assistant) of a conversation with answers that have white space around them is "…t<|end_header_id|>\n\n\n Word2word" in the transcript, but the template renders "…t<|end_header_id|>\n\nWord2word" once other messages follow"#);
    insta::assert_snapshot!(HEADERS_WITH_TOOLS.differences(&tools()), @r#"message 2 (assistant) of a conversation with answers that have white space around them is "…t<|end_header_id|>\n\n\n Word2word" in the transcript, but the template renders "…t<|end_header_id|>\n\nWord2word" once other messages follow"#);
    insta::assert_snapshot!(QWEN3.differences(&tools()), @r#"message 2 (assistant) of a conversation with answers that begin with a <think> block is "…im_start|>assistant\n<think>\nI reason.\n</think>\n\nWord2word" in the transcript, but the template renders "…im_start|>assistant\nWord2word" once other messages follow"#);
    let quick = fields(json!({"enable_thinking": false}));
    insta::assert_snapshot!(QWEN3.differences(&quick), @r#"
message 2 (assistant) of a conversation with plain answers is "…im_start|>assistant\n<think>\n\n</think>\n\nWord2word" in the transcript, but the template renders "…im_start|>assistant\nWord2word" once other messages follow
message 2 (assistant) of a conversation with answers that have white space around them is "…im_start|>assistant\n<think>\n\n</think>\n\n\n Word2word" in the transcript, but the template renders "…im_start|>assistant\n\n Word2word" once other messages follow
message 2 (assistant) of a conversation with answers that begin with a <think> block is "…im_start|>assistant\n<think>\n\n</think>\n\n<think>\nI reason.\n</t…" in the transcript, but the template renders "…im_start|>assistant\nWord2word" once other messages follow
"#);
}

#[test]
fn the_transcript_keeps_the_thoughts_that_the_template_takes_out() {
    let text = "<think>\nwalls\n</think>\n\nUp";
    let sampled = ids(&format!("{text}<|im_end|>"));
    let (transcript, messages) =
        QWEN3.episode(&Map::new(), &prompt(), &[(sampled, assistant(text), vec![user("Wall.")])]);
    assert!(decode(&transcript).contains(text));
    let whole = QWEN3.template().prompt(&messages, &Map::new()).unwrap().text;
    assert_eq!(whole, decode(&transcript).replace("<think>\nwalls\n</think>\n\n", ""));
    // Thoughts before a tool's result stay, as long as no user speaks.
    let result = json!({"role": "tool", "content": "42"});
    let sampled = ids(&format!("{text}<|im_end|>"));
    let (transcript, messages) =
        QWEN3.episode(&Map::new(), &prompt(), &[(sampled, assistant(text), vec![result])]);
    let whole = QWEN3.template().prompt(&messages, &Map::new()).unwrap().text;
    assert_eq!(whole, decode(&transcript));
}

#[test]
fn templates_that_are_refused() {
    let refusal = |source| written(source).check(&Map::new()).unwrap_err();
    let to_last_user = "{%- set users = messages | selectattr('role', 'equalto', 'user') | list %}
{%- for m in messages if m.role != 'system' %}
    {%- if m.role == 'user' %}[user]{% if m == users[-1] and messages[0].role == 'system' %}{{ messages[0].content }} {% endif %}{% else %}[other]{% endif %}{{ m.content }}[end]
{%- endfor %}{% if add_generation_prompt %}[other]{% endif %}";
    insta::assert_snapshot!(refusal(to_last_user), @r#"the chat template rewrites earlier messages that are not the assistant's, so a conversation of many turns cannot be a transcript: message 0 (system) of a conversation with plain answers is "[user]Word0word" in the transcript, but the template renders "[user]Word1word[end][other]Word2word[end][user]Wor…" once other messages follow"#);
    let reminder = "{%- for m in messages %}[{{ m.role }}]{{ m.content }}{% if loop.last and m.role == 'user' %} Be brief.{% endif %}[end]{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
    insta::assert_snapshot!(refusal(reminder), @r#"the chat template rewrites earlier messages that are not the assistant's, so a conversation of many turns cannot be a transcript: message 1 (user) of a conversation with plain answers is " Be brief.[end][assistant]Word2word" in the transcript, but the template renders "[end][assistant]Word2word" once other messages follow"#);
    let counting = "{{ messages | length }}{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
    insta::assert_snapshot!(refusal(counting), @r#"the chat template rewrites earlier messages that are not the assistant's, so a conversation of many turns cannot be a transcript: message 0 (system) of a conversation with plain answers is "2[system]Word0word" in the transcript, but the template renders "4[system]Word0word" once other messages follow"#);
    let loud = "{% for m in messages %}[{{ m.role }}]{{ m.content | upper }}[end]{% endfor %}";
    insta::assert_snapshot!(refusal(loud), @"the chat template does not show message 2 (assistant) as it was written, so what follows it cannot be found");
    let twice = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ m.content }}[end]{% endfor %}";
    insta::assert_snapshot!(refusal(twice), @"the chat template shows the assistant's message (message 2) 2 times, so it is unclear what follows it");
    let single = "{% if messages | length > 2 %}{{ raise_exception('one question only') }}{% endif %}{{ messages[-1].content }}";
    insta::assert_snapshot!(refusal(single), @"the conversation cannot be rendered");
    assert!(refusal(single).source().is_some_and(|source| source.to_string().contains("one question only")));
}

/// Gemma's templates refuse a system message, and write `model` for the assistant.
#[test]
fn templates_without_system_messages() {
    let model = written(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{% for m in messages %}[{{ 'model' if m.role == 'assistant' else m.role }}]{{ m.content | trim }}<|endoftext|>\n{% endfor %}{% if add_generation_prompt %}[model]{% endif %}",
    );
    assert_eq!(continuation(&model, &user("x"), &ids("Up<|endoftext|>")), "\n[user]x<|endoftext|>\n[model]");
}

#[test]
fn answers_that_are_left_out() {
    let model = written(
        "{% for m in messages %}{% if m.role != 'assistant' or loop.index > messages | length - 2 %}[{{ m.role }}]{{ m.content }}[end]{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
    );
    insta::assert_snapshot!(model.differences(&Map::new()), @r#"
message 2 (assistant) of a conversation with plain answers is "[end][assistant]Word2word[end][user]Word3word" in the transcript, but the template renders "[end][user]Word3word" once other messages follow
message 2 (assistant) of a conversation with answers that have white space around them is "[end][assistant]\n Word2word \n\n[end][user]Word3…" in the transcript, but the template renders "[end][user]Word3word" once other messages follow
message 2 (assistant) of a conversation with answers that begin with a <think> block is "[end][assistant]<think>\nI reason.\n</think>\n\nWo…" in the transcript, but the template renders "[end][user]Word3word" once other messages follow
"#);
}

/// A result is refused without its call, from which it takes the name. A call ends in a special token.
#[test]
fn results_that_take_the_name_of_their_call() {
    let source = "{% for m in messages %}{% if m.role == 'tool' %}{% if not messages[loop.index0 - 1].tool_calls %}{{ raise_exception('no call') }}{% endif %}[{{ messages[loop.index0 - 1].tool_calls[0].function.name }}]{{ m.content }}[end]{% elif m.tool_calls %}[assistant]{{ m.content }} {{ m.tool_calls[0].function.name }}()<|eom_id|>{% else %}[{{ m.role }}]{{ m.content }}<|eot_id|>{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
    let model = Model { source, ..HEADERS };
    let checked = model.check(&tools()).unwrap();
    let call = json!([{"function": {"name": "add", "arguments": {}}}]);
    let messages = [user("x"), json!({"role": "assistant", "content": "", "tool_calls": call})];
    let result = [json!({"role": "tool", "content": "42<|eom_id|>"})];
    let text =
        |sampled: &str| checked.continuation(&TOKENIZER, &messages, &result, &ids(sampled)).unwrap().text;
    assert_eq!(text("add()"), "<|eom_id|>[add]42<|eom_id|>[end][assistant]");
    assert_eq!(text("add()<|eom_id|>"), "[add]42<|eom_id|>[end][assistant]");
    assert_eq!(text("add()<|eot_id|>"), "[add]42<|eom_id|>[end][assistant]");
    let mute = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}[{{ m.role }}]{{ m.content }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
    let model = Model { source: mute, ..HEADERS };
    assert!(model.check(&Map::new()).is_ok());
    insta::assert_snapshot!(model.check(&tools()).unwrap_err(), @"the text between an answer and a tool's result cannot be found in the chat template");
}

/// GLM's models end an answer with the token of the next speaker.
#[test]
fn ends_that_are_the_beginning_of_the_next_message() {
    let source = "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>{% elif m.role == 'user' %}<|im_end|>{% else %}[{{ m.role }}]{% endif %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
    let model = Model { source, begin: "", ends: &["<|im_end|>", "<|im_start|>"], call: "" };
    let result = json!({"role": "tool", "content": "42"});
    assert_eq!(continuation(&model, &user("x"), &ids("Up<|im_end|>")), "x[assistant]");
    assert_eq!(continuation(&model, &user("x"), &ids("Up")), "<|im_end|>x[assistant]");
    assert_eq!(continuation(&model, &result, &ids("Up<|im_start|>")), "42[assistant]");
    assert_eq!(continuation(&model, &result, &ids("Up")), "<|im_start|>42[assistant]");
}

#[test]
fn errors_of_continuations() {
    let checked = QWEN2_5.check(&Map::new()).unwrap();
    let error = |messages: &[Value], new: &[Value]| {
        checked.continuation(&TOKENIZER, messages, new, &[]).unwrap_err().to_string()
    };
    let so_far = [user("x"), assistant("y")];
    insta::assert_snapshot!(error(&so_far[..1], &[user("z")]), @"the messages so far must end in the assistant's, but the last is user");
    insta::assert_snapshot!(error(&[], &[user("z")]), @"the messages so far must end in the assistant's, but the last is missing");
    insta::assert_snapshot!(error(&[json!(3)], &[user("z")]), @"the messages so far must end in the assistant's, but the last is a message without role");
    insta::assert_snapshot!(error(&so_far, &[]), @"there is no message after the assistant's, so its conversation does not continue");
    insta::assert_snapshot!(error(&so_far, &[user("a"), assistant("b")]), @"new message 1 is the assistant's; only the policy writes those");
    let characters = Tokenizer::characters("ab").unwrap();
    let error = checked.continuation(&characters, &so_far, &[user("z")], &[]).unwrap_err();
    assert_eq!(error.to_string(), "the text between two answers cannot be tokenised");
    assert!(error.source().is_some_and(|source| source.to_string().starts_with("character ")));
}

/// Random texts, with special tokens and with words that mark answers.
fn content() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        any::<String>(),
        "[ \n\ta-zé墙]{0,6}",
        Just("<|im_end|>".to_owned()),
        Just("<|im_start|>assistant\n".to_owned()),
        Just("<|eot_id|><|start_header_id|>user".to_owned()),
        Just("<think>".to_owned()),
        Just("</think>".to_owned()),
        Just("<tool_response>".to_owned()),
        (0..6u32).prop_map(|number| format!("placeholder{number}end")),
        Just("placeholder".to_owned()),
        Just("Word2word".to_owned()),
        Just("{{ messages }}".to_owned()),
    ];
    prop::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// For any content, a continuation is the text of its tokens, and contains the observation.
    #[test]
    fn any_content_is_in_the_continuation(
        texts in prop::collection::vec((content(), content(), 0..4u8), 1..4),
        system in content(),
        question in content(),
        model in 0..MODELS.len(),
    ) {
        let model = MODELS[model];
        let rounds: Vec<_> = texts.iter().map(|(answer, new, kind)| {
            let mut sampled = odd_ids(answer);
            if kind % 2 == 0 {
                sampled.push(model.end_ids()[0]);
            }
            let role = if *kind < 2 { "user" } else { "tool" };
            (sampled, assistant(answer), vec![json!({"role": role, "content": new})])
        }).collect();
        let prompt = [json!({"role": "system", "content": system}), user(&question)];
        model.episode(&Map::new(), &prompt, &rounds);
    }

    /// If the template neither trims nor rewrites, the transcript's text is the template's.
    #[test]
    fn any_content_reads_as_the_template_renders_it(
        texts in prop::collection::vec((content(), content()), 1..4),
        model in 0..2usize,
    ) {
        let model = [&QWEN2_5, &SMOLLM2][model];
        let end = model.end_ids()[0];
        let rounds: Vec<_> = texts.iter().map(|(answer, new)| {
            (odd_ids(answer).into_iter().chain([end]).collect(), assistant(answer), vec![user(new)])
        }).collect();
        let (transcript, messages) = model.episode(&Map::new(), &prompt(), &rounds);
        let whole = model.template().prompt(&messages, &Map::new()).unwrap().text;
        prop_assert_eq!(decode(&transcript), whole);
    }
}
