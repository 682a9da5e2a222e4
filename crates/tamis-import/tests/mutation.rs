//! Configurations mutated by bytes and by tokens cause no panic and no hang: each loads, or is refused with a
//! message.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use tamis_config::source::{Source, SourceKind};
use tamis_import::{import, load_sources};

/// A small generator (splitmix64): a failure names its number, which gives the same text again.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn pick<'a>(&mut self, items: &[&'a str]) -> &'a str {
        items[self.below(items.len())]
    }

    fn token(&mut self) -> &'static str {
        self.pick(&[SIGNS, WORDS].concat())
    }
}

const SIGNS: &[&str] = &[
    "{", "}", "[", "]", ":", "- ", ", ", "\n", "\t", "  ", "'", "\"", "#", "&a ", "*a", "!!int ", "!x ", "|",
    ">", "%", "@", "`", "---", "...", "? ", "null", "~", "true", "-1", "0", "1e400", "1e-400", ".inf",
    ".nan", "0x10", "1_000", "\u{0}", "\u{feff}", "\u{85}", "é", "\r", "kind", "variance", "reward",
    "filter", "n", "rollout", "data", "<<", "preset", "dapo", "command", "retry:", "-0.0", "init", "levels",
    "[[[[[[[[", "{{{{{{",
];

const WORDS: &[&str] = &[
    "99999999999999999999",
    "\u{1F600}",
    "mean_range",
    "soft_overlong",
    "18446744073709551615",
    "max_num_gen_batches",
];

const ARGUMENTS: &[&str] = &[
    "preset=dapo",
    "rollout.n=1",
    "~filter",
    "+reward={kind: format}",
    "reward[0].weight=0",
    "algorithm.filter_groups.enable=True",
    "algorithm.use_dynamic_sample=true",
    "actor_rollout_ref.rollout.rollout_filter_strategy=top_p",
    "num_generations=4",
    "data.train=\"['a']\"",
    "per_device_train_batch_size=0",
    "model.init.num_heads=0",
    "train.micro_batch_size=3",
    "report_to=all",
    "filter.kind=mean_range",
    "critic.x=1",
    "trainer.logger=[console]",
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1",
    "a.b=c",
    "=",
    "~",
    "+",
    "[0]=1",
    "reward_funcs=[accuracy_reward]",
    "reward_weights=[1]",
    "schedule.on_empty_round=retry:2",
    "model.memory_limit=1GiB",
];

fn mutate(text: &str, draw: &mut Draw) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..=draw.below(4) {
        let at = draw.below(bytes.len() + 1);
        let until = (at + draw.below(12)).min(bytes.len());
        match draw.below(6) {
            // A byte changed, bytes removed, bytes repeated.
            0 if at < bytes.len() => bytes[at] ^= 1 << draw.below(8),
            1 => drop(bytes.drain(at..until)),
            2 => {
                let part = bytes[at..until].to_vec();
                bytes.splice(at..at, part);
            }
            // A token inserted, or put in place of the text between two separators.
            3 => drop(bytes.splice(at..at, draw.token().bytes())),
            4 => {
                let is_separator = |byte: &u8| b" ,:{}[]\n".contains(byte);
                let start = bytes[..at].iter().rposition(is_separator).map_or(0, |start| start + 1);
                let end = bytes[at..].iter().position(is_separator).map_or(bytes.len(), |end| at + end);
                bytes.splice(start..end, draw.token().bytes());
            }
            // A line doubled.
            _ => {
                let start = bytes[..at].iter().rposition(|&byte| byte == b'\n').map_or(0, |start| start + 1);
                let end = bytes[at..]
                    .iter()
                    .position(|&byte| byte == b'\n')
                    .map_or(bytes.len(), |end| at + end + 1);
                let line = bytes[start..end].to_vec();
                bytes.splice(start..start, line);
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn seeds() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut texts = vec![
        "model: {init: {hidden_size: 64, num_heads: 4, tokenizer: char}, memory_limit: 1GiB}\ndata:\n  task: arithmetic\n  arithmetic: {levels: [{digits: \
         2, operators: ['+'], terms: 2, weight: 1}]}\n  chat_template_kwargs: {a: [1, {b: c}]}\nreward:\n- &r {kind: number, name: acc}\n- {kind: \
         command, argv: [x], timeout: 2s}\n- {kind: cosine}\nfilter: {kind: mean_range, low: 0.1, high: 0.9}\nschedule: {on_empty_round: \
         'retry:3', surplus: carry, max_lag: 1}\ntrain: {total_steps: 9, optimizer: {betas: [0.9, 0.99]}, lr_schedule: {kind: \
         cosine}}\nvalidate: {test_freq: -1}\ncheckpoint: {keep_best: {k: 2}}\n"
            .to_owned(),
    ];
    let mut paths: Vec<_> = std::fs::read_dir(root.join("../../configs/examples"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    texts.extend(paths.iter().map(|path| std::fs::read_to_string(path).unwrap()));
    texts
}

/// Whether the mutation of this number loads.
fn loads(seeds: &[String], number: usize) -> bool {
    let mut draw = Draw(number as u64);
    let text = mutate(&seeds[draw.below(seeds.len())], &mut draw);
    let arguments: Vec<String> = (0..draw.below(3))
        .map(|_| {
            let argument = draw.pick(ARGUMENTS);
            if draw.below(2) == 0 { mutate(argument, &mut draw) } else { argument.to_owned() }
        })
        .collect();
    let outcome = std::panic::catch_unwind(|| {
        let source = Source::new(SourceKind::File("mutated.yaml".into()), text.clone());
        match load_sources(&[source], &arguments) {
            Ok(loaded) => {
                let printed: usize = loaded.warnings.iter().map(|warning| warning.to_string().len()).sum();
                (true, printed + 1)
            }
            Err(errors) => (false, errors.to_string().len()),
        }
    });
    let Ok((loaded, length)) = outcome else {
        panic!("mutation {number} caused a panic, with {arguments:?} and\n{text}");
    };
    assert!(length > 0, "mutation {number} is refused without a message");
    loaded
}

/// None of this many mutations causes a panic.
fn mutated_configurations(num: usize) {
    const THREADS: usize = 4;
    let seeds = &seeds();
    let num_loaded = std::thread::scope(|scope| {
        let started: Vec<_> = (0..THREADS)
            .map(|first| {
                let numbers = (first..num).step_by(THREADS);
                scope.spawn(move || numbers.filter(|&number| loads(seeds, number)).count())
            })
            .collect();
        started.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
    });
    // Mutations that never load, or always do, would test nothing.
    assert!(num_loaded > num / 50 && num_loaded < num / 2, "{num_loaded} loaded");
}

#[test]
fn mutated_configurations_cause_no_panic() {
    mutated_configurations(800);
}

#[test]
#[ignore = "long: .ci/all"]
fn many_mutated_configurations_cause_no_panic() {
    mutated_configurations(12_000);
}

#[test]
fn what_loads_is_shown_as_itself() {
    let seeds = seeds();
    let mut num_compared = 0;
    for number in 0..1_500 {
        let mut draw = Draw(number ^ 0xFEED);
        let text = mutate(&seeds[draw.below(seeds.len())], &mut draw);
        let source = Source::new(SourceKind::File("mutated.yaml".into()), text.clone());
        if let Ok(loaded) = load_sources(&[source], &[]) {
            let shown = loaded.show();
            let source = Source::new(SourceKind::File("shown.yaml".into()), shown.clone());
            let again =
                load_sources(&[source], &[]).unwrap_or_else(|errors| panic!("{number}: {errors}\n{shown}"));
            assert_eq!(again.values(), loaded.values(), "{number}: {text}\n{shown}");
            num_compared += 1;
        }
    }
    assert!(num_compared > 50, "{num_compared} compared");
}

fn mutated_imports(num: u64) {
    for number in 0..num {
        let mut draw = Draw(number ^ 0xABBA);
        let arguments: Vec<String> = (0..=draw.below(5))
            .map(|_| {
                let argument = draw.pick(ARGUMENTS);
                if draw.below(2) == 0 { mutate(argument, &mut draw) } else { argument.to_owned() }
            })
            .collect();
        let outcome = std::panic::catch_unwind(|| match import(&arguments, Path::new("")) {
            Ok(import) => {
                import.yaml.len()
                    + import.remaining.iter().map(|found| found.to_string().len()).sum::<usize>()
            }
            Err(errors) => errors.to_string().len(),
        });
        assert!(outcome.is_ok(), "import {number} caused a panic: {arguments:?}");
    }
}

#[test]
fn mutated_imports_cause_no_panic() {
    mutated_imports(150);
}

#[test]
#[ignore = "long: .ci/all"]
fn many_mutated_imports_cause_no_panic() {
    mutated_imports(2_000);
}
