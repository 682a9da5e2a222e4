//! The part of an episode that a policy sees when it answers: all of it, its last turns, or only the last
//! one.

use tamis_data::prompt::Message;

tamis_core::choice! {
    /// The part of an episode that the policy sees when it answers, by RAGEN's names.
    pub enum ContextMode {
        /// Everything since the prompt. An episode is one growing text, which is computed once.
        Full = "full",
        /// The system message and the last `max_context_window` turns. Each answer is trained on after the
        /// text that was shown before it.
        LimitedMultiTurn = "limited_multi_turn",
        /// The system message and one user message: the answers of the last `max_context_window` turns in
        /// short form, and the present observation.
        SingleTurn = "single_turn",
    }
}

/// The visible part, and its number of turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Context {
    /// The mode.
    pub mode: ContextMode,
    /// Turns that count, including the one to be answered; `None`: all.
    pub window: Option<usize>,
}

impl Context {
    /// Characters in the text about earlier turns, beyond those of answers.
    pub fn alphabet(self) -> &'static str {
        if self.mode == ContextMode::SingleTurn { "Your earlier answers:\nTurn 0123456789" } else { "" }
    }

    /// Whether a turn continues the text of the one before.
    pub fn is_growing(self) -> bool {
        self.mode == ContextMode::Full
    }

    /// The visible part of a conversation that ends in the message to be answered. A conversation is an
    /// optional system message, followed by turns: an observation and the answer.
    ///
    /// ```
    /// use tamis_data::prompt::Message;
    /// use tamis_env::environment::context::{Context, ContextMode};
    /// let message = |(role, content): (&str, &str)| Message::new(role, content);
    /// let told = [("system", "s"), ("user", "1"), ("assistant", "a"), ("user", "2"), ("assistant", "b"), ("user", "3")];
    /// let told = told.map(message);
    /// let of = |mode| Context { mode, window: Some(2) }.view(&told);
    /// let contents = |view: &[Message]| view.iter().map(|one| one.content.clone()).collect::<Vec<_>>();
    /// assert_eq!(contents(&of(ContextMode::LimitedMultiTurn)), ["s", "2", "b", "3"]);
    /// assert_eq!(contents(&of(ContextMode::SingleTurn)), ["s", "Your earlier answers:\nTurn 2: b\n\n3"]);
    /// assert_eq!(of(ContextMode::Full), told);
    /// ```
    pub fn view(self, conversation: &[Message]) -> Vec<Message> {
        let num_system = conversation.iter().take_while(|message| message.is_system()).count();
        let (system, turns) = conversation.split_at(num_system);
        // A turn begins with the first observation after an answer, or with the first of all.
        let is_answer = |message: &Message| message.role == "assistant";
        let starts: Vec<usize> = (0..turns.len())
            .filter(|&place| !is_answer(&turns[place]) && (place == 0 || is_answer(&turns[place - 1])))
            .collect();
        let window = self.window.unwrap_or(usize::MAX).max(1);
        let first = starts.len().saturating_sub(window);
        let Some(&start) = starts.get(first).filter(|_| self.mode != ContextMode::Full) else {
            return conversation.to_vec();
        };
        let mut view = system.to_vec();
        if self.mode == ContextMode::LimitedMultiTurn {
            view.extend_from_slice(&turns[start..]);
            return view;
        }
        let earlier: Vec<String> = turns[start..]
            .iter()
            .filter(|message| is_answer(message))
            .zip(first + 1..)
            .map(|(answer, number)| format!("Turn {number}: {}\n", shorten(&answer.content)))
            .collect();
        let mut shown = turns[starts[starts.len() - 1]..].to_vec();
        if let Some(message) = shown.first_mut().filter(|_| !earlier.is_empty()) {
            message.content = format!("Your earlier answers:\n{}\n{}", earlier.concat(), message.content);
        }
        view.extend(shown);
        view
    }
}

/// An answer without its thoughts: the text in `<answer>`, or after `</think>`, or all of it.
fn shorten(answer: &str) -> &str {
    let between = |open: &str, close: &str| {
        let (_, rest) = answer.split_once(open)?;
        Some(rest.split_once(close).map_or(rest, |(inner, _)| inner))
    };
    let short =
        between("<answer>", "</answer>").or_else(|| answer.split_once("</think>").map(|(_, rest)| rest));
    short.unwrap_or(answer).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation(turns: usize) -> Vec<Message> {
        let message = |role: &str, content: String| Message::new(role, content);
        let mut told = vec![message("system", "rules".to_owned())];
        for turn in 1..=turns {
            told.push(message("user", format!("shown {turn}")));
            told.push(message("assistant", format!("<think>hm</think><answer>do {turn}</answer>")));
        }
        told.pop();
        told
    }

    #[test]
    fn a_window_keeps_the_system_and_whole_turns() {
        let told = conversation(4);
        for window in 1..7 {
            let limited = Context { mode: ContextMode::LimitedMultiTurn, window: Some(window) }.view(&told);
            assert_eq!(limited[0], told[0]);
            assert_eq!(limited[1..], told[told.len() - (2 * window.min(4) - 1)..]);
            let single = Context { mode: ContextMode::SingleTurn, window: Some(window) }.view(&told);
            assert_eq!((single.len(), single[1].content.matches("Turn ").count()), (2, window.min(4) - 1));
            assert!(single[1].content.ends_with("shown 4") && !single[1].content.contains("hm"));
        }
        let all = Context { mode: ContextMode::LimitedMultiTurn, window: None };
        assert_eq!(all.view(&told), told);
        assert_eq!(Context::default().view(&told), told);
        assert_eq!(all.view(&told[..1]), told[..1]);
    }

    #[test]
    fn an_answer_is_told_without_its_thoughts() {
        for (answer, short) in [
            ("<think>a</think> <answer> Up </answer>", "Up"),
            ("<think>a</think> Up", "Up"),
            (" Up ", "Up"),
            ("<answer>Up", "Up"),
        ] {
            assert_eq!(shorten(answer), short);
        }
    }
}
