//! Calls that are not answered by the policy, and why.

use std::ops::AddAssign;

use crate::api::error::ApiError;

/// Number of refused calls by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RefusedCalls {
    /// Calls of an unknown URL.
    pub unknown_url: u64,
    /// With the key of another episode than the URL's; counted for the key's episode.
    pub foreign_url: u64,
    /// Without a key, or with an unknown one; counted for the URL's episode.
    pub wrong_key: u64,
    /// After the end of the episode.
    pub after_end: u64,
    /// Beyond the most calls of an episode.
    pub over_limit: u64,
    /// While as many calls were under way as may be at once.
    pub at_once: u64,
    /// With too long a body.
    pub too_large: u64,
    /// That cannot be read, or ask for something unsupported.
    pub invalid: u64,
    /// Without room for the conversation or the answer.
    pub too_long: u64,
    /// That cannot be answered for another reason, for instance if their conversation cannot be
    /// rendered.
    pub unanswerable: u64,
}

impl RefusedCalls {
    /// The number of all.
    pub fn total(&self) -> u64 {
        self.by_reason().iter().map(|(_, count)| count).sum()
    }

    /// The numbers with the names of the reasons.
    pub fn by_reason(&self) -> [(&'static str, u64); 10] {
        [
            ("unknown_url", self.unknown_url),
            ("foreign_url", self.foreign_url),
            ("wrong_key", self.wrong_key),
            ("after_end", self.after_end),
            ("over_limit", self.over_limit),
            ("at_once", self.at_once),
            ("too_large", self.too_large),
            ("invalid", self.invalid),
            ("too_long", self.too_long),
            ("unanswerable", self.unanswerable),
        ]
    }

    /// Those that there were, by metric.
    pub fn by_metric(&self) -> Vec<(String, u64)> {
        let named = self
            .by_reason()
            .map(|(reason, count)| (format!("rollout/program_calls_refused/{reason}"), count));
        named.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    pub(super) fn count(&mut self, refusal: &Refusal) {
        let count = match refusal {
            Refusal::UnknownUrl => &mut self.unknown_url,
            Refusal::ForeignUrl => &mut self.foreign_url,
            Refusal::WrongKey => &mut self.wrong_key,
            Refusal::AfterEnd => &mut self.after_end,
            Refusal::OverLimit(_) => &mut self.over_limit,
            Refusal::AtOnce(_) => &mut self.at_once,
            Refusal::Request(error) if error.status == 413 => &mut self.too_large,
            Refusal::Request(error) if error.is_passing() => &mut self.at_once,
            Refusal::Request(_) => &mut self.invalid,
            Refusal::TooLong(_) => &mut self.too_long,
            Refusal::Unanswerable(_) => &mut self.unanswerable,
        };
        *count += 1;
    }
}

impl AddAssign for RefusedCalls {
    fn add_assign(&mut self, other: Self) {
        self.unknown_url += other.unknown_url;
        self.foreign_url += other.foreign_url;
        self.wrong_key += other.wrong_key;
        self.after_end += other.after_end;
        self.over_limit += other.over_limit;
        self.at_once += other.at_once;
        self.too_large += other.too_large;
        self.invalid += other.invalid;
        self.too_long += other.too_long;
        self.unanswerable += other.unanswerable;
    }
}

#[derive(Debug, Clone)]
pub(super) enum Refusal {
    /// The URL is unknown.
    UnknownUrl,
    /// The key is another episode's.
    ForeignUrl,
    /// The key is unknown.
    WrongKey,
    /// The episode is over.
    AfterEnd,
    /// The episode has made all calls that it may.
    OverLimit(usize),
    /// This many calls of the episode are under way.
    AtOnce(usize),
    /// The call itself is wrong.
    Request(ApiError),
    /// It does not fit.
    TooLong(ApiError),
    /// The policy cannot answer it.
    Unanswerable(ApiError),
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self::Request(error)
    }
}

impl Refusal {
    /// Whether the same call may be answered later.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::AtOnce(_) => true,
            Self::Request(error) => error.is_passing(),
            _ => false,
        }
    }

    pub(super) fn into_error(self) -> ApiError {
        match self {
            Self::UnknownUrl => ApiError::new(
                401,
                "AuthenticationError",
                "there is no episode at this URL: use the one in OPENAI_BASE_URL",
            )
            .coded("unknown_url"),
            Self::ForeignUrl => ApiError::new(
                401,
                "AuthenticationError",
                "this URL and this key belong to different episodes: use the URL in OPENAI_BASE_URL with the key in OPENAI_API_KEY",
            )
            .coded("foreign_url"),
            Self::WrongKey => ApiError::new(
                401,
                "AuthenticationError",
                "a call of an episode needs the episode's own key: send OPENAI_API_KEY in the header `Authorization: Bearer KEY`",
            )
            .coded("wrong_key"),
            Self::AfterEnd => {
                ApiError::new(410, "GoneError", "the episode of this URL is over").coded("episode_over")
            }
            Self::OverLimit(most) => {
                let message = format!(
                    "this episode has made {most} calls, its limit (`max_calls`): no more are answered"
                );
                ApiError::new(403, "PermissionDeniedError", message).coded("call_limit")
            }
            Self::AtOnce(most) => {
                let message = format!(
                    "{most} calls of this episode are in flight, the limit (`max_calls_at_once`): try again later"
                );
                ApiError::new(429, "RateLimitError", message).coded("too_many_at_once")
            }
            Self::Request(error) | Self::TooLong(error) | Self::Unanswerable(error) => error,
        }
    }
}
