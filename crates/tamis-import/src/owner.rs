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
}

impl Owner {
    /// The systems, in the order in which their tables are searched.
    pub const ALL: [Self; 4] = [Self::Verl, Self::EasyR1, Self::Ragen, Self::Trl];

    /// Name of the system.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Verl => "verl",
            Self::EasyR1 => "EasyR1",
            Self::Ragen => "RAGEN",
            Self::Trl => "TRL",
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
