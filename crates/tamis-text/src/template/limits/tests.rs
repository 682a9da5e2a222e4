use serde_json::{Map, Value, json};

use super::super::tests::{special, template};
use super::super::{ChatTemplate, TemplateError};
use super::work_done;

/// Templates that would fill the memory or never end. Each stops soon, with an error that names its excess.
#[test]
fn no_template_fills_the_memory_or_goes_on_for_ever() {
    let doubled = |operation: &str| {
        format!(
            "{{% set ns = namespace(s='ab', l=[1]) %}}{{% for i in range(60) %}}{operation}{{% endfor %}}{{{{ ns.s }}}}"
        )
    };
    let forms = [
        doubled("{% set ns.s = ns.s ~ ns.s %}"),
        doubled("{% set ns.s = ns.s + ns.s %}"),
        doubled("{% set ns.s = ns.s * 2 %}"),
        doubled("{% set ns.s = '%s%s' | format(ns.s, ns.s) %}"),
        doubled("{% set ns.s = '%s%s' % (ns.s, ns.s) %}"),
        doubled("{% set ns.l = [ns.l, ns.l] | sum(start=[]) %}"),
        doubled("{% set ns.s = [1.5, ns.s, ns.s] | join %}"),
        doubled("{% set ns.s = '{}{}'.format(ns.s, ns.s) %}"),
        doubled("{% set ns.s = ns.s | replace('b', ns.s) %}"),
        doubled("{% set ns.s = ns.s.replace('a', ns.s) %}"),
        doubled("{% set ns.s = [ns.s, ns.s] | join %}"),
        doubled("{% set ns.s = ns.s | join(ns.s) %}"),
        doubled("{% set ns.s = ns.s.join([ns.s, ns.s, ns.s]) %}"),
        doubled("{% set ns.s = ('\n' ~ ns.s) | indent(ns.s) %}"),
        doubled("{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}"),
        doubled("{% set ns.l = ns.l + ns.l %}"),
        doubled("{% set ns.l = ns.l * 2 %}"),
        doubled("{% set ns.l = [ns.l, ns.l] %}"),
        doubled("{% set ns.l = {'a': ns.l, 'b': ns.l} %}"),
        doubled("{% set ns.l = (ns.l, ns.l) %}"),
        doubled("{% set ns.s = [ns.s, ns.s] | string %}"),
        doubled("{% set ns.s = [ns.s, ns.s] | tojson %}"),
        "{% macro m(s) %}{{ s }}{{ s }}{% endmacro %}".to_owned() + &doubled("{% set ns.s = m(ns.s) %}"),
        "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}{% endfor %}{% \
             endfor %}{% endfor %}".to_owned(),
        format!("{{% for a in range(100000) %}}{}{{% endfor %}}", "long ".repeat(10_000)),
        format!("{{% set x %}}{{% for a in range(100000) %}}{}{{% endfor %}}{{% endset %}}", "long ".repeat(10_000)),
        "{{ 'x' * 10000000000000 }}".to_owned(),
        "{{ ('x' * 99999999) ~ ('x' * 99999999) ~ ('x' * 99999999) }}".to_owned(),
        "{{ (1, 2) * 50000000 }}".to_owned(),
        "{{ '%1000000000d' | format(1) }}".to_owned(),
        "{{ '%1000000000d' % 1 }}".to_owned(),
        "{{ 'a' | center(1000000000) }}".to_owned(),
        "{{ '%*d' | format(1000000000, 1) }}".to_owned(),
        "{{ '%.1000000000f' | format(1.5) }}".to_owned(),
        "{{ '{:>1000000000}'.format('a') }}".to_owned(),
        "{{ [1] | batch(1000000000, 'x') | list }}".to_owned(),
        "{{ [1] | slice(1000000000, 'x') | list }}".to_owned(),
        "{{ ['a', 'b'] | map('replace', 'a', 'b' * 4000000) | map('replace', 'b', 'bb') | list }}".to_owned(),
        "{% set l = ['x' * 1000000] * 4 %}{{ l | join('y' * 4000000) }}".to_owned(),
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}".to_owned(),
        "{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns | tojson }}".to_owned(),
        "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}".to_owned(),
        "{% set ns = namespace(l=[1, 2]) %}{% for i in range(100000) %}{% set ns.l = ns.l[0:] %}{% endfor %}{{ ns.l == ns.l }}"
            .to_owned()
            + &doubled("{% set ns.l = [ns.l, ns.l] %}"),
        "{% set s = 'a' * 4000000 %}{% for i in range(100000) %}{% if 'b' in s %}{% endif %}{% endfor %}".to_owned(),
        "{% set s = 'a' * 4000000 %}{% for i in range(100000) %}{{ s.find('b') }}{% endfor %}".to_owned(),
        "{% set l = ['a' * 40] * 50000 %}{% for i in range(100000) %}{{ l == l }}{% endfor %}".to_owned(),
    ];
    let messages = [json!({"role": "user", "content": "x"})];
    for source in forms {
        let begun = std::time::Instant::now();
        let outcome = template(&source).render(&messages, &Map::new());
        let error = outcome.map(|text| text.len()).unwrap_err();
        assert!(
            matches!(error, TemplateError::TooMuch { .. }),
            "{}: {error}",
            &source[..source.len().min(200)]
        );
        assert!(
            begun.elapsed().as_secs() < 60,
            "{:?}: {}",
            begun.elapsed(),
            &source[..source.len().min(200)]
        );
    }
    // If the system reports peak memory: the result of one rendering, and a little more.
    if let Ok(status) = std::fs::read_to_string("/proc/self/status")
        && let Some(line) = status.lines().find(|line| line.starts_with("VmHWM"))
    {
        let kilobytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!(kilobytes < 1 << 20, "{line}");
    }
}

#[test]
fn what_is_too_much_is_said() {
    let printed = |source: &str| {
        template(source).render(&[json!({"role": "user"})], &Map::new()).unwrap_err().to_string()
    };
    insta::assert_snapshot!(printed("{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s \
         ~ ns.s %}{% endfor \
         %}"), @"the chat template needs too much work for one conversation: a value of more than 4 MiB: does it double a text in a loop?");
    insta::assert_snapshot!(printed("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% \
         endfor %}"), @"the chat template needs too much work for one conversation: more than 5,000,000 steps: a loop in a loop in a loop?");
    insta::assert_snapshot!(printed("{% set s = 'a' * 4000000 %}{% for i in range(1000) %}{{ s }}{% endfor %}"), @"the chat template needs too much work for one conversation: more work than to copy 256 MiB: does it copy or search its text in a loop?");
    let long = "a".repeat((1 << 20) + 1);
    insta::assert_snapshot!(ChatTemplate::new(&long, &special()).unwrap_err(), @"the chat template has 1048577 bytes, and at most 1048576 bytes are read: is it the right file?");
    let deep = format!("{{{{ {}1 }}}}", "1 + ".repeat(3000));
    insta::assert_snapshot!(ChatTemplate::new(&deep, &special()).unwrap_err(), @"the chat template does not \
         parse (line 1): syntax error: more than 2000 tokens in one expression (line 1)");
    let branches = format!("{{% if x %}}{}{{% endif %}}", "{% elif y %}".repeat(600));
    insta::assert_snapshot!(ChatTemplate::new(&branches, &special()).unwrap_err(), @"the chat template does not parse (line 1): syntax error: more than 500 `elif` (line 1)");
}

#[test]
fn a_long_conversation_is_within_the_limits() {
    let source = "{% set ns = namespace(seen=[], text='') %}{% for m in messages %}{% set ns.seen = ns.seen + [m] %}\
        {% set ns.text = ns.text ~ m.role[:1] %}{% if messages | length > loop.index and '</think>' in \
        m.content %}{{ m.content.split('</think>')[-1] }}\
        {% else %}{{ m.content }}{% endif %}{% endfor %}{{ ns.seen | length }}{{ ns.text | length }}";
    let messages: Vec<Value> =
        (0..1000).map(|_| json!({"role": "user", "content": "word ".repeat(100)})).collect();
    let text = template(source).render(&messages, &Map::new()).unwrap();
    assert_eq!(text.len(), 500_000 + 8);
}

/// Work of the expression in a rendering of `{% set s %}...` followed by it, without the work of the set-up.
fn work_of(expression: &str) -> usize {
    let set_up = "{% set s = 'ab' * 50000 %}{% set t = 'ab' * 50000 %}{% set l = ['x' * 500] * 1000 %}{% set n = range(10000) | list %}\
        {% set d = {s: 1} %}{% set m = [{'k': 'x' * 500}] * 1000 %}";
    let work = |source: String| {
        let outcome = template(&source).render(&[json!({"role": "user"})], &Map::new());
        outcome.unwrap_or_else(|error| panic!("{expression}: {error}"));
        work_done()
    };
    work(format!("{set_up}{{% set x = {expression} %}}")) - work(set_up.to_owned())
}

/// The charge is at least the work: bytes read or built, comparisons of a sort, calls of a filter for each
/// item. (`s` and `t` have 100,000 bytes, `l` 1000 texts of 500 bytes, `n` 10,000 numbers, `m` 1000 mappings
/// that hold such a text.)
#[test]
fn what_is_done_is_charged() {
    let sorted = |items: usize| items * items.ilog2() as usize;
    let bytes = 100_000;
    for (expression, done) in [
        ("s | upper", 2 * bytes),
        ("s | lower", 2 * bytes),
        ("s | title", 2 * bytes),
        ("s | capitalize", 2 * bytes),
        ("s | replace('a', 'b')", 2 * bytes),
        ("s | trim('b')", bytes),
        ("s | escape", 2 * bytes),
        ("s | reverse", 2 * bytes),
        ("s | list", bytes),
        ("s | split('a')", 2 * bytes),
        ("s | striptags", 2 * bytes),
        ("s | truncate(length=10)", bytes),
        ("s | indent", 2 * bytes),
        ("s | format", bytes),
        ("s | int", bytes),
        ("s | float", bytes),
        ("s | length", bytes),
        ("s | tojson", 2 * bytes),
        ("s | pprint", 2 * bytes),
        ("s.upper()", 2 * bytes),
        ("s.find('c')", bytes),
        ("s.count('a')", bytes),
        ("s.strip('xyz')", 3 * bytes),
        ("s.replace('a', 'b')", 2 * bytes),
        ("s.split('a')", 2 * bytes),
        ("s.isalpha()", bytes),
        ("s.startswith(t)", bytes / 2),
        ("s == t", bytes / 2),
        ("s < t", bytes / 2),
        ("'c' in s", bytes / 2),
        ("s is eq(t)", bytes / 2),
        ("s is lower", bytes),
        ("s is in([s, t])", bytes / 2),
        ("s[-1]", bytes),
        ("s[99999:]", bytes),
        ("s[::-1]", 2 * bytes),
        ("d[s]", bytes / 2),
        ("d.get(s)", bytes / 2),
        ("{s: 1}", bytes / 2),
        ("s ~ t", 2 * bytes),
        ("s + t", 2 * bytes),
        ("s * 3", 3 * bytes),
        ("l | join", 1000 * 500 * 2),
        ("l | string", 1000 * 500 * 2),
        ("l | tojson", 1000 * 500 * 2),
        ("l | map('upper') | list", 1000 * 500 * 2),
        ("l | map('replace', 'x', 'y') | list", 1000 * 500 * 2),
        ("l | map('length') | list", 1000 * 500),
        ("l | select('eq', 'y') | list", 1000 * 500 / 2),
        ("l[:100] | select('in', s) | list", 100 * bytes / 2),
        ("l | sort", sorted(1000) * 500),
        ("l | unique", sorted(1000) * 500),
        ("l | max", 1000 * 500),
        ("'y' in l", 1000 * 500 / 2),
        ("l == l", 1000 * 500 / 2),
        ("n | sort", sorted(10_000) * 16),
        ("n | sort(reverse=true)", sorted(10_000) * 16),
        ("n | unique", sorted(10_000) * 16),
        ("n | map('string') | list", 10_000 * 64),
        ("n | select('odd') | list", 10_000 * 64),
        ("n | sum", 10_000 * 16),
        ("n | min", 10_000 * 16),
        ("n | batch(3) | list", 10_000 * 16),
        ("n[1:]", 9_999 * 16),
        ("n + n", 20_000 * 16),
        ("5000 in n", 10_000 * 16),
        ("m | sort(attribute='k')", sorted(1000) * 500),
        ("m | groupby('k')", sorted(1000) * 500),
        ("m | unique(attribute='k')", sorted(1000) * 500),
        ("m | map(attribute='k') | list", 1000 * 64),
        ("m | selectattr('k', 'eq', 'y') | list", 1000 * 500 / 2),
        ("d | dictsort", bytes),
    ] {
        let charged = work_of(expression);
        assert!(charged >= done, "{expression}: charged {charged}, and does {done}");
    }
}

/// Each would take minutes or hours if only what is built were counted. The limits on work and steps stop
/// them all.
#[test]
fn no_template_reads_or_sorts_for_ever() {
    let long = "{% set s = 'ab' * 1000000 %}{% set n = range(100000) | list %}";
    let again =
        |what: &str| format!("{long}{{% for i in range(100000) %}}{{% set x = {what} %}}{{% endfor %}}");
    let name = "n".repeat(150);
    let sources = [
        again("n | sort"),
        again("s.swapcase()"),
        again("s.rstrip('cba')"),
        again("loop.changed(s)"),
        again("strftime_now(s)"),
        again(&format!("'{}' in s", "b".repeat(400_000))),
        again(&format!("{{'a': 1}}['{}']", "b".repeat(400_000))),
        // A name is looked up through all levels.
        format!(
            "{}{{% for i in range(100000) %}}{}{{% endfor %}}{}",
            "{% with %}".repeat(60),
            format!("{{{{ {name} }}}}").repeat(100),
            "{% endwith %}".repeat(60)
        ),
    ];
    for source in sources {
        let error = template(&source).render(&[json!({"role": "user"})], &Map::new()).unwrap_err();
        assert!(matches!(error, TemplateError::TooMuch { .. }), "{}: {error}", &source[source.len() - 80..]);
    }
}
