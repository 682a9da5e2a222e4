//! A queue between the run and a destination that may be slow or gone: the run puts a record in and
//! continues at once.
//!
//! A thread takes records out and delivers them. The queue holds a bounded number of records and bytes;
//! if it is full, or the destination is gone, records are lost. The first fault is reported once, with
//! the logger's name, and at the end the number of records that did not arrive.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tamis_run::log::progress::Console;

/// Limits of the queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capacity {
    pub(crate) records: usize,
    /// Bytes of all records.
    pub(crate) bytes: usize,
}

/// A run of a step a second outlives a pause of minutes, and completions of many tokens do not fill the
/// memory.
pub(crate) const CAPACITY: Capacity = Capacity { records: 512, bytes: 64 << 20 };

pub(crate) trait Parcel: Send + 'static {
    fn num_bytes(&self) -> usize;
}

impl Parcel for String {
    fn num_bytes(&self) -> usize {
        self.len()
    }
}

/// A record that could not be delivered.
#[derive(Debug)]
pub(crate) struct Undelivered {
    /// The reason, in words.
    pub(crate) reason: String,
    /// Whether no later record can be delivered either.
    pub(crate) is_final: bool,
}

/// Counts of a logger's records, and whether its fault was reported.
#[derive(Debug)]
pub(crate) struct Deliveries {
    logger: &'static str,
    voice: Console,
    has_warned: AtomicBool,
    num_given: AtomicU64,
    num_arrived: AtomicU64,
    bytes_waiting: AtomicUsize,
    is_done: Mutex<bool>,
    done: Condvar,
}

impl Deliveries {
    pub(crate) fn new(logger: &'static str, voice: Console) -> Arc<Self> {
        Arc::new(Self {
            logger,
            voice,
            has_warned: AtomicBool::new(false),
            num_given: AtomicU64::new(0),
            num_arrived: AtomicU64::new(0),
            bytes_waiting: AtomicUsize::new(0),
            is_done: Mutex::new(false),
            done: Condvar::new(),
        })
    }

    /// Reports the first fault of the logger; later ones are dropped.
    pub(crate) fn warn(&self, reason: &str) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            self.voice.warn(&format!(
                "the logger `{}` loses metrics; the run continues without it: {reason}",
                self.logger
            ));
        }
    }

    /// Reports the logger's state at its end, even if a fault was reported before.
    pub(crate) fn tell_end(&self, what: &str) {
        self.voice.warn(&format!("the logger `{}` {what}", self.logger));
    }

    pub(crate) fn say(&self, text: &str) {
        self.voice.say(&format!("logger `{}`: {text}", self.logger));
    }

    pub(crate) fn note_arrived(&self, number: u64) {
        self.num_arrived.fetch_add(number, Ordering::Relaxed);
    }

    fn finish(&self) {
        *self.is_done.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.done.notify_all();
    }

    /// Waits until the thread is done; whether it is.
    fn wait(&self, limit: Duration) -> bool {
        let is_done = self.is_done.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.done.wait_timeout_while(is_done, limit, |is_done| !*is_done);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Reports how many records did not arrive, if any.
    pub(crate) fn tell_lost(&self) {
        let given = self.num_given.load(Ordering::Relaxed);
        let lost = given.saturating_sub(self.num_arrived.load(Ordering::Relaxed));
        if lost > 0 {
            self.voice.warn(&format!(
                "the logger `{}` lost {lost} of {given} records; metrics.jsonl has them all if `jsonl` is a logger",
                self.logger
            ));
        }
    }
}

/// The queue, with the thread that empties it.
#[derive(Debug)]
pub(crate) struct Outbox<R: Parcel> {
    queue: Option<SyncSender<R>>,
    most_bytes: usize,
    worker: Option<JoinHandle<()>>,
    deliveries: Arc<Deliveries>,
}

impl<R: Parcel> Outbox<R> {
    /// Begins to deliver by a function that records what arrives. If no thread can be started,
    /// everything is lost.
    pub(crate) fn start(
        capacity: Capacity,
        deliveries: Arc<Deliveries>,
        deliver: impl FnMut(R) -> Result<(), Undelivered> + Send + 'static,
    ) -> Self {
        let (queue, records) = sync_channel(capacity.records);
        let most_bytes = capacity.bytes;
        let of_thread = deliveries.clone();
        let worker = std::thread::Builder::new()
            .name(format!("logger-{}", deliveries.logger))
            .spawn(move || deliver_all(&records, deliver, &of_thread));
        match worker {
            Ok(worker) => Self { queue: Some(queue), most_bytes, worker: Some(worker), deliveries },
            Err(error) => {
                deliveries.warn(&format!("its thread could not be started: {error}"));
                deliveries.finish();
                Self { queue: None, most_bytes, worker: None, deliveries }
            }
        }
    }

    /// Puts a record into the queue, without waiting.
    pub(crate) fn send(&self, record: R) {
        let deliveries = &self.deliveries;
        deliveries.num_given.fetch_add(1, Ordering::Relaxed);
        let Some(queue) = &self.queue else { return };
        let size = record.num_bytes();
        // Only the run adds to it, so meanwhile the load can only shrink.
        let waiting = deliveries.bytes_waiting.fetch_add(size, Ordering::Relaxed);
        let sent = if waiting > 0 && waiting.saturating_add(size) > self.most_bytes {
            Err(TrySendError::Full(record))
        } else {
            queue.try_send(record)
        };
        if let Err(error) = sent {
            deliveries.bytes_waiting.fetch_sub(size, Ordering::Relaxed);
            if matches!(error, TrySendError::Full(_)) {
                deliveries.warn("it is slower than the run, and its queue is full");
            }
        }
    }

    /// Puts in a last message that is not counted as a record, and takes no more. It is dropped if
    /// there is no room.
    pub(crate) fn end_with(&mut self, last: Option<R>) {
        if let (Some(queue), Some(last)) = (self.queue.take(), last) {
            let size = last.num_bytes();
            self.deliveries.bytes_waiting.fetch_add(size, Ordering::Relaxed);
            let _ = queue.try_send(last);
        }
    }

    /// Waits for the records in the queue, until then at most. A thread that still hangs is left behind.
    pub(crate) fn wait(&mut self, limit: Instant) {
        if self.deliveries.wait(limit.saturating_duration_since(Instant::now()))
            && let Some(worker) = self.worker.take()
        {
            // A thread that panicked has reported it itself.
            let _ = worker.join();
        }
    }
}

fn deliver_all<R: Parcel>(
    records: &Receiver<R>,
    mut deliver: impl FnMut(R) -> Result<(), Undelivered>,
    deliveries: &Deliveries,
) {
    while let Ok(record) = records.recv() {
        let size = record.num_bytes();
        let delivered = deliver(record);
        deliveries.bytes_waiting.fetch_sub(size, Ordering::Relaxed);
        if let Err(undelivered) = delivered {
            deliveries.warn(&undelivered.reason);
            if undelivered.is_final {
                break;
            }
        }
    }
    // The closure's resources (a pipe to a process) are released before the end is reported.
    drop(deliver);
    deliveries.finish();
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::captured::Captured;

    fn voice() -> (Captured, Console) {
        let screen = Captured::default();
        (screen.clone(), Console::plain(Box::new(screen), None, 0))
    }

    impl Parcel for u32 {
        fn num_bytes(&self) -> usize {
            *self as usize
        }
    }

    const TWO: Capacity = Capacity { records: 2, bytes: 1000 };

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// An outbox whose first record is being delivered and stays so until the sender is dropped.
    fn held_up(
        capacity: Capacity,
        deliveries: &Arc<Deliveries>,
    ) -> (Outbox<u32>, std::sync::mpsc::Sender<()>) {
        let (go, wait) = channel::<()>();
        let (began, begins) = channel::<()>();
        let counted = deliveries.clone();
        let outbox = Outbox::start(capacity, deliveries.clone(), move |_: u32| {
            let _ = began.send(());
            let _ = wait.recv();
            counted.note_arrived(1);
            Ok(())
        });
        outbox.send(1);
        begins.recv().expect("the first is being delivered");
        (outbox, go)
    }

    #[test]
    fn a_full_queue_drops_and_tells_it_once_and_how_many_at_the_end() {
        let (screen, console) = voice();
        let deliveries = Deliveries::new("slow", console);
        let (mut outbox, go) = held_up(TWO, &deliveries);
        (2..=6).for_each(|record| outbox.send(record));
        drop(go);
        outbox.end_with(None);
        outbox.wait(soon());
        deliveries.tell_lost();
        insta::assert_snapshot!(screen.text(), @"
        warning: the logger `slow` loses metrics; the run continues without it: it is slower than the run, and its queue is full
        warning: the logger `slow` lost 3 of 6 records; metrics.jsonl has them all if `jsonl` is a logger
        ");
    }

    #[test]
    fn the_bytes_of_a_queue_are_bounded_and_free_again_once_delivered() {
        let (screen, console) = voice();
        let deliveries = Deliveries::new("slow", console);
        let (mut outbox, go) = held_up(Capacity { records: 100, bytes: 1000 }, &deliveries);
        outbox.send(900);
        outbox.send(900);
        outbox.send(50);
        drop(go);
        while deliveries.bytes_waiting.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
        // A record that is larger than the queue is sent by itself.
        outbox.send(5000);
        outbox.end_with(None);
        outbox.wait(soon());
        deliveries.tell_lost();
        assert!(screen.text().contains("lost 1 of 5 records"), "{}", screen.text());
    }

    #[test]
    fn a_place_that_is_gone_loses_everything_after_it() {
        let (screen, console) = voice();
        let deliveries = Deliveries::new("gone", console);
        let counted = deliveries.clone();
        let mut outbox = Outbox::start(CAPACITY, deliveries.clone(), move |record: u32| {
            if record < 2 {
                counted.note_arrived(1);
                Ok(())
            } else {
                Err(Undelivered { reason: format!("record {record} met nobody"), is_final: record == 3 })
            }
        });
        (0..6).for_each(|record| outbox.send(record));
        outbox.end_with(None);
        outbox.wait(soon());
        deliveries.tell_lost();
        insta::assert_snapshot!(screen.text(), @"
        warning: the logger `gone` loses metrics; the run continues without it: record 2 met nobody
        warning: the logger `gone` lost 4 of 6 records; metrics.jsonl has them all if `jsonl` is a logger
        ");
    }

    #[test]
    fn one_that_hangs_is_left_behind_at_the_limit() {
        let (screen, console) = voice();
        let deliveries = Deliveries::new("hung", console);
        let (mut outbox, go) = held_up(TWO, &deliveries);
        (2..=3).for_each(|record| outbox.send(record));
        outbox.end_with(None);
        outbox.wait(Instant::now() + Duration::from_millis(20));
        deliveries.tell_lost();
        insta::assert_snapshot!(screen.text(), @"warning: the logger `hung` lost 3 of 3 records; metrics.jsonl has them all if `jsonl` is a logger");
        drop(go);
        outbox.wait(soon());
    }
}
