//! Progress of a download.

/// Receives the progress of a download.
pub trait DownloadProgress {
    /// A download begins; `bytes` is its size, if known.
    fn begin(&self, name: &str, bytes: Option<u64>);

    /// So many bytes of it are there now.
    fn at(&self, bytes: u64);

    /// It ended, well or not.
    fn end(&self);

    /// Something takes long, and why.
    fn say(&self, text: &str);

    /// A warning for the user: the files in use may not be the intended ones.
    fn warn(&self, text: &str);
}
