//! The example of a new reward runs, and all code on the page about it comes from an example.

#[allow(unreachable_pub, reason = "it is a program of its own too")]
#[path = "../examples/new_reward.rs"]
mod example;

const PAGE: &str = include_str!("../../../docs/adding-an-algorithm.md");
const EXAMPLES: [&str; 2] =
    [include_str!("../examples/new_reward.rs"), include_str!("../../tamis-core/examples/new_algorithm.rs")];

#[test]
fn the_example_runs() -> Result<(), Box<dyn std::error::Error>> {
    example::main()
}

#[test]
fn the_page_shows_the_code_of_the_examples() {
    let blocks: Vec<&str> =
        PAGE.split("```rust\n").skip(1).filter_map(|rest| rest.split("```\n").next()).collect();
    for block in &blocks {
        let is_shown = EXAMPLES.iter().any(|code| code.contains(&format!("]\n{block}// [/")));
        assert!(is_shown, "docs/adding-an-algorithm.md shows code that no example has:\n{block}");
    }
    let (_, rest) = EXAMPLES[0].split_once("// [reward]\n").expect("the part begins");
    let (code, _) = rest.split_once("// [/reward]").expect("the part ends");
    assert!(blocks.contains(&code), "docs/adding-an-algorithm.md does not show the reward");
}
