//! The example of a new algorithm runs, and the page that walks through it shows its code.

#[allow(unreachable_pub, reason = "it is a program of its own too")]
#[path = "../examples/new_algorithm.rs"]
mod example;

const PAGE: &str = include_str!("../../../docs/adding-an-algorithm.md");
const CODE: &str = include_str!("../examples/new_algorithm.rs");

#[test]
fn the_example_runs() -> Result<(), Box<dyn std::error::Error>> {
    example::main()
}

#[test]
fn the_page_shows_the_code_of_the_example() {
    for part in ["advantage", "filter", "registration"] {
        let (_, rest) = CODE.split_once(&format!("// [{part}]\n")).expect("the part begins");
        let (code, _) = rest.split_once(&format!("// [/{part}]")).expect("the part ends");
        assert!(
            PAGE.contains(&format!("```rust\n{code}```\n")),
            "docs/adding-an-algorithm.md shows another `{part}`"
        );
    }
}
