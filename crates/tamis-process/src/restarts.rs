//! How often a child is started again.

use std::fmt;

/// Restarts of a child without a success in between, and why it was lost the last time. What counts as a
/// success is up to its user: an answer, a finished episode.
#[derive(Debug)]
pub struct Restarts<L> {
    limit: u32,
    in_a_row: u32,
    last: Option<L>,
}

/// No restart is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartsSpent {
    /// The most that are allowed.
    pub limit: u32,
}

impl<L> Restarts<L> {
    /// At most `limit` restarts in a row.
    pub fn new(limit: u32) -> Self {
        Self { limit, in_a_row: 0, last: None }
    }

    /// Counts a restart.
    ///
    /// # Errors
    /// As many as are allowed were counted since the last success.
    pub fn allow(&mut self) -> Result<(), RestartsSpent> {
        if self.in_a_row >= self.limit {
            return Err(RestartsSpent { limit: self.limit });
        }
        self.in_a_row += 1;
        Ok(())
    }

    /// Counts anew after a success. The last loss is kept.
    pub fn reset(&mut self) {
        self.in_a_row = 0;
    }

    /// Keeps why the child was lost.
    pub fn note(&mut self, loss: L) {
        self.last = Some(loss);
    }

    /// Why it was lost the last time.
    pub fn last(&self) -> Option<&L> {
        self.last.as_ref()
    }

    /// Number of restarts since the last success.
    pub fn in_a_row(&self) -> u32 {
        self.in_a_row
    }
}

/// The part of a warning that counts: `restart 2 of at most 8`.
impl<L> fmt::Display for Restarts<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "restart {} of at most {}", self.in_a_row, self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_allowed_in_a_row() {
        let mut restarts = Restarts::new(2);
        restarts.note("broken pipe");
        assert_eq!(restarts.allow(), Ok(()));
        assert_eq!(restarts.to_string(), "restart 1 of at most 2");
        assert_eq!((restarts.allow(), restarts.allow()), (Ok(()), Err(RestartsSpent { limit: 2 })));
        // One that is refused is none.
        assert_eq!(restarts.in_a_row(), 2);
        restarts.reset();
        assert_eq!((restarts.allow(), restarts.in_a_row()), (Ok(()), 1));
        assert_eq!(restarts.last(), Some(&"broken pipe"));
        assert_eq!(Restarts::<()>::new(0).allow(), Err(RestartsSpent { limit: 0 }));
    }
}
