//! The systems whose keys are translated.

use std::fmt;

/// A system whose keys are translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Owner {
    /// verl, with its DAPO recipe.
    Verl,
    /// EasyR1, with the dynamic sampling of its fork.
    EasyR1,
    /// RAGEN. Whatever it does not define itself comes from verl.
    Ragen,
    /// TRL's `GRPOConfig`.
    Trl,
    /// verl's `sft_trainer`.
    VerlSft,
    /// TRL's `SFTConfig`.
    TrlSft,
}

impl Owner {
    /// The systems for reinforcement learning, in the order in which their tables are searched.
    pub const ALL: [Self; 4] = [Self::Verl, Self::EasyR1, Self::Ragen, Self::Trl];

    /// Supervised trainers. They share names of keys with the others, so their tables are searched only for a
    /// command that starts them.
    pub const SFT: [Self; 2] = [Self::VerlSft, Self::TrlSft];

    /// All tables.
    pub(crate) fn every() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().chain(Self::SFT)
    }

    /// Whether it is a supervised trainer.
    pub(crate) fn is_sft(self) -> bool {
        Self::SFT.contains(&self)
    }

    /// The system whose rules its table may use.
    pub(crate) const fn base(self) -> Option<Self> {
        match self {
            Self::TrlSft => Some(Self::Trl),
            _ => None,
        }
    }

    /// Name of the system.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Verl => "verl",
            Self::EasyR1 => "EasyR1",
            Self::Ragen => "RAGEN",
            Self::Trl => "TRL",
            Self::VerlSft => "verl SFT",
            Self::TrlSft => "TRL SFT",
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
