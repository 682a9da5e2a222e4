//! The cache on disk, in the layout of `huggingface_hub`.
//!
//! ```text
//! HF_HOME/hub/.locks/models--owner--name/BLOB.lock
//! HF_HOME/hub/models--owner--name/
//!     refs/main                    the commit of a branch or tag
//!     blobs/BLOB                   content, by its checksum; BLOB.XXXXXX.incomplete while it comes
//!     snapshots/COMMIT/config.json a link to its blob
//!     .listings/COMMIT.json        what the repository holds, as the hub said (ours)
//! ```

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Component, Path, PathBuf};

use crate::error::HubError;
use crate::listing::{ListedFile, Listing, stays_inside};
use crate::repository::{Repository, is_commit};

/// Most bytes of a listing, and of a reference.
const MAX_LISTING: u64 = 256 << 20;
const MAX_REFERENCE: u64 = 4096;

/// Most files that are looked through if there is no listing.
const MAX_FOUND: usize = 100_000;

#[derive(Debug)]
pub(crate) struct CachedRepository {
    folder: PathBuf,
    locks: PathBuf,
}

impl CachedRepository {
    pub(crate) fn new(cache: &Path, repository: &Repository) -> Self {
        let name = repository.folder();
        Self { folder: cache.join(&name), locks: cache.join(".locks").join(name) }
    }

    /// The commit of a revision when the hub was last asked for it.
    pub(crate) fn commit_of(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let text = tamis_file::read_text(&self.reference(revision)?, MAX_REFERENCE).ok()?;
        Some(text.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    fn reference(&self, revision: &str) -> Option<PathBuf> {
        stays_inside(revision).then(|| self.folder.join("refs").join(revision))
    }

    pub(crate) fn remember_commit(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        match self.reference(revision) {
            Some(path) if !is_commit(revision) => write_whole(&path, commit.as_bytes()),
            _ => Ok(()),
        }
    }

    /// The repository's content at a commit, if the hub has been asked for it before.
    pub(crate) fn listing(&self, commit: &str) -> Option<Listing> {
        let text = tamis_file::read(&self.listing_path(commit), MAX_LISTING).ok()?;
        let listing: Listing = serde_json::from_slice(&text).ok()?;
        let is_sound = listing.commit == commit && listing.names().all(stays_inside);
        is_sound.then_some(listing)
    }

    fn listing_path(&self, commit: &str) -> PathBuf {
        self.folder.join(".listings").join(format!("{commit}.json"))
    }

    pub(crate) fn remember_listing(&self, listing: &Listing) -> Result<(), HubError> {
        let path = self.listing_path(&listing.commit);
        let text = serde_json::to_vec(listing).unwrap_or_default();
        write_whole(&path, &text)
    }

    /// The files of a commit that another program has put there, as if they were all.
    pub(crate) fn found_files(&self, commit: &str) -> Option<Listing> {
        let snapshot = self.snapshot(commit);
        let mut files = Vec::new();
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(snapshot.join(&folder)).ok()?.flatten() {
                let Ok(name) = entry.file_name().into_string() else { continue };
                let name = if folder.is_empty() { name } else { format!("{folder}/{name}") };
                match fs::metadata(entry.path()) {
                    Ok(found) if found.is_dir() => folders.push(name),
                    Ok(found) if stays_inside(&name) => {
                        files.push(ListedFile { name, size: Some(found.len()), checksum: None });
                    }
                    // A link to a missing blob.
                    _ => {}
                }
            }
            if files.len() > MAX_FOUND {
                return None;
            }
        }
        files.sort_by(|one, other| one.name.cmp(&other.name));
        Some(Listing { commit: commit.to_owned(), files, configurations: Vec::new() })
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// Those of the given files that are missing at a commit, or differ in size from the listing.
    pub(crate) fn missing(&self, commit: &str, listing: Option<&Listing>, files: &[String]) -> Vec<String> {
        let snapshot = self.snapshot(commit);
        let is_there = |file: &&String| {
            let listed = listing.and_then(|listing| listing.file(file)?.size);
            let found = fs::metadata(snapshot.join(file)).ok().filter(fs::Metadata::is_file);
            found.is_some_and(|found| listed.is_none_or(|size| size == found.len()))
        };
        files.iter().filter(|file| !is_there(file)).cloned().collect()
    }

    pub(crate) fn blob(&self, name: &str) -> PathBuf {
        self.folder.join("blobs").join(name)
    }

    /// Takes the lock of a blob; `None` on a file system without locks. Calls `waits` if another process
    /// holds it.
    pub(crate) fn lock(&self, blob: &str, waits: impl FnOnce()) -> Result<Option<File>, HubError> {
        let path = self.locks.join(format!("{blob}.lock"));
        make_folder(&self.locks)?;
        // The file is never truncated or removed: others may hold the lock.
        let file = File::options().create(true).append(true).open(&path).map_err(disk("open", &path))?;
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(fs::TryLockError::WouldBlock) => waits(),
            Err(fs::TryLockError::Error(_)) => return Ok(None),
        }
        match file.lock() {
            Ok(()) => Ok(Some(file)),
            Err(_) => Ok(None),
        }
    }

    /// Links a file name of a commit to a blob. The link is relative; on file systems without links it is a
    /// copy.
    pub(crate) fn link(&self, commit: &str, file: &str, blob: &str) -> Result<(), HubError> {
        let place = self.snapshot(commit).join(file);
        let folder = place.parent().unwrap_or(&place);
        make_folder(folder)?;
        let parts = Path::new(file).components().filter(|part| matches!(part, Component::Normal(_)));
        // Up from the file's own folders, the commit's folder and `snapshots`.
        let target = std::iter::repeat_n("..", parts.count() + 1).chain(["blobs", blob]).collect::<PathBuf>();
        let blob = self.blob(blob);
        let name = tempfile::Builder::new().prefix(".link-").make_in(folder, |link| {
            symlink(&target, link).or_else(|_| fs::hard_link(&blob, link)).or_else(|error| {
                // Only if the name is taken, another one is tried.
                if error.kind() == io::ErrorKind::AlreadyExists {
                    Err(error)
                } else {
                    fs::copy(&blob, link).map(|_| ())
                }
            })
        });
        let link = name.map_err(disk("make a link in", folder))?.into_temp_path();
        link.persist(&place).map_err(|error| disk("make the link", &place)(error.error))
    }
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(not(unix))]
fn symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn disk<'p>(operation: &'static str, path: &'p Path) -> impl FnOnce(io::Error) -> HubError + 'p {
    move |source| HubError::disk(operation, path, source)
}

pub(crate) fn make_folder(path: &Path) -> Result<(), HubError> {
    fs::create_dir_all(path).map_err(disk("make the folder", path))
}

/// Writes a small file atomically: others see either the old or the new content.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), HubError> {
    let folder = path.parent().unwrap_or(path);
    make_folder(folder)?;
    let write = || {
        let mut builder = tempfile::Builder::new();
        builder.prefix(".new-");
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let mut file = builder.tempfile_in(folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path).map(|_| ()).map_err(|error| error.error)
    };
    write().map_err(disk("write", path))
}
