//! Stop strings: finds the end of a text.

use tamis_core::fault;
use tamis_core::fault::Fault;
/// Texts at which generation stops.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopStrings {
    strings: Vec<String>,
    longest: usize,
}

/// A stop string found in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopHit {
    /// Byte at which it starts: the completion without the stop string ends here.
    pub start: usize,
    /// Byte after its end.
    pub end: usize,
    /// Index in the list.
    pub index: usize,
}

impl StopStrings {
    /// The given texts; an empty one is refused.
    pub fn new(strings: Vec<String>) -> Result<Self, Fault> {
        if let Some(index) = strings.iter().position(String::is_empty) {
            return Err(fault!("stop string {index} is empty; every text contains it"));
        }
        let longest = strings.iter().map(String::len).max().unwrap_or(0);
        Ok(Self { strings, longest })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.strings.is_empty()
    }

    /// The texts.
    pub fn strings(&self) -> &[String] {
        &self.strings
    }

    /// The stop string that ends first in `text` (the longest of several that end together). This is the one
    /// that generation would have found if the text had arrived character by character.
    ///
    /// Bytes before `searched` are known to contain no complete stop string. If the text grows, pass its
    /// length at the last search. Strings that cross that border are still found.
    pub fn find(&self, text: &str, searched: usize) -> Option<StopHit> {
        let mut from = searched.min(text.len()).saturating_sub(self.longest.saturating_sub(1));
        while !text.is_char_boundary(from) {
            from -= 1;
        }
        let tail = text.get(from..)?;
        self.strings
            .iter()
            .enumerate()
            .filter_map(|(index, stop)| {
                let start = from + tail.find(stop.as_str())?;
                Some(StopHit { start, end: start + stop.len(), index })
            })
            .min_by_key(|hit| (hit.end, hit.start))
    }

    /// Length of the longest end of `text` that may grow into a stop string. That text must not be shown yet.
    pub fn pending_len(&self, text: &str) -> usize {
        self.strings
            .iter()
            .flat_map(|stop| {
                stop.char_indices()
                    .skip(1)
                    .map(|(length, _)| &stop[..length])
                    .filter(|start| text.ends_with(start))
            })
            .map(str::len)
            .max()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stops(strings: &[&str]) -> StopStrings {
        StopStrings::new(strings.iter().map(|&string| string.to_owned()).collect()).unwrap()
    }

    #[test]
    fn the_first_to_end_wins_and_the_longest_of_those() {
        let stop = stops(&["bcd", "c", "abc"]);
        assert_eq!(stop.find("xabcd", 0), Some(StopHit { start: 1, end: 4, index: 2 }));
        assert_eq!(stop.find("xbd", 0), None);
        assert_eq!(stops(&[]).find("anything", 0), None);
    }

    #[test]
    fn a_string_across_the_searched_border_is_found() {
        let stop = stops(&["é€</s>"]);
        let text = "aé€</s>b";
        for searched in 0..text.find('b').unwrap() {
            assert_eq!(stop.find(text, searched).map(|hit| hit.start), Some(1), "{searched}");
        }
    }

    #[test]
    fn pending_ends() {
        let stop = stops(&["\n\nQ", "</a>"]);
        assert_eq!(stop.pending_len("x\n\n"), 2);
        assert_eq!(stop.pending_len("x\n"), 1);
        assert_eq!(stop.pending_len("x</a"), 3);
        assert_eq!(stop.pending_len("x"), 0);
    }

    #[test]
    fn an_empty_string_is_refused() {
        let error = StopStrings::new(vec!["a".to_owned(), String::new()]).unwrap_err();
        insta::assert_snapshot!(error, @"stop string 1 is empty; every text contains it");
    }
}
