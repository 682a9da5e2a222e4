//! The logs in the documents themselves, where they are there.

use crate::{batches_of, of_log, told};

/// A document, or none where the folder is not there, which is printed.
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn document(name: &str) -> Option<String> {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/reference/source").join(name);
    let text = std::fs::read_to_string(path).ok();
    if text.is_none() {
        eprintln!("skipped: the document {name} is not there");
    }
    text
}

/// The block between fences that holds a text.
fn block<'a>(document: &'a str, with: &str) -> &'a str {
    document.split("```").skip(1).step_by(2).find(|block| block.contains(with)).unwrap()
}

#[test]
fn both_forms_of_filter_group_lines() {
    let Some(text) = document("filter-groups.md") else { return };
    let plain = of_log(block(&text, "INFO: Filtered: 600"));
    assert_eq!(batches_of(&plain), told(3, "59.03", 1259, "419.7"));
    let stamped = of_log(block(&text, "Filtered (std=0): 620"));
    assert_eq!(batches_of(&stamped), told(3, "59.90", 1232, "410.7"));
    assert_eq!((plain.groups.generated, stamped.groups.generated), (Some(3072), Some(3072)));
    assert_eq!(stamped.now.unwrap().target, Some(1024));
}

#[test]
fn the_log_of_dynamic_sampling() {
    let Some(text) = document("dynamic-sampling.md") else { return };
    let summary = of_log(block(&text, "[Dynamic Sampling] Step 42"));
    assert_eq!(batches_of(&summary), told(3, "59.11", 157, "52.3"));
    let now = summary.now.unwrap();
    assert_eq!((now.step, now.ready, now.target, now.is_training), (Some(42), Some(157), Some(128), true));
}
