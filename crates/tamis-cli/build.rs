//! Lists the pages of `docs/`, which `tamis docs` prints.

use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let docs = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../docs").canonicalize()?;
    println!("cargo::rerun-if-changed={}", docs.display());
    let mut pages: Vec<PathBuf> =
        std::fs::read_dir(&docs)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    pages.retain(|page| page.extension().is_some_and(|ending| ending == "md"));
    pages.sort();
    let mut list = "[".to_owned();
    for page in pages {
        let name = page.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        // The index.
        if name != "README" {
            let page = page.to_str().ok_or("the path of docs/ is no text")?;
            writeln!(list, "    ({name:?}, include_str!({page:?})),")?;
        }
    }
    std::fs::write(PathBuf::from(std::env::var("OUT_DIR")?).join("pages.rs"), list + "]")?;
    Ok(())
}
