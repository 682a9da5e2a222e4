use serde_json::json;

use super::*;
use crate::tokenizer::Tokenizer;

pub(super) fn special() -> BTreeMap<String, String> {
    [("bos_token", "<s>"), ("eos_token", "</s>")]
        .map(|(name, token)| (name.to_owned(), token.to_owned()))
        .into()
}

pub(super) fn template(source: &str) -> ChatTemplate {
    // 2024-07-26 12:00 UTC.
    ChatTemplate::new(source, &special()).unwrap().with_now(1_721_995_200)
}

fn arguments(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

#[test]
fn reference_conversations() {
    let tokenizer = Tokenizer::load(&tamis_golden::folder().join("hf/tokenizer")).unwrap();
    let template = tokenizer.chat_template().unwrap();
    let expected = tamis_golden::load("hf/tokenizer/expected");
    let cases = list(&expected["chat_template"]);
    assert!(!cases.is_empty());
    for case in cases {
        let messages = list(&case["messages"]);
        let text = template.render(messages, &arguments(case["kwargs"].clone())).unwrap();
        assert_eq!(text, case["text"].as_str().unwrap(), "{case}");
        let ids: Vec<u64> = tokenizer.encode(&text, false).unwrap().into_iter().map(u64::from).collect();
        assert_eq!(json!(ids), case["ids"]);
    }
    let refused = &expected["chat_template_error"];
    let error = template.render(list(&refused["messages"]), &Map::new()).unwrap_err();
    assert!(matches!(error, TemplateError::Raised { .. }));
    assert!(error.to_string().contains(refused["message_contains"].as_str().unwrap()), "{error}");
}

const CHATML: &str = "\
{% for message in messages %}
    {%- if message['role'] not in ['system', 'user', 'assistant'] %}{{ raise_exception('no role ' + message.role) }}{% endif %}
<|{{ message['role'] }}|>{{ message['content'] }}<|end|>
{% endfor %}
{% if add_generation_prompt %}<|assistant|>{% endif %}";

#[test]
fn a_final_assistant_message_is_continued() {
    let messages =
        [json!({"role": "user", "content": "2+2?"}), json!({"role": "assistant", "content": "The sum is "})];
    let prompt = template(CHATML).prompt(&messages, &Map::new()).unwrap();
    assert_eq!(prompt.text, "<|user|>2+2?<|end|>\n<|assistant|>The sum is ");
    assert_eq!(prompt.continued.as_deref(), Some("The sum is "));
    let prompt = template(CHATML).prompt(&messages[..1], &Map::new()).unwrap();
    assert_eq!(prompt.text, "<|user|>2+2?<|end|>\n<|assistant|>");
    assert_eq!(prompt.continued, None);
}

#[test]
fn a_trimming_template_continues_the_trimmed_message() {
    let source =
        "{% for message in messages %}[{{ message.role }}]{{ message.content | trim }}[end]{% endfor %}";
    let messages = [json!({"role": "assistant", "content": "So x = "})];
    let prompt = template(source).prompt(&messages, &Map::new()).unwrap();
    assert_eq!(
        prompt,
        RenderedPrompt { text: "[assistant]So x =".to_owned(), continued: Some("So x =".to_owned()) }
    );
}

#[test]
fn a_message_of_blocks_is_continued_at_its_last_text() {
    let source =
        "{% for m in messages %}{% for block in m.content %}{{ block.text }}{% endfor %}</m>{% endfor %}";
    let messages = [
        json!({"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
    ];
    let prompt = template(source).prompt(&messages, &Map::new()).unwrap();
    assert_eq!((prompt.text.as_str(), prompt.continued.as_deref()), ("ab", Some("b")));
}

#[test]
fn errors_of_conversations() {
    let chat = template(CHATML);
    let none: [Value; 0] = [];
    insta::assert_snapshot!(chat.prompt(&none, &Map::new()).unwrap_err(), @"the conversation is empty");
    let wizard = [json!({"role": "wizard", "content": "x"})];
    insta::assert_snapshot!(chat.prompt(&wizard, &Map::new()).unwrap_err(), @"the chat template refuses the conversation: no role wizard");
    let silent = [json!({"role": "assistant", "content": null})];
    insta::assert_snapshot!(chat.prompt(&silent, &Map::new()).unwrap_err(), @"the final assistant message \
         has no text in `content`, so it cannot be continued");
    let dropping = template("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}");
    let last = [json!({"role": "assistant", "content": "x"})];
    insta::assert_snapshot!(dropping.prompt(&last, &Map::new()).unwrap_err(), @"the chat template does not \
         show the final assistant message (it may drop or rewrite it), so it cannot be continued");
    let failing = template("\n\n{{ messages[0].content.nonsense() }}");
    insta::assert_snapshot!(failing.prompt(&last, &Map::new()).unwrap_err(), @"the chat template failed \
         (line 3): unknown method: string has no method named nonsense");
    let missing = template("{{ tool.name.first }}");
    insta::assert_snapshot!(missing.prompt(&last, &Map::new()).unwrap_err(), @"the chat template failed \
         (line 1): undefined value: `tool` is undefined");
    let adding = template("{{ 'a' + 1 }}");
    insta::assert_snapshot!(adding.prompt(&last, &Map::new()).unwrap_err(), @"the chat template failed (line \
         1): invalid operation: tried to use + operator on unsupported types string and number");
    let within = template("{% macro m(x) %}{{ raise_exception('deep: ' ~ x) }}{% endmacro %}{{ m(1) }}");
    insta::assert_snapshot!(within.prompt(&last, &Map::new()).unwrap_err(), @"the chat template refuses the conversation: deep: 1");
    let beyond = template("{{ ''[::-1] }}");
    insta::assert_snapshot!(beyond.prompt(&last, &Map::new()).unwrap_err(), @"the chat template failed (line \
         1): index out of bounds: the len is 0 but the index is 0");
    let odd = [BTreeMap::from([(vec![1], "x")])];
    let error = chat.prompt(&odd, &Map::new()).unwrap_err();
    insta::assert_snapshot!(error, @"message 0 of the conversation is not JSON");
}

#[test]
fn errors_of_templates() {
    let error = |source: &str| ChatTemplate::new(source, &special()).unwrap_err().to_string();
    insta::assert_snapshot!(error("a\n{% if x %}\nb"), @"the chat template does not parse (line 3): syntax \
         error: unexpected end of input, expected end of block");
    insta::assert_snapshot!(error("a\nb\n{{ x | }}"), @"the chat template does not parse (line 3): syntax \
         error: unexpected end of variable block, expected identifier");
    insta::assert_snapshot!(error("{% frobnicate %}"), @"the chat template does not parse (line 1): syntax \
         error: unknown statement frobnicate");

    let files = |name: &str, content: &str| BTreeMap::from([(name.to_owned(), content.as_bytes().to_vec())]);
    let from = |name: &str, content: &str| {
        ChatTemplate::from_files(&files(name, content), &special()).unwrap_err().to_string()
    };
    insta::assert_snapshot!(from("tokenizer_config.json", "{}"), @"the tokenizer has no chat template; add \
         chat_template.jinja to its folder, or give prompts as text instead of messages");
    insta::assert_snapshot!(from("tokenizer_config.json", r#"{"chat_template": [{"name": "rag", "template": ""}]}"#), @"the tokenizer has chat templates rag, but none named `default`");
    insta::assert_snapshot!(from("tokenizer_config.json", r#"{"chat_template": [{"name": "rag"}]}"#), @r#"the chat template in tokenizer_config.json is not text: expected {name, template}, got {"name":"rag"}"#);
    insta::assert_snapshot!(from("tokenizer_config.json", r#"{"chat_template": 3}"#), @"the chat template in tokenizer_config.json is not text: 3");
    let bytes = BTreeMap::from([("chat_template.jinja".to_owned(), vec![b'a', 0xff])]);
    let error = ChatTemplate::from_files(&bytes, &special()).unwrap_err();
    insta::assert_snapshot!(error, @"the chat template in chat_template.jinja is not text: invalid utf-8 sequence of 1 bytes from index 1");
}

#[test]
fn named_templates_and_precedence() {
    let config = json!({"chat_template": [
        {"name": "default", "template": "default"}, {"name": "tool_use", "template": "{{ tools | length }} tools"},
    ]});
    let mut files = BTreeMap::from([("tokenizer_config.json".to_owned(), config.to_string().into_bytes())]);
    let messages = [json!({"role": "user", "content": "x"})];
    let render = |files: &BTreeMap<String, Vec<u8>>, tools: Value| {
        let template = ChatTemplate::from_files(files, &special()).unwrap();
        template.prompt(&messages, &arguments(json!({"tools": tools}))).unwrap().text
    };
    assert_eq!(render(&files, Value::Null), "default");
    assert_eq!(render(&files, json!([{}, {}])), "2 tools");
    files.insert("chat_template.jinja".to_owned(), b"file".to_vec());
    assert_eq!(render(&files, Value::Null), "file");
    files.insert("additional_chat_templates/tool_use.jinja".to_owned(), b"own".to_vec());
    assert_eq!(render(&files, json!([{}])), "own");
}

const THINKING: &str = include_str!("../../tests/chat_templates/qwen3.jinja");

#[test]
fn thinking_and_tools() {
    let messages = [
        json!({"role": "system", "content": "Be brief."}),
        json!({"role": "user", "content": "6*7?"}),
        json!({"role": "assistant", "content": "<think>\nuse it\n</think>\n\nLet me see.", "tool_calls": [
            {"function": {"name": "calc", "arguments": {"expr": "6*7 < 50 & 'é'", "n": 1.0, "flag": true}}}
        ]}),
        json!({"role": "tool", "content": "42"}),
        json!({"role": "tool", "content": "43"}),
    ];
    let tools = json!({"tools": [{"type": "function", "function": {"name": "calc", "parameters": {}}}], "enable_thinking": false});
    let text = template(THINKING).prompt(&messages, &arguments(tools)).unwrap().text;
    insta::assert_snapshot!(text, @r#"
<|im_start|>system
Be brief.

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{"type": "function", "function": {"name": "calc", "parameters": {}}}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
<|im_start|>user
6*7?<|im_end|>
<|im_start|>assistant
<think>
use it
</think>

Let me see.
<tool_call>
{"name": "calc", "arguments": {"expr": "6*7 < 50 & 'é'", "n": 1.0, "flag": true}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
42
</tool_response>
<tool_response>
43
</tool_response><|im_end|>
<|im_start|>assistant
<think>

</think>
"#);
    let later = [
        &messages[..2],
        &[
            json!({"role": "assistant", "content": "<think>a</think>\n\n42"}),
            json!({"role": "user", "content": "sure?"}),
        ],
    ]
    .concat();
    insta::assert_snapshot!(template(THINKING).prompt(&later, &Map::new()).unwrap().text, @r#"
<|im_start|>system
Be brief.<|im_end|>
<|im_start|>user
6*7?<|im_end|>
<|im_start|>assistant
42<|im_end|>
<|im_start|>user
sure?<|im_end|>
<|im_start|>assistant
"#);
}

const HEADERS: &str = include_str!("../../tests/chat_templates/headers_with_tools.jinja");

/// Checks that roles alternate, and has lists of blocks, in the manner of Mistral's templates.
const ALTERNATING: &str = r#"{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[TOOLS][" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {%- if message.tool_calls[0].id is not defined or message.tool_calls[0].id|length != 9 %}
            {{- raise_exception("a tool call's id must have 9 characters") }}
        {%- endif %}
        {%- for call in message.tool_calls %}
            {%- set out = call.function|tojson %}
            {{- out[:-1] }}
            {{- ', "id": "' + call.id + '"}' }}
        {%- endfor %}
        {{- eos_token }}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[RESULTS]{"content": ' + content|string + "}[/RESULTS]" }}
    {%- else %}
        {{- raise_exception("unknown role") }}
    {%- endif %}
{%- endfor %}
"#;

#[test]
fn alternation_and_tool_ids() {
    let messages = [
        json!({"role": "system", "content": "S"}),
        json!({"role": "user", "content": "one"}),
        json!({"role": "assistant", "content": null, "tool_calls": [{"id": "abcdefghi", "function": {"name": "f", "arguments": {"x": 1}}}]}),
        json!({"role": "tool", "content": 12.0}),
        json!({"role": "assistant", "content": " done "}),
        json!({"role": "user", "content": "two"}),
    ];
    let tools = json!({"tools": [{"function": {"name": "f", "description": "d", "parameters": {"a": [1, 2]}, "return": "int"}}]});
    insta::assert_snapshot!(template(ALTERNATING).prompt(&messages, &arguments(tools)).unwrap().text, @r#"
<s>[INST] one[/INST]{"name": "f", "arguments": {"x": 1}, "id": "abcdefghi"}</s>[RESULTS]{"content": 12.0}[/RESULTS] done</s>[TOOLS][{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"a": [1, 2]}}}][/TOOLS][INST] S

two[/INST]
"#);
    let twice = [json!({"role": "user", "content": "a"}), json!({"role": "user", "content": "b"})];
    insta::assert_snapshot!(template(ALTERNATING).prompt(&twice, &Map::new()).unwrap_err(), @"the chat template refuses the conversation: roles must alternate user/assistant/user/assistant/...");
}

#[test]
fn generation_blocks_and_loop_controls() {
    let source = "{% for m in messages %}
    {%- if m.role == 'system' %}{% continue %}{% endif %}
    {%- if loop.index > 3 %}{% break %}{% endif %}
    {%- if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}{% else %}<{{ m.content }}>{% endif %}
{% endfor %}";
    let messages = [
        json!({"role": "system", "content": "s"}),
        json!({"role": "user", "content": "u"}),
        json!({"role": "assistant", "content": "a"}),
        json!({"role": "user", "content": "late"}),
    ];
    assert_eq!(template(source).prompt(&messages, &Map::new()).unwrap().text, "<u>a</s>");
}

/// Each line has an expression, and the output of Python's Jinja as transformers sets it up.
#[test]
fn expressions_print_as_in_python() {
    for (expression, expected) in [
        ("true", "True"),
        ("none", "None"),
        ("1.0", "1.0"),
        ("[1, 'a', none, true]", "[1, 'a', None, True]"),
        ("{'a': 1.5, 'b': \"it's\"}", "{'a': 1.5, 'b': \"it's\"}"),
        ("undefined_name", ""),
        ("'%s is %d' | format('x', 3)", "x is 3"),
        ("'a-b-c'.rpartition('-') | list", "['a-b', '-', 'c']"),
        ("'a b  c'.rsplit() | join('|') ~ 'a b'.rsplit(none, 1)[1]", "a|b|cb"),
        ("'7'.zfill(3) ~ 'ab'.ljust(3) ~ '|' ~ 'ab'.rjust(3) ~ 'aB'.swapcase()", "007ab | abAb"),
        ("'-' * 5", "-----"),
        ("7 // 2", "3"),
        ("7 / 2", "3.5"),
        ("2 ** 3", "8"),
        ("'a,b'.split(',') | join('+')", "a+b"),
        ("'abc'[::-1]", "cba"),
        ("'abc'[-1]", "c"),
        ("{'a': {'b': 2}}.get('a').get('b', 0)", "2"),
        ("{'x': 1}.get('y') is none", "True"),
        ("{'b': 1, 'a': 2} | tojson", "{\"b\": 1, \"a\": 2}"),
        ("{'b': 1, 'a': [1, {}]} | tojson(sort_keys=true, separators=(',', ':'))", "{\"a\":[1,{}],\"b\":1}"),
        ("'<é>\"\\n' | tojson", "\"<é>\\\"\\n\""),
        ("'é😀' | tojson(ensure_ascii=true)", "\"\\u00e9\\ud83d\\ude00\""),
        ("[] | tojson(indent=2) ~ {'a': [1]} | tojson(indent=4)", "[]{\n    \"a\": [\n        1\n    ]\n}"),
        ("(1, 2) | tojson", "[1, 2]"),
        ("1e20 | tojson", "1e+20"),
        ("'x' ~ 1 ~ none ~ true", "x1NoneTrue"),
        ("none | string", "None"),
        ("'Hello'.upper() + 'WORLD'.lower() + 'a b'.title()", "HELLOworldA B"),
        ("' x '.strip() + '|' + 'xxa'.lstrip('x') + '|' + 'axx'.rstrip('x')", "x|a|a"),
        ("'a\\nb'.splitlines() | length", "2"),
        ("'abcabc'.replace('b', 'X') ~ 'abcabc'.find('c') ~ 'aXa'.count('a')", "aXcaXc22"),
        ("'ab' in 'cabd' and 'k' in {'k': 1} and 3 not in [1, 2]", "True"),
        ("[1, 2, 3][1:] | first", "2"),
        ("messages | map(attribute='role') | list", "['user']"),
        ("messages | rejectattr('role', 'equalto', 'user') | list | length", "0"),
        ("'yes' if messages[0].missing is not defined else 'no'", "yes"),
        ("range(3) | list", "[0, 1, 2]"),
        ("'{} and {}'.format(1, 'b')", "1 and b"),
        ("'a-b-c'.rsplit('-', 1)", "['a-b', 'c']"),
        ("'prefix_x'.removeprefix('prefix_') + 'x.py'.removesuffix('.py')", "xx"),
        ("'a=b=c'.partition('=')[2]", "b=c"),
        ("{'a': 1}.items() | list", "[('a', 1)]"),
        ("dict(a=1, b='x') | tojson", "{\"a\": 1, \"b\": \"x\"}"),
        ("'3' | int + 1", "4"),
        ("messages[0]['content'][:4] + '...'", "some..."),
        ("none is iterable", "False"),
        ("undefined_name is iterable and 'a' is sequence and {} is sequence", "True"),
        ("undefined_name | length ~ undefined_name | items | list", "0[]"),
        ("(undefined_name | first) is defined or (undefined_name | last) is defined", "False"),
        ("'x' | int ~ 'x' | int(7) ~ 'x' | float", "070.0"),
        ("'a\\n\\nb\\n' | indent(2)", "a\n\n  b\n"),
        ("'a\\nb' | indent(2, true)", "  a\n  b"),
        ("{'a': 1, 'b': 2} | last ~ 'Ab'.casefold() ~ 'xby'.index('b') ~ [1].copy()", "bab1[1]"),
        ("joiner(', ')()", ""),
        ("strftime_now('%d %b %Y')", "26 Jul 2024"),
        ("1e-05", "1e-05"),
        ("1e16", "1e+16"),
        ("[1e-05, 1e16, 1.0, none, 'a']", "[1e-05, 1e+16, 1.0, None, 'a']"),
        ("{'a': 1e-7, 'b': (1e22,)}", "{'a': 1e-07, 'b': (1e+22,)}"),
        ("(1, 2) ~ 1.5e300", "(1, 2)1.5e+300"),
        ("1e-05 ~ '|' ~ 1e16 | string ~ [1e-05] | string", "1e-05|1e+16[1e-05]"),
        ("[1e-05, [1e16]] | join(' ') ~ 1e-05 | upper", "1e-05 [1e+16]1E-05"),
        ("123456789012345680.0", "1.2345678901234568e+17"),
        ("'%s %s' | format(1e-05, [1e16]) ~ '{} {}'.format(1e-05, 1)", "1e-05 [1e+16]1e-05 1"),
        ("'%s-%d %r' % ('a', 3, 1e16) ~ '%.2f' % 1.5 ~ '%6s|' % 1e-05", "a-3 1e+161.50 1e-05|"),
        ("'%s%%' % 1 ~ '%(a)s' % {'a': 'b'} ~ '%s' % none", "1%bNone"),
        ("5 % 3 ~ -5 % 3 ~ 5 % -3 ~ 5.5 % 2 ~ true % 2", "21-11.51"),
        (
            "'a b-c d_e' | wordcount ~ 'x' | center(5) ~ 'x'.center(4) ~ 'ab'.center(5, '*')",
            "4  x   x  **ab*",
        ),
        ("[[1], [2, 3]] | sum(start=[]) ~ [1, 2] | sum(start=1.5)", "[1, 2, 3]4.5"),
        (
            "[{'a': [1]}, {'a': [2]}] | sum('a', []) ~ [{'a': [1]}] | sum(attribute='a', start=[0])",
            "[1, 2][0, 1]",
        ),
        ("'abcbc'.rindex('bc') ~ '<' | forceescape", "3&lt;"),
        (
            "[{'a': 1}, {'a': 2}] | join('+', attribute='a') ~ [{'a': 1}, {'a': 2}] | sum(attribute='a')",
            "1+23",
        ),
    ] {
        let messages = [json!({"role": "user", "content": "something"})];
        let printed = template(&format!("{{{{ {expression} }}}}")).render(&messages, &Map::new());
        let printed = printed.unwrap_or_else(|error| format!("ERROR {error}"));
        assert_eq!(printed, expected, "{expression}");
    }
}

#[test]
fn what_is_not_supported_is_named() {
    let refused = |expression: &str| {
        let rendered = template(&format!("{{{{ {expression} }}}}")).render::<Value>(&[], &Map::new());
        rendered.expect_err(expression).to_string()
    };
    insta::assert_snapshot!(refused("'a b' | urlencode"), @"the chat template failed (line 1): unknown filter: the filter `urlencode` of Jinja2 is not supported in chat templates");
    insta::assert_snapshot!(refused("[1, 2] | random"), @"the chat template failed (line 1): unknown filter: the filter `random` of Jinja2 is not supported in chat templates: a prompt is the same in every run");
    insta::assert_snapshot!(refused("'a'.encode()"), @"the chat template failed (line 1): invalid operation: the method `encode` of Python is not supported in chat templates");
    insta::assert_snapshot!(refused("[1].append(2)"), @"the chat template failed (line 1): invalid operation: the method `append` changes a value, which chat templates cannot do (transformers refuses it too); use a `namespace`");
    insta::assert_snapshot!(refused("['a'] | sum(start='')"), @"the chat template failed (line 1): invalid operation: sum does not add texts, and neither does Jinja2: use join");
    insta::assert_snapshot!(refused("'%*d' % (3, 7)"), @"the chat template failed (line 1): invalid operation: a width that is an argument (`*`) is not supported in chat templates");
    insta::assert_snapshot!(refused("1 % 0"), @"the chat template failed (line 1): invalid operation: unable to calculate 1 % 0");
    insta::assert_snapshot!(refused("[] % 2"), @"the chat template failed (line 1): invalid operation: tried to use % operator on unsupported types sequence and number");
}

/// Bytes of templates changed anywhere: a text or an error, never a panic.
#[test]
fn mutated_templates_never_panic() {
    let messages = [json!({"role": "user", "content": "a"}), json!({"role": "assistant", "content": "b"})];
    let key = |round: usize, place: usize| (round * 7919 + place * 104_729) ^ (round << 7);
    let mut num_errors = 0;
    for round in 0..1500 {
        let source = [THINKING, HEADERS, ALTERNATING, CHATML][round % 4];
        let mut characters: Vec<char> = source.chars().collect();
        for place in 0..=(round % 3) {
            let at = key(round, place) % characters.len();
            match key(round, place + 10) % 3 {
                0 => drop(characters.remove(at)),
                1 => {
                    characters[at] =
                        ['{', '%', '}', '-', '\'', '[', ':', '|', '(', '9'][key(round, place + 20) % 10];
                }
                _ => {
                    let other = key(round, place + 30) % characters.len();
                    characters.swap(at, other);
                }
            }
        }
        let source: String = characters.into_iter().collect();
        let text =
            ChatTemplate::new(&source, &special()).and_then(|chat| chat.prompt(&messages, &Map::new()));
        num_errors += usize::from(text.is_err());
    }
    assert!(num_errors > 100, "mutations must hurt: {num_errors}");
}
