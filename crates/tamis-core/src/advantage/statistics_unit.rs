//! The unit that counts once in the statistics of a group.

use crate::choice;

choice! {
    /// Unit that counts once in the statistics of a group whose members have turns.
    pub enum StatisticsUnit {
        /// An episode: a member counts once, whatever its number of turns (RAGEN, whose rows are turns, takes
        /// one row of each episode).
        Episode = "episode",
        /// A turn: a member counts once for each of its turns, so that long episodes have more weight in the
        /// mean and the deviation (verl's result if each turn is a sample of the group).
        Turn = "turn",
    }
}
