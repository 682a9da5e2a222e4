//! Laws of every built-in game: an episode is a function of its keys and its answers, members of a group
//! share the start, and an answer never changes what another member sees.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tamis_core::random::{Key, Purpose};
use tamis_core::setting::Described as _;
use tamis_env::environment::kind::{EnvironmentKind, EnvironmentMaker, EnvironmentStyle};
use tamis_env::environment::prompting::Prompting;

const GAMES: [&str; 7] =
    ["bandit", "countdown", "frozen_lake", "rubik_2x2", "sokoban", "sudoku", "twenty_forty_eight"];

fn maker(kind: &str, style: EnvironmentStyle) -> EnvironmentMaker {
    let kind: EnvironmentKind = serde_json::from_value(serde_json::json!({"kind": kind})).expect("a kind");
    EnvironmentMaker { kind, style, prompting: Prompting { max_turns: 6, ..Prompting::default() } }
}

/// Everything that an episode shows and returns, with answers drawn by a key.
fn play(maker: &EnvironmentMaker, (start, luck): (Key, Key), answers: Key) -> Vec<String> {
    let actions = maker.game(start, luck).expect("a game").actions();
    let mut environment = maker.begin(start, luck).expect("begun");
    let mut told = vec![environment.observe()];
    for turn in 0.. {
        // Sometimes an invalid answer.
        let any = answers.with(turn).below(0, actions.len() as u64 + 1) as usize;
        let answer =
            actions.get(any).map_or("1+1".to_owned(), |action| maker.answer(std::slice::from_ref(action)));
        let outcome = environment.act(&answer);
        told.push(format!("{answer} {outcome:?} {:?}", environment.is_success()));
        if outcome.end.is_some() {
            return told;
        }
        told.push(environment.observe());
    }
    told
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn an_episode_is_a_function_of_its_keys_and_answers(seed in 0_u64..1000) {
        let key = |n| Key::new(seed, Purpose::Environment).with(n);
        for kind in GAMES {
            for style in [EnvironmentStyle::Ragen, EnvironmentStyle::Plain] {
                let maker = maker(kind, style);
                let first = play(&maker, (key(0), key(1)), key(2));
                prop_assert_eq!(&play(&maker, (key(0), key(1)), key(2)), &first, "{}", kind);
                // Another member has the same start, whatever its luck and its answers.
                let other = play(&maker, (key(0), key(3)), key(4));
                prop_assert_eq!(&other[0], &first[0], "{}", kind);
                prop_assert_eq!(&maker.open(key(0)).expect("open").observation, &first[0]);
                // Every episode ends.
                prop_assert!(first.len() <= 13, "{}: {} parts", kind, first.len());
            }
        }
    }
}

/// One of several starts is drawn, and all members share it. Each member slips by its own luck.
#[test]
fn a_start_is_of_one_key_and_slips_are_of_the_other() {
    // Ice on which every step slips to one of the two sides.
    let lake =
        serde_json::json!({"kind": "frozen_lake", "map": ["SFFS", "FFFF", "SFFG"], "success_rate": 0.0});
    let kind = serde_json::from_value(lake).expect("a kind");
    let maker = EnvironmentMaker { kind, ..maker("frozen_lake", EnvironmentStyle::Plain) };
    let key = |n| Key::new(1, Purpose::Environment).with(n);
    let walk = |start: u64, luck: u64| {
        let mut lake = maker.game(key(start), key(luck)).expect("a game");
        let begun = lake.observe();
        lake.play("Down");
        (begun, lake.observe())
    };
    let members: BTreeSet<_> = (0..40).map(|luck| walk(100, luck)).collect();
    let begun: BTreeSet<_> = members.iter().map(|(begun, _)| begun).collect();
    assert!(begun.len() == 1 && members.len() > 1, "{members:?}");
    let starts: BTreeSet<_> = (0..40).map(|start| walk(start, 100).0).collect();
    assert_eq!(starts.len(), 3, "{starts:?}");
}

#[test]
fn a_setting_outside_its_range_is_refused_by_name() {
    let key = Key::new(1, Purpose::Environment);
    let mut num_refused = 0;
    for kind in GAMES {
        for spec in EnvironmentKind::shape().keys_of_kind(kind) {
            for value in [-2e9, 0.0, 1.0, 2e9].into_iter().filter(|value| !spec.check.holds(*value)) {
                let json = serde_json::json!({"kind": kind, spec.name: value as i64});
                // A count below 0 is refused.
                let Ok(settings) = serde_json::from_value(json) else { continue };
                let maker = EnvironmentMaker { kind: settings, ..maker(kind, EnvironmentStyle::Plain) };
                let error = maker.game(key, key).err().map(|error| error.to_string()).unwrap_or_default();
                let is_named = error.starts_with(&format!("setting `{}` is ", spec.name));
                let is_told = is_named && error.contains("; expected a finite number, ");
                assert!(is_told, "{kind} {} {value}: {error}", spec.name);
                num_refused += 1;
            }
        }
    }
    assert!(num_refused > 20, "{num_refused}");
}

/// `environment.prompting.instruction` replaces a game's instruction, for example by RAGEN's text.
#[test]
fn an_instruction_replaces_the_words_of_the_game() {
    for kind in GAMES {
        let system = |instruction: &str| {
            let mut maker = maker(kind, EnvironmentStyle::Ragen);
            instruction.clone_into(&mut maker.prompting.instruction);
            let opening = maker.open(Key::new(1, Purpose::Environment)).expect("open");
            opening.system.expect("words")
        };
        assert!(
            system("Words of RAGEN. ").starts_with("You're a helpful assistant. Words of RAGEN. "),
            "{kind}"
        );
        assert!(!system("").contains("Words of RAGEN"), "{kind}");
    }
}
