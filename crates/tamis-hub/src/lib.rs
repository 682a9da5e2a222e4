//! A satellite: models and data sets by their names on a hub, found in the local cache or downloaded into it.
//!
//! [`NamesOnHub`] is the kernel's [`Locate`](tamis_config::locate::Locate).
//!
//! ```text
//! name -> Hub -> listing of the revision (a request, or the cache) -> the files that are needed
//!      -> each: in the cache? else HEAD, GET, check, rename -> a folder of links, as huggingface_hub's
//! ```
//!
//! The cache is that of Python's `huggingface_hub` and is shared with it: `blobs/` by content,
//! `snapshots/COMMIT/` with links to them, `refs/` with the commit of each branch. A blob only gets its name
//! when it is complete and its checksum is right. So no crash leaves anything that looks like a complete
//! file.
//!
//! Nothing here is asynchronous, and every call may be abandoned at any moment.

mod cache;
mod digest;
mod download;
mod error;
mod hub;
mod listing;
mod model_files;
mod names;
mod progress;
mod repository;
mod request;
mod settings;
mod splits;
mod token;

pub use error::{HubCause, HubError};
pub use hub::Hub;
pub use names::NamesOnHub;
pub use progress::DownloadProgress;
pub use repository::{Repository, RepositoryKind, is_commit};
pub use settings::HubSettings;
pub use token::HubToken;
