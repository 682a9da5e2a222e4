//! The checksums that name blobs.

use std::fmt::Write as _;

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

/// A checksum over the bytes of a file as they arrive.
///
/// The hub names a large file by its SHA-256. It names a small one as Git does, by the SHA-1 of `blob
/// LENGTH\0` and the bytes.
pub(crate) struct Digest(Context);

/// Whether a name is the checksum of a file's content.
pub(crate) fn is_checksum(name: &str) -> bool {
    matches!(name.len(), 40 | 64) && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl Digest {
    /// The checksum that matches this form of name, for a file of this many bytes.
    pub(crate) fn of_name(name: &str, bytes: u64) -> Self {
        if name.len() == 64 {
            return Self(Context::new(&SHA256));
        }
        let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        context.update(format!("blob {bytes}\0").as_bytes());
        Self(context)
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// In hexadecimal.
    pub(crate) fn finish(self) -> String {
        self.0.finish().as_ref().iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_git_and_of_sha256sum() {
        let of = |form: &str, bytes: &[u8]| {
            let mut digest = Digest::of_name(form, bytes.len() as u64);
            digest.update(bytes);
            digest.finish()
        };
        // printf 'hello\n' | git hash-object --stdin; printf 'hello\n' | sha256sum
        assert_eq!(of(&"0".repeat(40), b"hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
        assert_eq!(
            of(&"0".repeat(64), b"hello\n"),
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
        );
        assert!(is_checksum(&"0a".repeat(20)) && is_checksum(&"0A".repeat(32)));
        assert!(!is_checksum("abc") && !is_checksum(&"0g".repeat(20)) && !is_checksum(""));
    }
}
