//! The order in which a run takes events in, on disk, if what it trains on depends on it (for instance
//! when streaming). A resumed run follows the notes after its checkpoint, so that it trains on what the
//! process before it did.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tamis_rollout::{GeneratorError, OrderLog, Taken};

use tamis_run::durable::Disk;
use tamis_run::journal::{Journal, JournalError, SyncPolicy};

#[derive(Serialize, Deserialize)]
struct Entry {
    step: u64,
    taken: Taken,
}

/// The noted order of a run. Entries survive a killed process at once; a loss of power may take those after
/// the last checkpoint.
pub struct RecordedOrder {
    journal: Journal,
    step: u64,
    /// Offset of each step's first entry that no checkpoint has settled.
    starts: BTreeMap<u64, u64>,
    /// Offset of each entry that was read back.
    read: Vec<u64>,
}

impl RecordedOrder {
    /// Opens it before a step, and returns its entries from `from` on, the position that the checkpoint
    /// recorded (0 without one). A torn tail is cut.
    ///
    /// # Errors
    /// A file that ends before `from`, one that is not a journal, the disk.
    pub fn open(disk: &Disk, path: &Path, from: u64, step: u64) -> Result<(Self, Vec<Taken>), JournalError> {
        let (journal, entries) = Journal::open_json::<Entry>(disk, path, SyncPolicy::OnDemand, from)?;
        let mut order = Self { journal, step, starts: BTreeMap::new(), read: Vec::new() };
        let mut taken = Vec::new();
        for (start, entry) in entries {
            order.starts.entry(entry.step).or_insert(start);
            order.read.push(start);
            taken.push(entry.taken);
        }
        Ok((order, taken))
    }

    /// From now on events belong to this step.
    pub fn begin_step(&mut self, step: u64) {
        self.step = step;
    }

    /// Removes everything before a position in the file that no checkpoint needs any more.
    ///
    /// # Errors
    /// The disk.
    pub fn shorten(&mut self, position: u64) -> Result<(), JournalError> {
        self.journal.shorten(position)
    }

    /// Drops the events of steps before `next`, and returns the position of the others in the file. All
    /// of it is flushed to the device, because a checkpoint needs the file up to this length.
    ///
    /// # Errors
    /// If it cannot be flushed.
    pub fn settle(&mut self, next: u64) -> Result<u64, JournalError> {
        self.starts.retain(|step, _| *step >= next);
        self.journal.sync()?;
        Ok(self.starts.values().copied().min().unwrap_or(self.journal.position()))
    }
}

impl OrderLog for RecordedOrder {
    fn note(&mut self, taken: &Taken) -> Result<(), GeneratorError> {
        self.starts.entry(self.step).or_insert(self.journal.position());
        let entry = Entry { step: self.step, taken: taken.clone() };
        self.journal
            .append(&serde_json::to_vec(&entry).map_err(GeneratorError::journal)?)
            .map_err(GeneratorError::journal)
    }

    fn forget(&mut self, num_left: usize) -> Result<(), GeneratorError> {
        let kept = self.read.len().saturating_sub(num_left);
        let Some(&end) = self.read.get(kept) else { return Ok(()) };
        self.read.truncate(kept);
        self.starts.retain(|_, start| *start < end);
        self.journal.cut(end).map_err(GeneratorError::journal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path, from: u64, step: u64) -> (RecordedOrder, Vec<Taken>) {
        RecordedOrder::open(&Disk::without_flush(), path, from, step).expect("opens")
    }

    fn scores(members: std::ops::Range<u32>) -> Vec<Taken> {
        members.map(|member| Taken::Score { group: 1, member }).collect()
    }

    #[test]
    fn what_was_taken_in_after_a_checkpoint_is_read_back_in_order() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("order.bin");
        let (mut order, taken) = open(&path, 0, 1);
        assert!(taken.is_empty());
        let note = |order: &mut RecordedOrder, members| {
            for taken in scores(members) {
                order.note(&taken).expect("noted");
            }
        };
        note(&mut order, 0..2);
        order.begin_step(2);
        let checkpoint = order.settle(2).expect("flushed");
        note(&mut order, 2..6);
        drop(order);
        let (mut order, taken) = open(&path, checkpoint, 2);
        assert_eq!(taken, scores(2..6));
        // The last two do not come: others take their place.
        order.forget(2).expect("cut");
        note(&mut order, 7..8);
        assert_eq!(order.settle(2).expect("flushed"), checkpoint);
        let (mut order, taken) = open(&path, checkpoint, 2);
        assert_eq!(taken, [scores(2..4), scores(7..8)].concat());
        order.forget(0).expect("nothing");
        assert_eq!(order.settle(3).expect("flushed"), std::fs::metadata(&path).expect("a file").len());
        assert_eq!(open(&path, 0, 1).1.len(), 5);
    }
}
