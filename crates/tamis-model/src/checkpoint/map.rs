//! Memory map of a file.
#![expect(
    unsafe_code,
    reason = "a map is undefined behaviour where another process truncates the file meanwhile"
)]

use std::path::Path;

use memmap2::Mmap;

/// The bytes of a file.
pub(super) fn file(path: &Path) -> std::io::Result<Mmap> {
    let file = tamis_file::open(path)?;
    // SAFETY: checkpoints are replaced by rename, never rewritten in place (`write_file`), so a mapped file
    // keeps its bytes.
    unsafe { Mmap::map(&file) }
}
