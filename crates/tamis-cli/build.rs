//! Packs the pages that `tamis docs` prints: those of `docs/`, and the others that these link to. So a user
//! who has only the program can follow every link between pages. `tamis_file::unpack` reads them.

use std::error::Error;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use flate2::{Compression, write::GzEncoder};

/// Pages outside `docs/` and `studies/`, by the names under which the program prints them.
const OTHERS: [(&str, &str); 6] = [
    ("tamis", "README.md"),
    ("ARCHITECTURE", "ARCHITECTURE.md"),
    ("CHANGELOG", "CHANGELOG.md"),
    ("CONTRIBUTING", "CONTRIBUTING.md"),
    ("bench", "bench/README.md"),
    ("deploy", "deploy/README.md"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../..").canonicalize()?;
    let mut pages = pages_in(&root.join("docs"), "")?;
    pages.extend(OTHERS.map(|(name, path)| (name.to_owned(), root.join(path))));
    pages.extend(pages_in(&root.join("studies"), "studies/")?);
    let file = File::create(PathBuf::from(std::env::var("OUT_DIR")?).join("pages.gz"))?;
    let mut packed = GzEncoder::new(file, Compression::best());
    for (name, page) in pages {
        println!("cargo::rerun-if-changed={}", page.display());
        let text = std::fs::read_to_string(&page)
            .map_err(|error| format!("failed to read {}: {error}", page.display()))?;
        if text.contains('\0') {
            return Err(format!("{} has a NUL", page.display()).into());
        }
        write!(packed, "{name}\0{text}\0")?;
    }
    packed.finish()?;
    Ok(())
}

/// The pages in `folder`, by file name behind `prefix`. The index of a folder with a prefix has its name.
fn pages_in(folder: &Path, prefix: &str) -> Result<Vec<(String, PathBuf)>, Box<dyn Error>> {
    // New pages count as well.
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let page = entry?.path();
        if page.extension().is_some_and(|ending| ending == "md") {
            let name = page.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
            let is_index = name == "README" && !prefix.is_empty();
            let name =
                if is_index { prefix.trim_end_matches('/').to_owned() } else { format!("{prefix}{name}") };
            pages.push((name, page));
        }
    }
    pages.sort();
    Ok(pages)
}
