//! A queue between the run and a place that may be slow, or gone: the run puts a record in and goes on at once.
//!
//! A thread takes records out and delivers them. The queue holds a bounded number; where it is full, or the
//! place is gone, records are dropped and counted. The first trouble is told once, by the logger's name, and
//! what was dropped in all is told at the end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::progress::Console;

/// Records that wait at most: a run of a step a second outlives a pause of minutes.
pub(super) const CAPACITY: usize = 512;

/// A record that could not be delivered.
#[derive(Debug)]
pub(super) struct Undelivered {
    /// The reason, in words.
    pub(super) reason: String,
    /// Whether no later record can be delivered either.
    pub(super) is_final: bool,
}

/// What became of a logger's records, and whether its trouble was told.
#[derive(Debug)]
pub(super) struct Deliveries {
    logger: &'static str,
    voice: Console,
    has_warned: AtomicBool,
    num_given: AtomicU64,
    num_handled: AtomicU64,
    num_dropped: AtomicU64,
    is_done: Mutex<bool>,
    done: Condvar,
}

impl Deliveries {
    pub(super) fn new(logger: &'static str, voice: Console) -> Arc<Self> {
        Arc::new(Self {
            logger,
            voice,
            has_warned: AtomicBool::new(false),
            num_given: AtomicU64::new(0),
            num_handled: AtomicU64::new(0),
            num_dropped: AtomicU64::new(0),
            is_done: Mutex::new(false),
            done: Condvar::new(),
        })
    }

    /// Tells the first trouble of the logger; later ones are not news.
    pub(super) fn warn(&self, reason: &str) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            self.voice.warn(&format!(
                "the logger `{}` loses figures, and the run goes on without it: {reason}",
                self.logger
            ));
        }
    }

    /// Says something of the logger.
    pub(super) fn say(&self, text: &str) {
        self.voice.say(&format!("logger `{}`: {text}", self.logger));
    }

    /// Counts records that did not arrive.
    pub(super) fn drop_records(&self, number: u64) {
        self.num_dropped.fetch_add(number, Ordering::Relaxed);
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

    /// Tells how many records did not arrive, where there are such.
    pub(super) fn tell_dropped(&self) {
        let given = self.num_given.load(Ordering::Relaxed);
        let waiting = given.saturating_sub(self.num_handled.load(Ordering::Relaxed));
        let dropped = self.num_dropped.load(Ordering::Relaxed) + waiting;
        if dropped > 0 {
            self.voice.warn(&format!(
                "the logger `{}` lost {dropped} of {given} records; metrics.jsonl has every figure where it is a logger",
                self.logger
            ));
        }
    }
}

/// The queue, with the thread that empties it.
#[derive(Debug)]
pub(super) struct Outbox<R: Send + 'static> {
    queue: Option<SyncSender<R>>,
    worker: Option<JoinHandle<()>>,
    deliveries: Arc<Deliveries>,
}

impl<R: Send + 'static> Outbox<R> {
    /// Begins to deliver. Without a thread, of which there may be none left, everything is dropped.
    pub(super) fn start(
        capacity: usize,
        deliveries: Arc<Deliveries>,
        deliver: impl FnMut(R) -> Result<(), Undelivered> + Send + 'static,
    ) -> Self {
        let (queue, records) = sync_channel(capacity);
        let of_thread = deliveries.clone();
        let worker = std::thread::Builder::new()
            .name(format!("logger-{}", deliveries.logger))
            .spawn(move || deliver_all(&records, deliver, &of_thread));
        match worker {
            Ok(worker) => Self { queue: Some(queue), worker: Some(worker), deliveries },
            Err(error) => {
                deliveries.warn(&format!("its thread could not be started: {error}"));
                deliveries.finish();
                Self { queue: None, worker: None, deliveries }
            }
        }
    }

    /// Puts a record into the queue, without waiting.
    pub(super) fn send(&self, record: R) {
        let deliveries = &self.deliveries;
        deliveries.num_given.fetch_add(1, Ordering::Relaxed);
        let sent = self.queue.as_ref().map(|queue| queue.try_send(record));
        if !matches!(sent, Some(Ok(()))) {
            if let Some(Err(TrySendError::Full(_))) = sent {
                deliveries.warn("it is slower than the run, and its queue is full");
            }
            deliveries.num_handled.fetch_add(1, Ordering::Relaxed);
            deliveries.drop_records(1);
        }
    }

    /// Puts in what is no record of the run and counts nowhere: where there is no room it is left out.
    pub(super) fn send_uncounted(&self, last: R) {
        if let Some(queue) = &self.queue {
            let _ = queue.try_send(last);
        }
    }

    /// Takes no more records and waits for those in the queue, so long at most; whether all were handled.
    pub(super) fn close(&mut self, limit: Duration) -> bool {
        self.queue = None;
        self.deliveries.wait(limit)
    }

    /// Waits for the thread, once nothing holds it any more.
    pub(super) fn join(&mut self) {
        if let Some(worker) = self.worker.take() {
            // A thread that panicked has said so itself.
            let _ = worker.join();
        }
    }
}

fn deliver_all<R>(
    records: &Receiver<R>,
    mut deliver: impl FnMut(R) -> Result<(), Undelivered>,
    deliveries: &Deliveries,
) {
    while let Ok(record) = records.recv() {
        let delivered = deliver(record);
        deliveries.num_handled.fetch_add(1, Ordering::Relaxed);
        if let Err(undelivered) = delivered {
            deliveries.warn(&undelivered.reason);
            deliveries.drop_records(1);
            if undelivered.is_final {
                break;
            }
        }
    }
    // What the closure holds (a pipe to a process) is let go before the end is told.
    drop(deliver);
    deliveries.finish();
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::log::captured::Captured;

    fn voice() -> (Captured, Console) {
        let screen = Captured::default();
        (screen.clone(), Console::plain(Box::new(screen), None, 0))
    }

    #[test]
    fn a_full_queue_drops_and_tells_it_once_and_how_many_at_the_end() {
        let (screen, console) = voice();
        let deliveries = Deliveries::new("slow", console);
        let (go, wait) = channel::<()>();
        let (began, begins) = channel::<()>();
        let mut outbox = Outbox::start(2, deliveries.clone(), move |_: u32| {
            let _ = began.send(());
            let _ = wait.recv();
            Ok(())
        });
        outbox.send(0);
        begins.recv().expect("the first is being delivered");
        (1..=5).for_each(|record| outbox.send(record));
        drop(go);
        assert!(outbox.close(Duration::from_secs(60)));
        outbox.join();
        deliveries.tell_dropped();
        insta::assert_snapshot!(screen.text(), @"
        warning: the logger `slow` loses figures, and the run goes on without it: it is slower than the run, and its queue is full
        warning: the logger `slow` lost 3 of 6 records; metrics.jsonl has every figure where it is a logger
        ");
    }

    #[test]
    fn a_place_that_is_gone_loses_everything_after_it() {
        let (screen, console) = voice();
        let deliveries = Deliveries::new("gone", console);
        let mut outbox = Outbox::start(8, deliveries.clone(), |record: u32| {
            if record < 2 {
                Ok(())
            } else {
                Err(Undelivered { reason: format!("record {record} met nobody"), is_final: record == 3 })
            }
        });
        (0..6).for_each(|record| outbox.send(record));
        assert!(outbox.close(Duration::from_secs(60)));
        outbox.join();
        deliveries.tell_dropped();
        insta::assert_snapshot!(screen.text(), @"
        warning: the logger `gone` loses figures, and the run goes on without it: record 2 met nobody
        warning: the logger `gone` lost 4 of 6 records; metrics.jsonl has every figure where it is a logger
        ");
    }

    #[test]
    fn one_that_hangs_is_left_behind_at_the_limit() {
        let (screen, console) = voice();
        let deliveries = Deliveries::new("hung", console);
        let (go, wait) = channel::<()>();
        let mut outbox = Outbox::start(8, deliveries.clone(), move |_: u32| {
            let _ = wait.recv();
            Ok(())
        });
        (0..3).for_each(|record| outbox.send(record));
        assert!(!outbox.close(Duration::from_millis(20)));
        deliveries.tell_dropped();
        insta::assert_snapshot!(screen.text(), @"warning: the logger `hung` lost 3 of 3 records; metrics.jsonl has every figure where it is a logger");
        drop(go);
        outbox.join();
    }
}
