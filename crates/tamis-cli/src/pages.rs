//! The pages of the documentation, which the program brings along.

/// Name and text of each page of `docs/`.
pub(crate) static PAGES: &[(&str, &str)] = &include!(concat!(env!("OUT_DIR"), "/pages.rs"));

/// The page that a text names as a file of `docs/`.
pub(crate) fn page_named_in(text: &str) -> Option<&'static str> {
    PAGES.iter().map(|(name, _)| *name).find(|name| text.contains(&format!("docs/{name}.md")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_there_with_a_title() {
        assert!(PAGES.len() > 20, "{}", PAGES.len());
        for (name, page) in PAGES {
            assert!(page.starts_with("# ") || page.contains("\n# "), "{name}");
        }
        assert_eq!(page_named_in("its parameters fit none (docs/rewards.md)"), Some("rewards"));
        assert_eq!(page_named_in("docs/nothing.md"), None);
    }
}
