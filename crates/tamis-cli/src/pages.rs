//! The pages of the documentation, which are part of the program.
//!
//! A page of `docs/` is named after its file; `README` is the index. `tamis` is the README of the project.
//! Pages of other folders have the folder before their name (`studies/claims`).

use std::sync::LazyLock;

/// Name and text of each page.
pub(crate) static PAGES: LazyLock<Vec<(String, String)>> =
    LazyLock::new(|| tamis_file::unpack(include_bytes!(concat!(env!("OUT_DIR"), "/pages.gz"))));

/// The text of the page that `name` means: its name, its path, or a link to it as pages write them.
pub(crate) fn page(name: &str) -> Option<&'static str> {
    let name = name_in_link(name);
    let is_last_part = |known: &str| known.rsplit_once('/').is_some_and(|(_, last)| last == name);
    let found = PAGES.iter().find(|(known, _)| *known == name);
    found.or_else(|| PAGES.iter().find(|(known, _)| is_last_part(known))).map(|(_, text)| text.as_str())
}

/// A link without its anchor, folder and ending: `../docs/data.md#images` is `data`.
pub(crate) fn name_in_link(link: &str) -> &str {
    let path = link.split('#').next().unwrap_or_default().trim_end_matches(".md");
    if path == "../README" {
        return "tamis";
    }
    let path = path.trim_start_matches("../").trim_start_matches("docs/");
    path.strip_suffix("/README").unwrap_or(path)
}

/// The page that a text names as a file of `docs/` or of `studies/`.
pub(crate) fn page_named_in(text: &str) -> Option<&'static str> {
    let is_named = |name: &str| {
        let file =
            if name.starts_with("studies/") { format!("{name}.md") } else { format!("docs/{name}.md") };
        text.contains(&file)
    };
    PAGES.iter().map(|(name, _)| name.as_str()).find(|name| is_named(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_there_with_a_title() {
        assert!(PAGES.len() > 30, "{}", PAGES.len());
        for (name, page) in PAGES.iter() {
            assert!(page.starts_with("# ") || page.contains("\n# "), "{name}");
        }
        assert_eq!(page_named_in("its parameters fit none (docs/rewards.md)"), Some("rewards"));
        assert_eq!(page_named_in("measured (studies/claims.md)"), Some("studies/claims"));
        assert_eq!(page_named_in("docs/nothing.md"), None);
        for (link, title) in [
            ("README.md#the-words", "# Documentation\n"),
            ("../README.md#what-is-tested", "# tamis\n"),
            ("docs/data.md#images", "# Data\n"),
            ("../bench/README.md#on-a-gpu", "# Benchmarks"),
            ("claims", "# Published claims"),
            ("studies/README.md", "# Studies"),
        ] {
            assert!(page(link).is_some_and(|text| text.starts_with(title)), "{link}");
        }
    }

    #[test]
    fn every_link_to_a_page_leads_to_one_that_is_printed() {
        let mut num_links = 0;
        for (name, text) in PAGES.iter() {
            for link in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
                if link.strip_suffix(".md").is_some() && !link.contains("://") {
                    assert!(page(link).is_some(), "{name}: {link}");
                    num_links += 1;
                }
            }
        }
        assert!(num_links > 200, "{num_links}");
    }
}
