//! Packs the part of the Python package that a run starts. `tamis_file::unpack` reads it.

use std::error::Error;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;

use flate2::{Compression, write::GzEncoder};

/// Folders of the package; the rest of it needs the native module.
const FOLDERS: [&str; 5] = ["cluster", "environments", "learner", "loggers", "reward"];

fn main() -> Result<(), Box<dyn Error>> {
    let package = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../python/tamis");
    let mut files = vec![package.join("__init__.py")];
    for folder in FOLDERS {
        for entry in std::fs::read_dir(package.join(folder))? {
            files.push(entry?.path());
        }
    }
    files.retain(|file| file.extension().is_some_and(|ending| ending == "py"));
    files.sort();
    let archive = File::create(PathBuf::from(std::env::var("OUT_DIR")?).join("package.gz"))?;
    let mut packed = GzEncoder::new(archive, Compression::best());
    for file in files {
        // Not their folders, where Python writes its caches: a test of `python_program` finds a new file.
        println!("cargo::rerun-if-changed={}", file.display());
        let name = file.strip_prefix(&package)?.display();
        let text = std::fs::read_to_string(&file)
            .map_err(|error| format!("failed to read {}: {error}", file.display()))?;
        if text.contains('\0') {
            return Err(format!("{} has a NUL", file.display()).into());
        }
        write!(packed, "{name}\0{text}\0")?;
    }
    packed.finish()?;
    Ok(())
}
