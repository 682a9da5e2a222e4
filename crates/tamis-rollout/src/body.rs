//! Bodies of requests: how long one may be, for how long it may take, and how much all of them may hold.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Body as _, Incoming};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// Bytes of a body that needs no room and no turn. Nearly all bodies are shorter, and are read whatever the
/// senders of long ones do.
pub const SHORT: usize = 1 << 16;

/// Bytes that room is counted in.
const UNIT: usize = 1 << 10;

/// Limits of a body.
#[derive(Clone, Copy)]
pub struct BodyLimits {
    /// Bytes, at most.
    pub most: usize,
    /// Time limit for the whole body.
    pub patience: Duration,
}

/// A body that cannot be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyFault {
    /// It has more bytes than these.
    TooLarge(usize),
    /// The body was late.
    Slow(Duration),
    /// Other bodies took all the room for as long as one may take.
    NoRoom,
    /// Its connection broke.
    Broken(String),
}

/// Room for the long bodies that a server holds at once, from all clients together. The room of a body
/// is taken before any of it is read. So bodies that never end keep others from being started, but not
/// from being finished.
pub struct BodyRoom {
    units: Arc<Semaphore>,
    turn: Arc<Semaphore>,
}

/// A body and its room.
pub struct HeldBody {
    /// The whole body.
    pub bytes: Vec<u8>,
    /// Its share of [`BodyRoom`], if it is a long one.
    pub room: Option<OwnedSemaphorePermit>,
}

impl BodyRoom {
    /// Room for `count` bodies of `bytes` bytes.
    pub fn new(count: usize, bytes: usize) -> Self {
        let units = bytes.div_ceil(UNIT).saturating_mul(count);
        let units = Semaphore::new(units.min(Semaphore::MAX_PERMITS));
        Self { units: Arc::new(units), turn: Arc::new(Semaphore::new(1)) }
    }

    /// Waits until no other long body is being parsed: a parsed body takes many times its own bytes.
    pub async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        self.turn.clone().acquire_owned().await.ok()
    }

    /// Reads a body.
    pub async fn read(&self, mut body: Incoming, limits: BodyLimits) -> Result<HeldBody, BodyFault> {
        let BodyLimits { most, patience } = limits;
        let deadline = Instant::now() + patience;
        let announced = body.size_hint();
        if announced.lower() > most as u64 {
            return Err(BodyFault::TooLarge(most));
        }
        let mut held = HeldBody { bytes: Vec::new(), room: None };
        // The announced length; a chunked body announces none.
        let needed = announced.exact().map_or(most, |length| length as usize);
        let mut has_room = needed <= SHORT;
        loop {
            if !has_room && (announced.exact().is_some() || held.bytes.len() > SHORT) {
                has_room = true;
                let units = u32::try_from(needed.div_ceil(UNIT)).unwrap_or(u32::MAX);
                let room = timeout_at(deadline, self.units.clone().acquire_many_owned(units)).await;
                held.room = room.map_err(|_| BodyFault::NoRoom)?.ok();
            }
            let next = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context));
            let frame = timeout_at(deadline, next).await.map_err(|_| BodyFault::Slow(patience))?;
            let Some(frame) = frame else { return Ok(held) };
            let frame = frame.map_err(|error| BodyFault::Broken(error.to_string()))?;
            if let Ok(data) = frame.into_data() {
                if held.bytes.len() + data.len() > most {
                    return Err(BodyFault::TooLarge(most));
                }
                held.bytes.extend_from_slice(&data);
            }
        }
    }
}
