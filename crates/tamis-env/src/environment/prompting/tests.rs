use proptest::prelude::*;

use super::super::game::Played;
use super::*;

/// A walk on a line from 0. `Right` earns 0.5. `Left` costs 0.1 and does nothing at 0. Reaching the goal wins
/// and earns 1 more. The state lists the actions so far. If `is_listed` is off, the game does not list its
/// actions.
#[derive(Clone)]
struct Walk {
    place: usize,
    goal: usize,
    played: String,
    is_listed: bool,
}

impl Walk {
    fn new(goal: usize) -> Self {
        Self { place: 0, goal, played: String::new(), is_listed: true }
    }
}

impl Game for Walk {
    fn legend(&self) -> Vec<(String, String)> {
        vec![("o".to_owned(), "you".to_owned()), ("_".to_owned(), "ground".to_owned())]
    }

    fn actions(&self) -> Vec<String> {
        if self.is_listed { vec!["Left".to_owned(), "Right".to_owned()] } else { Vec::new() }
    }

    fn observe(&self) -> String {
        format!("{}o{}", "_".repeat(self.place), self.played)
    }

    fn play(&mut self, action: &str) -> Option<Played> {
        let before = self.place;
        let mut reward = if find_action(&["Left", "Right"], action)? == 0 {
            self.place = self.place.saturating_sub(1);
            self.played.push('L');
            -0.1
        } else {
            self.place += 1;
            self.played.push('R');
            0.5
        };
        let is_over = self.is_success();
        if is_over {
            reward += 1.0;
        }
        Some(Played { reward, is_over, is_effective: self.place != before })
    }

    fn is_success(&self) -> bool {
        self.place == self.goal
    }
}

fn prompted(goal: usize, prompting: Prompting) -> PromptedGame {
    PromptedGame::new(Box::new(Walk::new(goal)), prompting).expect("an environment")
}

fn loose() -> Prompting {
    Prompting { max_actions_per_turn: 100, max_actions: 100, max_turns: 100, ..Prompting::default() }
}

fn answer(actions: &str) -> String {
    format!("<think>So.</think><answer>{actions}</answer>")
}

fn info(outcome: &TurnOutcome) -> [f64; 4] {
    let names = ["action_is_valid", "action_is_effective", "num_actions", "format_penalty"];
    assert!(outcome.info.iter().map(|(name, _)| &**name).eq(names));
    [0, 1, 2, 3].map(|i| outcome.info[i].1)
}

#[track_caller]
fn assert_near(actual: f64, expected: f64) {
    assert!((actual - expected).abs() < 1e-9, "{actual} is not {expected}");
}

#[test]
fn texts_are_those_of_ragen() {
    let prompting = Prompting {
        instruction: "You are on a line. ".to_owned(),
        max_tokens: Some(100),
        ..Prompting::default()
    };
    let mut walk = prompted(3, prompting.clone());
    assert_eq!(
        walk.system_text(),
        "You're a helpful assistant. You are on a line. \nThe meaning of each symbol in the state is:\no: you, _: \
         ground\nYour available actions are:\nLeft, Right\nYou can make up to 10 actions, separated by the action \
         separator \" || \"\n"
    );
    assert_eq!(
        walk.observe(),
        "\nTurn 1:\nState:\no\nYou have 10 actions left. Always output: <think> [Your thoughts] </think> <answer> \
         [your answer] </answer> with no extra text. Strictly follow this format. Max response length: 100 words \
         (tokens).\n"
    );
    walk.act(&answer("Right || Left"));
    assert_eq!(
        walk.observe(),
        "Reward:\n0.4\n\nTurn 2:\nState:\noRL\nYou have 8 actions left. Always output: <think> [Your thoughts] \
         </think> <answer> [your answer] </answer> with no extra text. Strictly follow this format. Max response \
         length: 100 words (tokens).\n"
    );
    walk.act("Right");
    assert_eq!(
        walk.observe(),
        "Reward:\n0\n\nTurn 3:\nState:\noRL\nNo valid action provided previously. Environment state remains the \
         same. Please try again.\nYou have 8 actions left. Always output: <think> [Your thoughts] </think> <answer> \
         [your answer] </answer> with no extra text. Strictly follow this format. Max response length: 100 words \
         (tokens).\n"
    );
    let prompting = Prompting { think: false, show_reward: false, max_tokens: None, ..prompting };
    let mut walk = prompted(3, prompting.clone());
    walk.act("<answer>right</answer>");
    assert_eq!(
        walk.observe(),
        "\nTurn 2:\nState:\n_oR\nYou have 9 actions left. Always output: <answer> [your answer] </answer> with no \
         extra text. Strictly follow this format.\n"
    );
    // The instruction has to explain unlisted actions.
    let unlisted =
        PromptedGame::new(Box::new(Walk { is_listed: false, ..Walk::new(3) }), prompting).expect("one");
    assert_eq!(
        unlisted.system_text(),
        "You're a helpful assistant. You are on a line. \nThe meaning of each symbol in the state is:\no: you, _: \
         ground"
    );
}

#[test]
fn rewards_as_text() {
    let text = |reward, num_actions| reward_text(LastTurn { reward, num_actions, has_valid: true });
    assert_eq!(text(0.0, 0), "0");
    assert_eq!(text(0.0, 1), "0.0");
    assert_eq!(text(-0.0, 1), "0.0");
    assert_eq!(text(-0.1 - 0.1 - 0.1, 3), "-0.3");
    assert_eq!(text(10.9, 1), "10.9");
    assert_eq!(text(1.0, 1), "1.0");
    assert_eq!(text(f64::MAX, 1), format!("{:?}", f64::MAX));
}

#[test]
fn answers_that_are_read() {
    let prompting = Prompting { max_actions_per_turn: 3, ..Prompting::default() };
    for (text, actions) in [
        ("<think>a</think><answer>Up</answer>", &["Up"][..]),
        ("Well. <think>a\nb</think>\n \n<answer> Up ||\nDown\n</answer> bye", &["Up", "Down"]),
        ("<think></think><answer>Up||||Up|| ||</answer>", &["Up", "Up"]),
        ("<think>a</think><answer>1||2||3||4</answer>", &["1", "2", "3"]),
        ("<think>a</think><answer>Up|Down</answer>", &["Up|Down"]),
        ("<think>é ü 我</think><answer>上 || 下</answer>", &["上", "下"]),
        // The first answer that follows thoughts counts.
        ("<answer>1</answer><think>a</think><answer>2</answer><think>b</think><answer>3</answer>", &["2"]),
        ("<think>a<think>b</think><answer>1</answer>", &["1"]),
        ("<think>a</think> so <answer>1</answer></think><answer>2</answer>", &["2"]),
        ("<think>a</think><answer><answer>1</answer>", &["1"]),
        ("<think>a</think><answer><think>1</think> || 2<|im_end|></answer>", &["1", "2"]),
        ("<think>a</think><answer> </answer>", &[]),
        ("<think>a</think><answer>Up", &[]),
        ("<think>a<answer>Up</answer>", &[]),
        ("<answer>Up</answer>", &[]),
        ("a</think><answer>Up</answer>", &["Up"]),
        ("<THINK>a</THINK><ANSWER>Up</ANSWER>", &[]),
        ("", &[]),
    ] {
        assert_eq!(prompting.parse(text), actions, "{text}");
    }
}

#[test]
fn answers_after_thoughts_that_the_template_has_opened() {
    let prompting = Prompting::default();
    for (text, actions) in [
        ("a</think><answer>Up</answer>", &["Up"][..]),
        ("</think><answer>Up</answer>", &["Up"]),
        ("<think>a</think><answer>Up</answer>", &["Up"]),
        ("<answer>Up</answer>", &[]),
    ] {
        assert_eq!(prompting.parse(text), actions, "{text}");
    }
    let prompting = Prompting { think: false, ..Prompting::default() };
    assert_eq!(prompting.parse("<think>a</think> b <answer>Up</answer>"), ["Up"]);
}

#[test]
fn turns_by_hand() {
    let mut walk = prompted(5, Prompting { max_actions_per_turn: 4, max_turns: 9, ..Prompting::default() });
    // Valid actions are carried out even if another one is invalid. The invalid one costs its penalty once
    // and does not count as an action.
    let outcome = walk.act(&answer("RIGHT || jump || right || fly"));
    assert_near(outcome.reward.unwrap_or(f64::NAN), 0.5 + 0.5 - 0.1);
    assert_eq!((info(&outcome), outcome.end), ([1.0, 1.0, 2.0, -0.1], None));
    assert_eq!(walk.game().observe(), "__oRR");
    // Actions beyond the limit of a turn are ignored.
    let outcome = walk.act(&answer("left || left || left || left || jump"));
    assert_near(outcome.reward.unwrap_or(f64::NAN), -0.4);
    assert_eq!((info(&outcome), outcome.end), ([1.0, 0.0, 4.0, 0.0], None));
    // No action at all.
    for text in ["", "right", &answer(""), &answer("jump")] {
        let outcome = walk.act(text);
        assert_near(outcome.reward.unwrap_or(f64::NAN), -0.1);
        assert_eq!((info(&outcome), outcome.end), ([0.0, 0.0, 0.0, -0.1], None), "{text}");
    }
    assert_eq!(walk.game().observe(), "oRRLLLL");
    // Four of ten actions are left.
    let outcome = walk.act(&answer("right || right || left"));
    assert_eq!((info(&outcome), outcome.end), ([1.0, 1.0, 3.0, 0.0], None));
    let outcome = walk.act(&answer("right || right || right"));
    assert_near(outcome.reward.unwrap_or(f64::NAN), 0.5);
    assert_eq!((info(&outcome), outcome.end), ([1.0, 1.0, 1.0, 0.0], Some(EpisodeEnd::Truncated)));
    assert_eq!(walk.game().observe(), "__oRRLLLLRRLR");
    assert_eq!(walk.is_success(), Some(false));
}

#[test]
fn ends() {
    // More actions after the win: a valid one costs nothing, an unknown one the penalty.
    for (behind, penalty) in [("left", 0.0), ("jump", -0.1)] {
        let mut walk = prompted(1, loose());
        let outcome = walk.act(&answer(&format!("right || {behind}")));
        assert_near(outcome.reward.unwrap_or(f64::NAN), 1.5 + penalty);
        assert_eq!((info(&outcome), outcome.end), ([1.0, 1.0, 1.0, penalty], Some(EpisodeEnd::Terminated)));
        assert_eq!(walk.is_success(), Some(true));
        // Nothing happens after the end.
        let outcome = walk.act(&answer("left"));
        assert_eq!(outcome, TurnOutcome { end: Some(EpisodeEnd::Terminated), ..TurnOutcome::default() });
        assert_eq!(walk.game().observe(), "_oR");
    }
    // The last action of the last turn wins: the game's end takes precedence over the limit.
    let mut walk = prompted(1, Prompting { max_actions: 1, max_turns: 1, ..Prompting::default() });
    assert_eq!(walk.act(&answer("right")).end, Some(EpisodeEnd::Terminated));
    let mut walk = prompted(9, Prompting { max_turns: 2, ..Prompting::default() });
    assert_eq!(walk.act("nothing").end, None);
    assert_eq!(walk.act("nothing").end, Some(EpisodeEnd::Truncated));
}

#[test]
fn settings_out_of_range() {
    let fail = |prompting| {
        PromptedGame::new(Box::new(Walk::new(3)), prompting).err().expect("out of range").to_string()
    };
    let default = Prompting::default;
    for (prompting, message) in [
        (
            Prompting { max_turns: 0, ..default() },
            "setting `max_turns` is 0; expected a finite number, at least 1",
        ),
        (
            Prompting { action_separator: String::new(), ..default() },
            "setting `action_separator` is \"\"; expected a non-empty text",
        ),
        (
            Prompting { action_separator: "i".to_owned(), ..default() },
            "setting `action_separator` is \"i\"; expected a text that is in no action, and one is \"Right\"",
        ),
    ] {
        assert_eq!(fail(prompting), message);
    }
}

/// Texts of tags, actions and anything else.
fn texts() -> impl Strategy<Value = String> {
    let pieces = prop_oneof![
        Just("<think>".to_owned()),
        Just("</think>".to_owned()),
        Just("<answer>".to_owned()),
        Just("</answer>".to_owned()),
        Just("<|im_end|>".to_owned()),
        Just(" || ".to_owned()),
        Just("Left".to_owned()),
        Just("right".to_owned()),
        Just("jump".to_owned()),
        Just("\n ".to_owned()),
        "\\PC{0,8}",
        any::<String>(),
    ];
    prop_oneof![
        proptest::collection::vec(pieces, 0..24).prop_map(|pieces| pieces.concat()),
        proptest::collection::vec("Left|RIGHT|jump|\\PC{0,3}", 0..12)
            .prop_map(|actions| answer(&actions.join(" || "))),
    ]
}

fn promptings() -> impl Strategy<Value = Prompting> {
    (any::<[bool; 2]>(), 1usize..6, 1usize..9, 1usize..9).prop_map(
        |([think, show_reward], max_actions_per_turn, max_actions, max_turns)| Prompting {
            think,
            max_actions_per_turn,
            max_actions,
            max_turns,
            show_reward,
            ..Prompting::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// An episode of random texts, compared with the rule written a second time.
    #[test]
    fn any_texts(texts in proptest::collection::vec(texts(), 1..10), prompting in promptings(), goal in 1usize..5, is_listed: bool) {
        let mut model = Walk { is_listed, ..Walk::new(goal) };
        let mut walk = PromptedGame::new(Box::new(model.clone()), prompting.clone()).expect("an environment");
        let mut left = prompting.max_actions;
        for (turn, text) in texts.iter().enumerate() {
            let before = walk.game().observe();
            let outcome = walk.act(text);
            let [is_valid, is_effective, num_actions, penalty] = info(&outcome);

            let named = prompting.parse(text);
            prop_assert!(named.len() <= prompting.max_actions_per_turn);
            let is_action = |name: &String| ["left", "right"].contains(&name.to_ascii_lowercase().as_str());
            let (mut sum, mut last, mut count) = (0.0, Played::default(), 0);
            for name in named.iter().filter(|name| is_action(name)) {
                if left == 0 || last.is_over {
                    break;
                }
                last = model.play(name).expect("an action");
                (sum, left, count) = (sum + last.reward, left - 1, count + 1);
            }
            prop_assert_eq!(walk.game().observe(), model.observe());
            prop_assert_eq!(num_actions, f64::from(count));
            prop_assert_eq!(is_valid > 0.0, count > 0);
            prop_assert_eq!(is_effective > 0.0, last.is_effective);
            prop_assert!((outcome.reward.unwrap_or(f64::NAN) - sum - penalty).abs() < 1e-9);
            prop_assert!(penalty == 0.0 || penalty == -0.1);
            if is_listed {
                prop_assert_eq!(penalty == 0.0, !named.is_empty() && named.iter().all(is_action));
            }
            if !named.iter().any(is_action) {
                prop_assert_eq!(outcome.reward, Some(-0.1));
                prop_assert_eq!(walk.game().observe(), before);
                prop_assert!(walk.observe().contains(WARNING));
            }
            let end = if last.is_over {
                Some(EpisodeEnd::Terminated)
            } else {
                (left == 0 || turn + 1 == prompting.max_turns).then_some(EpisodeEnd::Truncated)
            };
            prop_assert_eq!(outcome.end, end);
            prop_assert_eq!(walk.is_success(), Some(model.is_success()));
            if end.is_some() {
                break;
            }
            prop_assert!(walk.observe().contains(&format!("\nTurn {}:\n", turn + 2)), "turns are counted");
        }
    }

    /// The pattern as a hand-written search.
    #[test]
    fn answers_are_found_as_the_pattern_says(text in texts()) {
        let by_hand = || {
            let mut rest = text.split_once("<think>")?.1;
            loop {
                rest = rest.split_once("</think>")?.1;
                if let Some(answer) = rest.trim_start().strip_prefix("<answer>") {
                    return answer.split_once("</answer>").map(|(answer, _)| answer);
                }
            }
        };
        let found = THINK_AND_ANSWER.captures(&text).and_then(|captures| captures.get(1)).map(|found| found.as_str());
        prop_assert_eq!(found, by_hand());
    }
}
