//! Downloads one file of a repository into the cache.

use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ureq::http::StatusCode;

use crate::cache::{CachedRepository, disk, make_folder};
use crate::digest::Digest;
use crate::error::{HubCause, HubError};
use crate::listing::ListedFile;
use crate::progress::DownloadProgress;
use crate::request::{Client, FileFacts, status_error};

/// Bytes that an interrupted download must have added for its retries to start from zero again.
const GROUND: u64 = 1 << 20;

/// Suffix of an incomplete file.
const PART: &str = ".incomplete";

/// A download of several files, with one progress for all.
pub(crate) struct Download<'d> {
    pub(crate) client: &'d Client,
    pub(crate) cached: &'d CachedRepository,
    /// The repository's name, for messages.
    pub(crate) name: &'d str,
    pub(crate) commit: &'d str,
    pub(crate) pauses: &'d [Duration],
    pub(crate) progress: &'d dyn DownloadProgress,
    /// Bytes of the files before this one.
    pub(crate) before: u64,
}

impl Download<'_> {
    /// Downloads a file from an address into the commit's folder. `listed` is its entry in the listing.
    pub(crate) fn fetch(
        &mut self,
        file: &str,
        listed: Option<&ListedFile>,
        address: &str,
    ) -> Result<(), HubError> {
        let facts = patiently(self.pauses, || match self.client.facts(address, listed)? {
            Ok(facts) => Ok(facts),
            Err((status, headers)) => Err(status_error(address, status, &headers)),
        })?;
        if let Some(size) = listed.and_then(|listed| listed.size).filter(|&size| size != facts.size) {
            let expected = format!("{size} bytes, as the repository lists it");
            return Err(HubError::damaged(self.name, file, &expected, &format!("{} bytes", facts.size)));
        }
        let blob = self.cached.blob(&facts.blob);
        if !is_whole(&blob, facts.size) {
            make_folder(blob.parent().unwrap_or(&blob))?;
            let waits = || self.progress.say(&format!("waiting for another process that downloads {file}"));
            let lock = self.cached.lock(&facts.blob, waits)?;
            // Another process may have downloaded it meanwhile.
            if !is_whole(&blob, facts.size) {
                let part = self.begin_part(&facts, lock.is_some())?;
                self.bring(file, address, &facts, &part)?;
                match fs::rename(&part, &blob) {
                    // If locks do not really work, another process may have removed the part.
                    Err(error) if error.kind() == io::ErrorKind::NotFound && is_whole(&blob, facts.size) => {}
                    renamed => renamed.map_err(disk("rename", &part))?,
                }
            }
        }
        self.before += facts.size;
        self.progress.at(self.before);
        self.cached.link(self.commit, file, &facts.blob)
    }

    /// Creates a new file for this process only, starting with what an interrupted download has left.
    ///
    /// No process ever writes to another one's file: some network file systems give a lock to everybody.
    /// `is_locked`: as far as is known, no other process is downloading it.
    fn begin_part(&self, facts: &FileFacts, is_locked: bool) -> Result<PathBuf, HubError> {
        let blob = self.cached.blob(&facts.blob);
        let folder = blob.parent().unwrap_or(&blob);
        let entries = fs::read_dir(folder).map_err(disk("read", folder))?;
        let is_part = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with(&facts.blob) && name.ends_with(PART))
        };
        let left: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_part).collect();
        let length = |path: &PathBuf| fs::metadata(path).map_or(0, |part| part.len());
        let longest = left.iter().filter(|path| length(path) <= facts.size).max_by_key(|path| length(path));

        let mut builder = tempfile::Builder::new();
        let prefix = format!("{}.", facts.blob);
        builder.prefix(&prefix).suffix(PART).disable_cleanup(true);
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let mut part = builder.tempfile_in(folder).map_err(disk("make a file in", folder))?;
        if let Some(Ok(mut longest)) = longest.map(|path| tamis_file::open(path)) {
            io::copy(&mut longest, part.as_file_mut()).map_err(disk("write", part.path()))?;
        }
        for path in left.iter().filter(|_| is_locked) {
            let _ = fs::remove_file(path);
        }
        Ok(part.path().to_owned())
    }

    /// Completes the part, starting from what it already has, and checks it.
    fn bring(&self, file: &str, address: &str, facts: &FileFacts, part: &Path) -> Result<(), HubError> {
        let found = fs::metadata(part).map_or(0, |part| part.len());
        let damaged = |expected: &str, got: &str| HubError::damaged(self.name, file, expected, got);
        let mut pauses = self.pauses.iter();
        let mut anew = 0;
        loop {
            let before = fs::metadata(part).map_or(0, |part| part.len());
            let failure = match self.go_on(address, facts, part) {
                Ok(sum) => {
                    let expected = facts.blob.to_ascii_lowercase();
                    if sum == expected {
                        return Ok(());
                    }
                    damaged(&expected, &sum)
                }
                Err(Broken::Length(length)) => damaged(&format!("{} bytes", facts.size), &length),
                Err(Broken::Hub(error)) => error,
            };
            if failure.cause == HubCause::Damaged {
                fs::remove_file(part).map_err(disk("remove", part))?;
                // The part that an earlier run or another process left may have been damaged. Retry once,
                // from the beginning.
                if found == 0 || anew > 0 {
                    return Err(failure);
                }
                anew += 1;
                continue;
            }
            if !failure.is_passing() {
                return Err(failure);
            }
            if fs::metadata(part).map_or(0, |part| part.len()) >= before + GROUND {
                pauses = self.pauses.iter();
            }
            let Some(&pause) = pauses.next() else { return Err(failure) };
            wait(pause, &failure);
        }
    }

    /// One attempt, which continues at the end of the part. Returns the checksum of the whole.
    fn go_on(&self, address: &str, facts: &FileFacts, part: &Path) -> Result<String, Broken> {
        let mut digest = Digest::of_name(&facts.blob, facts.size);
        let mut file =
            File::options().create(true).read(true).append(true).open(part).map_err(disk("open", part))?;
        let mut length = read_through(&mut file, |bytes| digest.update(bytes)).map_err(disk("read", part))?;
        if length > facts.size {
            return Err(Broken::Length(format!("{length} in the part that was there")));
        }
        if length < facts.size || facts.size == 0 {
            let response = self.client.bytes(address, length)?;
            let range = response.headers().get("content-range").and_then(|range| range.to_str().ok());
            let goes_on = range.is_some_and(|range| range.starts_with(&format!("bytes {length}-")));
            match response.status() {
                StatusCode::PARTIAL_CONTENT if goes_on => {}
                StatusCode::OK => {
                    // The server sends the whole file again.
                    file.set_len(0).map_err(disk("write", part))?;
                    (length, digest) = (0, Digest::of_name(&facts.blob, facts.size));
                }
                StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
                    return Err(Broken::Length("another part of it".to_owned()));
                }
                status => return Err(status_error(address, status, response.headers()).into()),
            }
            self.progress.at(self.before + length);
            let mut body = response.into_body().into_reader();
            self.client.read_body(address, &mut body, &mut |bytes| {
                length += bytes.len() as u64;
                if length > facts.size {
                    return Err(Broken::Length("more".to_owned()));
                }
                file.write_all(bytes).map_err(disk("write", part))?;
                digest.update(bytes);
                self.progress.at(self.before + length);
                Ok(())
            })?;
            if length < facts.size {
                let reason = format!("the connection ended after {length} of {} bytes", facts.size);
                return Err(HubError::unreachable(crate::request::origin(address), &reason, true).into());
            }
        }
        file.sync_all().map_err(disk("write", part))?;
        Ok(digest.finish())
    }
}

/// Why an attempt failed.
enum Broken {
    /// The received length is wrong.
    Length(String),
    Hub(HubError),
}

impl From<HubError> for Broken {
    fn from(error: HubError) -> Self {
        Self::Hub(error)
    }
}

fn is_whole(blob: &PathBuf, size: u64) -> bool {
    fs::metadata(blob).is_ok_and(|found| found.is_file() && found.len() == size)
}

fn read_through(file: &mut File, mut each: impl FnMut(&[u8])) -> io::Result<u64> {
    let mut bytes = vec![0; 256 << 10];
    let mut length = 0;
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(length),
            count => {
                each(bytes.get(..count).unwrap_or_default());
                length += count as u64;
            }
        }
    }
}

/// Retries after each pause, as long as the error may be temporary.
pub(crate) fn patiently<T>(
    pauses: &[Duration],
    mut attempt: impl FnMut() -> Result<T, HubError>,
) -> Result<T, HubError> {
    for &pause in pauses {
        match attempt() {
            Err(error) if error.is_passing() => wait(pause, &error),
            done => return done,
        }
    }
    attempt()
}

/// Waits before a retry, at least as long as the hub asks for.
fn wait(pause: Duration, after: &HubError) {
    let wish = match after.cause {
        HubCause::Status { after: Some(seconds), .. } => Duration::from_secs(seconds),
        _ => Duration::ZERO,
    };
    std::thread::sleep(pause.max(wish));
}
