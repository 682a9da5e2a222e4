//! The unit that counts once in the statistics of a group.

use crate::choice;

choice! {
    /// Unit that counts once in the statistics of a group whose members were played in turns.
    pub enum StatisticsUnit {
        /// An episode: a member counts once, whatever its number of turns (RAGEN, whose rows are turns, takes
        /// one of each episode).
        Episode = "episode",
        /// A turn: a member counts once for each of its turns, so that long episodes weigh more in the mean
        /// and in the deviation (what verl computes where each turn is a sample of the group).
        Turn = "turn",
    }
}
