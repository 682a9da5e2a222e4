//! `bandit`: two arms with telling names, one pull.
//!
//! One arm always pays the same small reward. The other mostly pays nothing and sometimes much, which is more
//! on average. Only the names show which is which: a safe and a daring trade, or two beasts of legend. Two
//! forms are published; `names` chooses one:
//!
//! | `names` | safe arm | pays | daring arm | pays |
//! |---|---|---|---|---|
//! | `train`, `test` | a trade such as `Teacher` | 0.1 | a trade such as `Trader` | 1 with probability 0.25, else 0 |
//! | `legend` | `Phoenix` | 0.15 | `Dragon` | 1 with probability 0.25, else 0 |
//!
//! The first is `BanditEnv` of RAGEN's repository, twelve pairs of names for training and eight others for
//! validation; the second is that of the first RAGEN paper (arXiv 2504.20073). With `is_reversed` the names
//! of a pair change places, so the safe name is the daring arm: a policy that relies on the names fails, as
//! in the paper's `BanditRev`.
//!
//! **Two keys.** Pair and order of the names are drawn from the key *start*, which all members of a group
//! share; the reward of a pull is drawn from the key *luck*, which differs between members. With one key for
//! both, all members that pull the same arm would get the same reward. RAGEN adds a counter of environments
//! to the seed for the same reason, so pair and order also differ within a group.
//!
//! Success is the choice of the arm that pays more on average, independent of the reward.

use tamis_core::fault;
use tamis_core::fault::Fault;
use tamis_core::random::Key;
use tamis_core::setting::Ranged;
use tamis_core::{choice, settings};

use super::game::{Game, Played, find_action};

/// Purposes of draws, so no two draws share numbers.
const NAMES: u64 = 1;
const PULL: u64 = 2;

choice! {
    /// The names of the arms.
    pub enum ArmNames {
        /// Trades, the pairs for training.
        Train = "train",
        /// Trades, the pairs for validation.
        Test = "test",
        /// Phoenix and Dragon.
        Legend = "legend",
    }
}

impl ArmNames {
    /// The pairs, the safe name first.
    pub const fn pairs(self) -> &'static [[&'static str; 2]] {
        match self {
            Self::Train => &[
                ["Teacher", "Trader"],
                ["Nurse", "StartupFounder"],
                ["Librarian", "Investor"],
                ["Accountant", "StockBroker"],
                ["Engineer", "RealEstateAgent"],
                ["Pharmacist", "Musician"],
                ["Clerk", "Freelancer"],
                ["Technician", "Youtuber"],
                ["Planner", "Artist"],
                ["Postman", "Pilot"],
                ["Banker", "VentureCapitalist"],
                ["Gardener", "Cryptominer"],
            ],
            Self::Test => &[
                ["Receptionist", "Explorer"],
                ["Archivist", "Filmmaker"],
                ["Bookkeeper", "Consultant"],
                ["SocialWorker", "Photographer"],
                ["Mechanic", "GameDesigner"],
                ["Secretary", "Entrepreneur"],
                ["Cashier", "DataScientist"],
                ["CivilServant", "StartupAccelerator"],
            ],
            Self::Legend => &[["Phoenix", "Dragon"]],
        }
    }

    /// Default reward of the safe arm.
    const fn safe_reward(self) -> f64 {
        match self {
            Self::Train | Self::Test => 0.1,
            Self::Legend => 0.15,
        }
    }
}

settings! {
    /// The environment `bandit`. RAGEN's names of the keys: `names` is `split`, `safe_reward` `lo_arm_score`,
    /// `miss_reward` `hi_arm_loscore`, `hit_reward` `hi_arm_hiscore`, `hit_prob` `hi_arm_hiscore_prob`.
    pub struct BanditSettings {
        /// The names of the arms.
        names: ArmNames = ArmNames::Train;
        /// Exchange the names of each pair.
        is_reversed: bool = false;
        /// Reward of the safe arm. Null: 0.15 for `names: legend`, otherwise 0.1.
        safe_reward: Option<f64> = None;
        /// Reward of the daring arm if it misses.
        miss_reward: f64 = 0.0;
        /// Reward of the daring arm if it hits.
        hit_reward: f64 = 1.0;
        /// Probability that it hits.
        hit_prob: f64 = 0.25, Between(0.0, 1.0);
    }
}

/// Two arms, before or after the pull.
///
/// ```
/// use tamis_core::random::{Key, Purpose};
/// use tamis_env::environment::{bandit::*, game::Game};
/// let key = Key::new(1, Purpose::Task);
/// let settings = BanditSettings { names: ArmNames::Legend, ..BanditSettings::default() };
/// let mut bandit = Bandit::new(&settings, key.with(0), key.with(1))?;
/// let played = bandit.play("phoenix").expect("one of the arms");
/// assert_eq!((played.reward, played.is_over, bandit.is_success()), (0.15, true, false));
/// # Ok::<(), tamis_core::fault::Fault>(())
/// ```
#[derive(Debug, Clone)]
pub struct Bandit {
    /// The names, in the order in which they are shown.
    names: [&'static str; 2],
    daring: usize,
    safe_reward: f64,
    /// Reward of the daring arm in this episode.
    daring_reward: f64,
    /// The pulled arm and its reward.
    pulled: Option<(usize, f64)>,
}

impl Bandit {
    /// The arms of a start, with the rewards of a luck.
    ///
    /// # Errors
    /// A number outside its range, a safe arm that pays as much as the other on average.
    pub fn new(settings: &BanditSettings, start: Key, luck: Key) -> Result<Self, Fault> {
        settings.check_ranges()?;
        let &BanditSettings { names, is_reversed, safe_reward, miss_reward, hit_reward, hit_prob } = settings;
        let safe_reward = safe_reward.unwrap_or(names.safe_reward());
        let average = hit_prob * hit_reward + (1.0 - hit_prob) * miss_reward;
        // Written so that an infinite or undefined average is refused.
        if !(safe_reward < average && average.is_finite()) {
            return Err(fault!(
                "setting `safe_reward` is {safe_reward}; expected less than the {average} that `miss_reward`, `hit_reward` and `hit_prob` make on average"
            ));
        }
        let (start, pairs) = (start.with(NAMES), names.pairs());
        let mut names = pairs[start.below(0, pairs.len() as u64) as usize];
        let is_swapped = start.below(1, 2) == 1;
        if is_swapped {
            names.reverse();
        }
        // Unreversed and in the order of the table the daring arm is the second.
        let daring = usize::from(is_swapped == is_reversed);
        let is_hit = luck.with(PULL).uniform(0) < hit_prob;
        let daring_reward = if is_hit { hit_reward } else { miss_reward };
        Ok(Self { names, daring, safe_reward, daring_reward, pulled: None })
    }
}

impl Game for Bandit {
    fn legend(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    fn actions(&self) -> Vec<String> {
        self.names.map(str::to_owned).to_vec()
    }

    fn observe(&self) -> String {
        let [first, second] = self.names;
        match self.pulled {
            Some((arm, reward)) => format!("{}: {reward} points", self.names[arm]),
            None => format!(
                "You play a bandit game and pull one of two arms once. Goal: as much reward as possible.\n\
                 The arms are named {first} and {second}. Each pays by a distribution of its own, and its name hints \
                 at what that is like.\n\
                 Think about what the names stand for: which arm is likely to pay more on average, {first} or \
                 {second}?"
            ),
        }
    }

    fn play(&mut self, action: &str) -> Option<Played> {
        let arm = find_action(&self.names, action)?;
        let reward = if arm == self.daring { self.daring_reward } else { self.safe_reward };
        self.pulled = Some((arm, reward));
        Some(Played { reward, is_over: true, is_effective: true })
    }

    fn is_success(&self) -> bool {
        self.pulled.is_some_and(|(arm, _)| arm == self.daring)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, HashSet};
    use tamis_core::random::Purpose;

    fn key(seed: u64) -> Key {
        Key::new(seed, Purpose::Task)
    }

    /// Number of times that an arm pays each reward, over many keys of luck.
    fn pay(settings: &BanditSettings, arm: &str) -> HashMap<String, u32> {
        let mut counts = HashMap::new();
        for luck in 0..8000 {
            let mut bandit = Bandit::new(settings, key(1), key(2).with(luck)).unwrap();
            let reward = bandit.play(arm).unwrap().reward;
            *counts.entry(reward.to_string()).or_default() += 1;
        }
        counts
    }

    #[test]
    fn arms_pay_as_published() {
        let legend = BanditSettings { names: ArmNames::Legend, ..BanditSettings::default() };
        assert_eq!(pay(&legend, "Phoenix"), HashMap::from([("0.15".to_owned(), 8000)]));
        let dragon = pay(&legend, "Dragon");
        assert_eq!(dragon.len(), 2);
        // 2000 expected, standard deviation 39.
        assert!((1825..=2175).contains(&dragon["1"]), "{dragon:?}");

        let trades = BanditSettings::default();
        let bandit = Bandit::new(&trades, key(1), key(2)).unwrap();
        let safe = bandit.names[1 - bandit.daring];
        assert_eq!(pay(&trades, safe), HashMap::from([("0.1".to_owned(), 8000)]));
    }

    #[test]
    fn the_daring_name_is_the_better_arm_unless_reversed() {
        for names in [ArmNames::Train, ArmNames::Test, ArmNames::Legend] {
            for is_reversed in [false, true] {
                let settings = BanditSettings { names, is_reversed, ..BanditSettings::default() };
                let (mut seen, mut places) = (HashSet::new(), HashSet::new());
                for seed in 0..400 {
                    let bandit = Bandit::new(&settings, key(5).with(seed), key(0)).unwrap();
                    let pair =
                        names.pairs().iter().find(|pair| bandit.names.iter().all(|name| pair.contains(name)));
                    let pair = pair.unwrap();
                    for (arm, name) in pair.iter().enumerate() {
                        let mut bandit = bandit.clone();
                        bandit.play(name);
                        assert_eq!(bandit.is_success(), (arm == 1) != is_reversed, "{name}");
                    }
                    seen.insert(pair);
                    places.insert(bandit.daring);
                }
                assert_eq!((seen.len(), places.len()), (names.pairs().len(), 2));
            }
        }
    }

    #[test]
    fn what_is_shown() {
        let settings = BanditSettings { names: ArmNames::Legend, ..BanditSettings::default() };
        let mut bandit = Bandit::new(&settings, key(1), key(0)).unwrap();
        insta::assert_snapshot!(bandit.observe(), @r"
        You play a bandit game and pull one of two arms once. Goal: as much reward as possible.
        The arms are named Phoenix and Dragon. Each pays by a distribution of its own, and its name hints at what that is like.
        Think about what the names stand for: which arm is likely to pay more on average, Phoenix or Dragon?
        ");
        bandit.play("PHOENIX");
        insta::assert_snapshot!(bandit.observe(), @"Phoenix: 0.15 points");
    }

    #[test]
    fn errors() {
        let refused =
            |settings: BanditSettings| Bandit::new(&settings, key(0), key(1)).unwrap_err().to_string();
        let default = BanditSettings::default;
        insta::assert_snapshot!(refused(BanditSettings { safe_reward: Some(0.25), ..default() }), @"setting `safe_reward` is 0.25; expected less than the 0.25 that `miss_reward`, `hit_reward` and `hit_prob` make on average");
    }

    proptest! {
        #[test]
        fn an_unknown_action_changes_nothing(seed in any::<u64>(), action in "\\PC{0,12}") {
            let mut bandit = Bandit::new(&BanditSettings::default(), key(seed), key(0)).unwrap();
            prop_assume!(find_action(&bandit.names, &action).is_none());
            let before = bandit.observe();
            prop_assert_eq!(bandit.play(&action), None);
            prop_assert_eq!(bandit.observe(), before);
            prop_assert!(!bandit.is_success());
        }
    }
}
