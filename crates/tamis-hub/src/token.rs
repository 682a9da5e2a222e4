//! The user's token, which is never printed.

use std::fmt;

/// The user's token for the hub.
#[derive(Clone, PartialEq, Eq)]
pub struct HubToken(String);

impl HubToken {
    /// From a text, without the white space around it; `None` if nothing is left, or a header cannot carry
    /// it.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        let is_sound = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_sound.then(|| Self(text.to_owned()))
    }

    /// The value of the header `Authorization`.
    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for HubToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("HubToken(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_trimmed_and_never_shown() {
        let token = HubToken::new(" hf_secret\n").expect("a token");
        assert_eq!(token.header(), "Bearer hf_secret");
        assert_eq!(format!("{token:?}"), "HubToken(..)");
        assert_eq!(HubToken::new(" \n"), None);
        assert_eq!(HubToken::new("two words"), None);
        assert_eq!(HubToken::new("hf_\u{e9}"), None);
    }
}
