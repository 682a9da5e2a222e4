//! Progress of a download.

/// Receives the progress of a download.
pub trait DownloadProgress {
    /// A download begins; `bytes` is its size, if known.
    fn begin(&self, name: &str, bytes: Option<u64>);

    /// This many bytes of it have arrived.
    fn at(&self, bytes: u64);

    /// It ended, successfully or not.
    fn end(&self);

    /// Something takes long; `text` is the reason.
    fn say(&self, text: &str);

    /// A warning for the user: the files in use may not be the intended ones.
    fn warn(&self, text: &str);
}
