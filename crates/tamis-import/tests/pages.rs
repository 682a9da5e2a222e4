//! The page of all keys is what the definitions generate; `scripts/generate` writes it.

use std::path::Path;

#[test]
fn the_reference_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let is_current = std::fs::read_to_string(path).unwrap() == tamis_import::reference_markdown();
    assert!(is_current, "docs/configuration.md is out of date: run scripts/generate");
}
