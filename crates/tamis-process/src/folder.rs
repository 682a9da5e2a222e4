//! A temporary folder that is removed even if tamis is killed.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::path::{Path, PathBuf};

#[cfg(unix)]
use crate::guard::Guard;

/// A folder that only the user may read. It is removed when the value is dropped, and by a guard if tamis is
/// killed.
#[derive(Debug)]
pub struct GuardedFolder {
    path: PathBuf,
    #[cfg(unix)]
    _guard: Option<Guard>,
}

impl GuardedFolder {
    /// Creates a folder in `parent`, with an unpredictable name that begins with `prefix`.
    ///
    /// # Errors
    /// The system's errors.
    pub fn create_in(parent: &Path, prefix: &str) -> io::Result<Self> {
        let name = format!("{prefix}{:016x}", RandomState::new().hash_one(std::process::id()));
        Self::create(std::path::absolute(parent)?.join(name))
    }

    /// Creates a new folder in an existing parent.
    fn create(path: PathBuf) -> io::Result<Self> {
        let mut builder = std::fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        // An existing folder of someone else must not be removed.
        if path.symlink_metadata().is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        // If the folder cannot be created, dropping the guard ends it.
        #[cfg(unix)]
        let guard = Guard::of_folder(&path);
        builder.create(&path)?;
        Ok(Self {
            path,
            #[cfg(unix)]
            _guard: guard,
        })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for GuardedFolder {
    fn drop(&mut self) {
        // The guard exists until the folder is gone.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_goes_with_its_value_and_is_nobody_elses() {
        let parent = tempfile::tempdir().expect("a folder");
        let path = parent.path().join("folder");
        let folder = GuardedFolder::create(path.clone()).expect("made");
        std::fs::write(folder.path().join("file"), "x").expect("written");
        let error = GuardedFolder::create(path.clone()).expect_err("it is there");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert!(path.join("file").exists());
        drop(folder);
        assert!(!path.exists());
    }
}
