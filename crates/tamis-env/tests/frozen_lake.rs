//! FrozenLake follows the transition law of the original: `frozen_lake/gymnasium.json` holds the transition
//! tables of the package gymnasium, written by `frozen_lake/make.py`.

use serde::Deserialize;
use tamis_core::random::{Key, Purpose};
use tamis_env::environment::frozen_lake::{FrozenLake, FrozenLakeSettings, LakeDirection, Transition};
use tamis_env::environment::game::Game;

/// Probability, cell, reward, whether it is over.
type Entry = (f64, usize, f64, bool);

#[derive(Deserialize)]
struct File {
    gymnasium: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    map: Vec<String>,
    is_slippery: bool,
    success_rate: f64,
    /// By cell and action.
    law: Vec<[Vec<Entry>; 4]>,
}

impl Case {
    fn settings(&self) -> FrozenLakeSettings {
        FrozenLakeSettings {
            map: self.map.clone(),
            is_slippery: self.is_slippery,
            success_rate: self.success_rate,
            ..FrozenLakeSettings::default()
        }
    }

    fn lake(&self, luck: u64) -> FrozenLake {
        let key = Key::new(11, Purpose::Task);
        FrozenLake::new(&self.settings(), key.with(0), key.with(1).with(luck)).expect("gymnasium took it")
    }
}

fn cases() -> Vec<Case> {
    let file: File =
        serde_json::from_str(include_str!("frozen_lake/gymnasium.json")).expect("the vectors parse");
    assert_eq!(file.gymnasium, "1.4.0", "the version that the documentation names");
    file.cases
}

#[test]
fn the_law_is_that_of_gymnasium_to_the_bit() {
    let mut num_compared = 0;
    for case in cases() {
        let lake = case.lake(0);
        assert_eq!(lake.num_cells(), case.law.len());
        for (cell, by_action) in case.law.iter().enumerate() {
            for (direction, expected) in LakeDirection::ALL.into_iter().zip(by_action) {
                let expected: Vec<Transition> = expected
                    .iter()
                    .map(|&(prob, cell, reward, is_over)| Transition { prob, cell, reward, is_over })
                    .collect();
                let actual = lake.transitions(cell, direction);
                assert_eq!(actual, expected, "{:?}, cell {cell}, {direction:?}", case.map);
                num_compared += actual.len();
            }
        }
    }
    assert!(num_compared > 1000, "{num_compared}");
}

/// Each cell ends episodes of a fixed walk as often as gymnasium's law says, within 4.5 standard deviations
/// of a binomial. Impossible endings do not occur.
#[test]
fn play_follows_the_law() {
    let walk = [
        LakeDirection::Right,
        LakeDirection::Down,
        LakeDirection::Down,
        LakeDirection::Right,
        LakeDirection::Left,
    ];
    for case in cases() {
        let mut expected = vec![0.0; case.law.len()];
        expected[case.lake(0).cell()] = 1.0;
        for direction in walk {
            let mut next = vec![0.0; expected.len()];
            for (cell, share) in expected.iter().enumerate() {
                for &(prob, target, ..) in &case.law[cell][direction as usize] {
                    next[target] += share * prob;
                }
            }
            expected = next;
        }
        let num_episodes = 8000;
        let mut counts = vec![0; expected.len()];
        for luck in 0..num_episodes {
            let mut lake = case.lake(luck);
            for direction in walk {
                let before = lake.cell();
                let played = lake.play(direction.as_str()).expect("the action exists");
                let happened =
                    case.law[before][direction as usize].iter().any(|&(prob, cell, reward, is_over)| {
                        prob > 0.0
                            && (cell, is_over) == (lake.cell(), played.is_over)
                            && reward.total_cmp(&played.reward).is_eq()
                    });
                assert!(happened, "{:?}: {direction:?} led from {before} to {}", case.map, lake.cell());
                assert_eq!(played.is_effective, lake.cell() != before);
                if played.is_over {
                    break;
                }
            }
            counts[lake.cell()] += 1;
        }
        for (cell, (&share, &count)) in expected.iter().zip(&counts).enumerate() {
            let found = f64::from(count) / num_episodes as f64;
            let spread = (share * (1.0 - share).max(0.0) / num_episodes as f64).sqrt();
            assert!(
                (found - share).abs() <= 4.5 * spread + 1e-12,
                "{:?}, success rate {}, cell {cell}: {found}, expected {share}",
                case.map,
                case.success_rate
            );
        }
    }
}
