//! Turns names into files: [`Hub::model`] and [`Hub::split`].
//!
//! A name leads to a commit, the commit to a listing of its files, and the listing to files in the cache.
//! Files that the cache lacks are downloaded and checked. Without a network the cache is enough if it has
//! them.

use std::path::PathBuf;

use tamis_config::locate::{Extent, FoundModel, FoundSplit, WantedSplit};
use ureq::http::{HeaderMap, StatusCode};

use crate::cache::CachedRepository;
use crate::download::{Download, patiently};
use crate::error::{HubCause, HubError};
use crate::listing::Listing;
use crate::model_files::{CONFIGURATION, SINGLE, SINGLE_INDEX, shards, small_files};
use crate::progress::DownloadProgress;
use crate::repository::{Repository, RepositoryKind, is_commit};
use crate::request::{Client, plain, status_error};
use crate::settings::HubSettings;
use crate::splits::{SplitFiles, find_split, lacks_shards};

/// The branch of a name without a revision.
const MAIN: &str = "main";

/// The branch with the hub's own conversion of a data set to Parquet.
const CONVERTED: &str = "refs/convert/parquet";

/// Most bytes of the index of a model's weights.
const MAX_INDEX: u64 = 256 << 20;

/// A hub and its cache.
#[derive(Debug)]
pub struct Hub {
    settings: HubSettings,
    client: Client,
}

/// A listing, and whether it is complete. Files that another program put into the cache may not be all.
struct Known {
    listing: Listing,
    is_all: bool,
}

impl Hub {
    /// With these settings. Nothing is requested or read before a name is looked up.
    pub fn new(settings: HubSettings) -> Self {
        Self { client: Client::new(&settings), settings }
    }

    /// The hub's address.
    pub fn endpoint(&self) -> &str {
        &self.settings.endpoint
    }

    /// Finds a model. `revision` is one of its branches, tags or commits (`None`: the main branch).
    ///
    /// A complete commit in the cache needs no network. For a branch, the hub is asked for its commit. If the
    /// hub does not answer, or the network is disabled, the last known commit is used.
    ///
    /// # Errors
    /// See [`HubError`].
    pub fn model(
        &self,
        id: &str,
        revision: Option<&str>,
        extent: Extent,
        progress: &dyn DownloadProgress,
    ) -> Result<FoundModel, HubError> {
        let repository = Repository { kind: RepositoryKind::Model, id: id.to_owned() };
        let cached = CachedRepository::new(&self.settings.cache, &repository);
        let revision = revision.unwrap_or(MAIN);
        let in_cache = || {
            let commit = cached.commit_of(revision)?;
            let Known { listing, .. } = known(&cached, &commit)?;
            let missing = match model_files(id, &cached, &listing) {
                Ok(files) => cached.missing(&commit, Some(&listing), &files),
                // Without the index, the names of the weight files are not known.
                Err(_) => vec![SINGLE.to_owned()],
            };
            Some((FoundModel { folder: Some(cached.snapshot(&commit)), commit }, missing))
        };
        self.find(&repository, revision, progress, in_cache, |listing| {
            let commit = listing.commit.clone();
            let folder = cached.snapshot(&commit);
            let small = small_files(id, listing)?;
            if extent == Extent::Look {
                let is_whole = model_files(id, &cached, listing)
                    .is_ok_and(|files| cached.missing(&commit, Some(listing), &files).is_empty());
                return Ok(FoundModel { commit, folder: Some(folder).filter(|_| is_whole) });
            }
            cached.remember_listing(listing)?;
            // Small files come before the weights: they show whether the model can be used at all.
            self.fetch(&repository, &cached, listing, &small, progress)?;
            let files = model_files(id, &cached, listing)?;
            self.fetch(&repository, &cached, listing, &files, progress)?;
            cached.remember_commit(revision, &commit)?;
            Ok(FoundModel { commit, folder: Some(folder) })
        })
    }

    /// Finds the folder with a model's `config.json`. If the cache lacks that file, it is downloaded, and
    /// nothing else is. This gives the facts about a model before its weights are there.
    ///
    /// # Errors
    /// See [`HubError`].
    pub fn model_configuration(
        &self,
        id: &str,
        revision: Option<&str>,
        progress: &dyn DownloadProgress,
    ) -> Result<PathBuf, HubError> {
        let repository = Repository { kind: RepositoryKind::Model, id: id.to_owned() };
        let cached = CachedRepository::new(&self.settings.cache, &repository);
        let revision = revision.unwrap_or(MAIN);
        let wanted = || vec![CONFIGURATION.to_owned()];
        let in_cache = || {
            let commit = cached.commit_of(revision)?;
            let missing = cached.missing(&commit, cached.listing(&commit).as_ref(), &wanted());
            Some((cached.snapshot(&commit), missing))
        };
        self.find(&repository, revision, progress, in_cache, |listing| {
            small_files(id, listing)?;
            cached.remember_listing(listing)?;
            self.fetch(&repository, &cached, listing, &wanted(), progress)?;
            Ok(cached.snapshot(&listing.commit))
        })
    }

    /// Finds a split of a data set, as [`Hub::model`] finds a model. If the main branch has no readable
    /// files, the hub's own conversion of them is used.
    ///
    /// # Errors
    /// See [`HubError`].
    pub fn split(
        &self,
        id: &str,
        revision: Option<&str>,
        wanted: WantedSplit<'_>,
        extent: Extent,
        progress: &dyn DownloadProgress,
    ) -> Result<FoundSplit, HubError> {
        let found = self.split_at(id, revision.unwrap_or(MAIN), wanted, extent, progress);
        match found {
            Err(error)
                if revision.is_none()
                    && matches!(error.cause, HubCause::NoRows | HubCause::NoSplit | HubCause::Offline) =>
            {
                match self.split_at(id, CONVERTED, wanted, extent, progress) {
                    Ok(found) => Ok(found),
                    // There is a conversion, but it lacks the requested configuration or split.
                    Err(converted)
                        if error.cause == HubCause::NoRows
                            && matches!(
                                converted.cause,
                                HubCause::WhichConfiguration | HubCause::NoSplit
                            ) =>
                    {
                        Err(converted)
                    }
                    Err(_) => Err(error),
                }
            }
            found => found,
        }
    }

    fn split_at(
        &self,
        id: &str,
        revision: &str,
        wanted: WantedSplit<'_>,
        extent: Extent,
        progress: &dyn DownloadProgress,
    ) -> Result<FoundSplit, HubError> {
        let repository = Repository { kind: RepositoryKind::Dataset, id: id.to_owned() };
        let cached = CachedRepository::new(&self.settings.cache, &repository);
        let found = |split: &SplitFiles, commit: &str| {
            let files = split.files.iter().map(|file| cached.snapshot(commit).join(file)).collect();
            FoundSplit {
                commit: commit.to_owned(),
                configuration: split.configuration.clone(),
                split: split.split.clone(),
                files: Some(files),
            }
        };
        let in_cache = || {
            let commit = cached.commit_of(revision)?;
            let Known { listing, is_all } = known(&cached, &commit)?;
            let split = find_split(id, &listing, wanted).ok()?;
            let mut missing = cached.missing(&commit, Some(&listing), &split.files);
            if !is_all && lacks_shards(&split.files) {
                missing.push(format!("some of {}", split.split));
            }
            Some((found(&split, &commit), missing))
        };
        self.find(&repository, revision, progress, in_cache, |listing| {
            let split = find_split(id, listing, wanted)?;
            let found = found(&split, &listing.commit);
            if extent == Extent::Look {
                let is_whole = cached.missing(&listing.commit, Some(listing), &split.files).is_empty();
                return Ok(FoundSplit { files: found.files.filter(|_| is_whole), ..found });
            }
            cached.remember_listing(listing)?;
            self.fetch(&repository, &cached, listing, &split.files, progress)?;
            cached.remember_commit(revision, &listing.commit)?;
            Ok(found)
        })
    }

    /// Looks first in the cache, if the revision is a commit that is complete there; then on the hub; then
    /// again in the cache. `in_cache` returns what the cache has and which files it lacks, `online` what the
    /// hub has.
    fn find<T>(
        &self,
        repository: &Repository,
        revision: &str,
        progress: &dyn DownloadProgress,
        in_cache: impl Fn() -> Option<(T, Vec<String>)>,
        online: impl FnOnce(&Listing) -> Result<T, HubError>,
    ) -> Result<T, HubError> {
        let whole = || in_cache().filter(|(_, missing)| missing.is_empty()).map(|(found, _)| found);
        if is_commit(revision)
            && let Some(found) = whole()
        {
            return Ok(found);
        }
        if let Some(variable) = self.settings.offline {
            return match in_cache() {
                Some((found, missing)) if missing.is_empty() => Ok(found),
                lacking => {
                    let at = if revision == MAIN { String::new() } else { format!("@{revision}") };
                    let (name, cache) = (&repository.id, self.settings.cache.display());
                    let missing = lacking.map(|(_, missing)| missing).unwrap_or_default();
                    let lacks = match missing.as_slice() {
                        [] => format!("`{name}{at}` is not in the cache {cache}"),
                        [file, others @ ..] => {
                            let more = match others.len() {
                                0 => "is".to_owned(),
                                more => format!("and {more} more are"),
                            };
                            format!("`{name}{at}` is incomplete in the cache {cache} ({file} {more} missing)")
                        }
                    };
                    Err(HubError::new(
                        HubCause::Offline,
                        format!("{lacks}, and {variable} forbids downloads"),
                        format!(
                            "run `{}` with network access, or unset {variable}",
                            repository.command(revision)
                        ),
                    ))
                }
            };
        }
        match self.listing(repository, revision) {
            Ok(listing) => online(&listing),
            Err(error) => match whole() {
                Some(found) => {
                    progress.warn(&format!("{error}; what the cache has of `{repository}` is used"));
                    Ok(found)
                }
                None => Err(error),
            },
        }
    }

    /// Requests the listing of a repository at a revision.
    fn listing(&self, repository: &Repository, revision: &str) -> Result<Listing, HubError> {
        let address = repository.listing(&self.settings.endpoint, revision);
        patiently(&self.settings.pauses, || {
            let (status, headers, body) = self.client.read(&address)?;
            if !status.is_success() {
                return Err(self.refusal(repository, revision, &address, status, &headers));
            }
            Listing::of_answer(&body).map_err(|what| HubError::answer(&plain(&address), &what))
        })
    }

    /// Downloads the files of a commit that the cache lacks.
    fn fetch(
        &self,
        repository: &Repository,
        cached: &CachedRepository,
        listing: &Listing,
        files: &[String],
        progress: &dyn DownloadProgress,
    ) -> Result<(), HubError> {
        let missing = cached.missing(&listing.commit, Some(listing), files);
        if missing.is_empty() {
            return Ok(());
        }
        progress.begin(&repository.id, listing.bytes_of(&missing));
        let mut download = Download {
            client: &self.client,
            cached,
            name: &repository.id,
            commit: &listing.commit,
            pauses: &self.settings.pauses,
            progress,
            before: 0,
        };
        let brought = missing.iter().try_for_each(|file| {
            let address = repository.file(&self.settings.endpoint, &listing.commit, file);
            download.fetch(file, listing.file(file), &address)
        });
        progress.end();
        brought.map_err(|error| match error.cause {
            HubCause::Status { status: status @ (401 | 403), .. } => self.forbidden(repository, status, None),
            _ => error,
        })
    }

    /// The error for a failed request about a repository.
    fn refusal(
        &self,
        repository: &Repository,
        revision: &str,
        address: &str,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> HubError {
        let code = headers.get("x-error-code").and_then(|code| code.to_str().ok());
        match (status.as_u16(), code) {
            (_, Some("RevisionNotFound")) => HubError::new(
                HubCause::Refused,
                format!("`{}` has no revision `{revision}`", repository.id),
                "a revision is a branch, a tag or a full commit hash",
            ),
            (401 | 403, code) => self.forbidden(repository, status.as_u16(), code),
            (404, _) => self.no_repository(repository),
            _ => status_error(address, status, headers),
        }
    }

    /// Statuses 401 and 403: gated, private, or nonexistent. To anonymous users the hub does not reveal
    /// which.
    fn forbidden(&self, repository: &Repository, status: u16, code: Option<&str>) -> HubError {
        let (endpoint, has_token) = (&self.settings.endpoint, self.client.has_token());
        match code {
            Some("RepoNotFound") => self.no_repository(repository),
            Some("GatedRepo") => self.gated(repository),
            // Without a reason from the hub: if the repository is visible but a file is not, it is gated.
            None if status == 403 || !has_token => self.gated(repository),
            _ if !has_token => self.no_repository(repository),
            _ => HubError::new(
                HubCause::Refused,
                format!("the hub {endpoint} refuses the token (status {status})"),
                format!(
                    "set HF_TOKEN to a token of {endpoint}/settings/tokens that can read it, or unset it"
                ),
            ),
        }
    }

    fn gated(&self, repository: &Repository) -> HubError {
        let with = if self.client.has_token() {
            " with the account of the token"
        } else {
            ", and set HF_TOKEN to your token"
        };
        HubError::new(
            HubCause::Refused,
            format!("`{}` is gated: access requires accepting its terms", repository.id),
            format!("accept the terms at {}{with}", repository.page(&self.settings.endpoint)),
        )
    }

    fn no_repository(&self, repository: &Repository) -> HubError {
        let (kind, name, endpoint) = (repository.kind.name(), &repository.id, &self.settings.endpoint);
        let (or, token) = if self.client.has_token() {
            (", or this token has no access to it", "The account of the token needs access to it")
        } else {
            ("", "A private one needs HF_TOKEN in the environment")
        };
        HubError::new(
            HubCause::NoRepository,
            format!("there is no {kind} `{name}` on {endpoint}{or}"),
            format!("is it spelt `owner/name`, as on the hub? {token}"),
        )
    }
}

fn known(cached: &CachedRepository, commit: &str) -> Option<Known> {
    match cached.listing(commit) {
        Some(listing) => Some(Known { listing, is_all: true }),
        None => cached.found_files(commit).map(|listing| Known { listing, is_all: false }),
    }
}

/// The files of a model that a run reads, including weights. The index of the weights must be there.
fn model_files(id: &str, cached: &CachedRepository, listing: &Listing) -> Result<Vec<String>, HubError> {
    let mut files = small_files(id, listing)?;
    if !files.iter().any(|file| file == SINGLE_INDEX) {
        files.push(SINGLE.to_owned());
        return Ok(files);
    }
    let path = cached.snapshot(&listing.commit).join(SINGLE_INDEX);
    let index = tamis_file::read(&path, MAX_INDEX).map_err(crate::cache::disk("read", &path))?;
    files.extend(shards(&index).map_err(|what| HubError::answer(&path.display().to_string(), &what))?);
    Ok(files)
}
