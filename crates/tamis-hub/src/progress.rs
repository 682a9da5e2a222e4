//! What a download tells while it goes on.

/// Hears of a download.
pub trait DownloadProgress {
    /// A download begins, of so many bytes where that is known.
    fn begin(&self, name: &str, bytes: Option<u64>);

    /// So many bytes of it are there now.
    fn at(&self, bytes: u64);

    /// It ended, well or not.
    fn end(&self);

    /// Something takes long, and why.
    fn say(&self, text: &str);

    /// What a person should know: what is used may not be what was meant.
    fn warn(&self, text: &str);
}
