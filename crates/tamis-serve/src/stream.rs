//! Server-sent events: a body that grows as the engine reports tokens.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame};
use serde_json::Value;
use tamis_rollout::api::error::ApiError;
use tamis_rollout::api::event::{DONE, put};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::Usage;
use crate::engine::ChoiceEvent;
use crate::log::PendingLine;
use crate::running::{Running, broken_error};

/// Makes chunks of events.
pub(crate) trait Chunks: Send {
    /// Events before the first one of a choice.
    fn head(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn chunk(&mut self, event: ChoiceEvent) -> Result<Value, ApiError>;

    /// Events after the last one, before `[DONE]`.
    fn tail(&mut self) -> Vec<Value>;

    /// Tokens so far.
    fn usage(&self) -> Usage;
}

pub(crate) enum AnswerBody {
    Whole(Option<Bytes>),
    /// Events.
    Stream(Box<Stream>),
}

/// A body of server-sent events. If it is dropped before its end, its request is aborted.
pub(crate) struct Stream {
    running: Option<Running>,
    chunks: Box<dyn Chunks>,
    has_head: bool,
    deadline: Pin<Box<Sleep>>,
    limit: Duration,
    line: Option<PendingLine>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(line) = &mut self.line {
            line.usage = Some(self.chunks.usage());
        }
    }
}

impl Stream {
    pub(crate) fn new(
        running: Running,
        chunks: Box<dyn Chunks>,
        limit: Duration,
        line: Option<PendingLine>,
    ) -> Self {
        let deadline = Box::pin(sleep_until(Instant::now() + limit));
        Self { running: Some(running), chunks, has_head: false, deadline, limit, line }
    }

    fn fail(&mut self, error: &ApiError, text: &mut String) {
        self.running = None;
        put(text, &error.body());
        text.push_str(DONE);
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<String>> {
        let mut text = String::new();
        if !std::mem::replace(&mut self.has_head, true) {
            for value in self.chunks.head() {
                put(&mut text, &value);
            }
        }
        while let Some(running) = &mut self.running {
            match running.poll_next(context) {
                Poll::Ready(Some(event)) => {
                    let is_finished = running.is_finished();
                    match self.chunks.chunk(event) {
                        Ok(value) => put(&mut text, &value),
                        Err(error) => self.fail(&error, &mut text),
                    }
                    // An error ended the stream.
                    if is_finished && self.running.take().is_some() {
                        for value in self.chunks.tail() {
                            put(&mut text, &value);
                        }
                        text.push_str(DONE);
                    }
                }
                Poll::Ready(None) => self.fail(&broken_error(), &mut text),
                Poll::Pending if self.deadline.as_mut().poll(context).is_ready() => {
                    self.fail(&ApiError::timed_out(self.limit.as_secs()), &mut text);
                }
                Poll::Pending if text.is_empty() => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        Poll::Ready(Some(text).filter(|text| !text.is_empty()))
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let bytes = match self.get_mut() {
            Self::Whole(bytes) => bytes.take(),
            Self::Stream(stream) => match stream.poll(context) {
                Poll::Ready(text) => text.map(Bytes::from),
                Poll::Pending => return Poll::Pending,
            },
        };
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        match self {
            Self::Whole(bytes) => {
                hyper::body::SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Stream(_) => hyper::body::SizeHint::default(),
        }
    }
}
