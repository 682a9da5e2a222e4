//! Checksums of a checkpoint's files: a bit that flips in the weights or moments often leaves finite numbers,
//! which nothing else would notice.
//!
//! `checksums.json` is the last file of a checkpoint to be written:
//! `{"crc32": {"model.safetensors": "9ae0daaf", ...}}`, a CRC-32 (IEEE 802.3, as in zip) in hexadecimal for
//! each file, named by its path in the folder with `/` between parts. A folder without one, of another
//! program, is read as it is.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use tamis_core::fault;
use tamis_core::fault::Fault;

use super::layout::{CRITIC, MASTER, OPTIMIZER, STATE};
use tamis_run::directory::{checkpoint_before, step_of_checkpoint as step_of};
use tamis_run::durable::{Disk, DiskError, DiskOperation};

/// Name of the file in a checkpoint's folder.
pub const CHECKSUMS: &str = "checksums.json";

/// The files of a folder that its checksums must cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coverage {
    /// All files, as a resume needs them.
    Whole,
    /// Those of the folder itself that exist: weights for use, which may have been copied without the rest.
    ForUse,
}

/// A checkpoint has changed since it was written.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ChecksumError(#[from] Fault);

impl ChecksumError {
    /// The fix, if one is known.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint()
    }
}

/// A file of a checkpoint is not as it was written. The hint names the checkpoint before it, if there is one.
fn damaged(checkpoint: &Path, what: String, is_missing: bool) -> Fault {
    let otherwise = match checkpoint_before(checkpoint) {
        Some(before) => format!(
            ", or move {} elsewhere to resume from the checkpoint before it, {}",
            checkpoint.display(),
            before.display()
        ),
        None if step_of(checkpoint).is_some() => {
            ", or begin a new run: there is no checkpoint before it".to_owned()
        }
        None => String::new(),
    };
    let meant = if is_missing {
        String::new()
    } else {
        format!(". If the change was intended, remove {}", checkpoint.join(CHECKSUMS).display())
    };
    Fault::new(what).with_hint(format!("restore a copy of the file{otherwise}{meant}"))
}

fn unreadable(error: DiskError) -> Fault {
    let fault = fault!("failed to {error}");
    let hint = error.hint().map(str::to_owned);
    Fault::with_source(
        match hint {
            Some(hint) => fault.with_hint(hint),
            None => fault,
        },
        error,
    )
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    crc32: BTreeMap<String, Hexadecimal>,
}

/// A checksum as eight hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hexadecimal(pub u32);

impl From<Hexadecimal> for String {
    fn from(value: Hexadecimal) -> Self {
        format!("{:08x}", value.0)
    }
}

impl TryFrom<String> for Hexadecimal {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        u32::from_str_radix(&text, 16).map(Self)
    }
}

/// A file that was written and flushed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedFile {
    /// Path in the folder, parts divided by `/`.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// CRC-32 of its bytes.
    pub crc32: Hexadecimal,
}

/// A folder that is being written: every file through it, the checksums of all at the end.
pub(crate) struct SummedFolder<'a> {
    disk: &'a Disk,
    root: &'a Path,
    files: Vec<SavedFile>,
}

impl<'a> SummedFolder<'a> {
    pub(crate) fn new(disk: &'a Disk, root: &'a Path) -> Self {
        Self::with(disk, root, Vec::new())
    }

    /// With files that it already contains.
    pub(crate) fn with(disk: &'a Disk, root: &'a Path, files: Vec<SavedFile>) -> Self {
        Self { disk, root, files }
    }

    /// The files written so far, for [`Self::with`]; no checksums are written.
    pub(crate) fn into_files(self) -> Vec<SavedFile> {
        self.files
    }

    pub(crate) fn folder(&self, name: &str) -> Result<(), DiskError> {
        self.disk.create_folder(&self.root.join(name))
    }

    /// Writes a file, named by its path in the folder.
    pub(crate) fn file(
        &mut self,
        name: &str,
        fill: impl FnOnce(&mut (dyn Write + Send)) -> io::Result<()>,
    ) -> Result<(), DiskError> {
        let (mut hasher, mut bytes) = (crc32fast::Hasher::new(), 0);
        self.disk.write_file_with(&self.root.join(name), |out| {
            fill(&mut Summed { out, hasher: &mut hasher, bytes: &mut bytes })
        })?;
        self.files.push(SavedFile { name: name.to_owned(), bytes, crc32: Hexadecimal(hasher.finalize()) });
        Ok(())
    }

    /// Writes the checksums, last.
    pub(super) fn finish(self) -> Result<(), DiskError> {
        let path = self.root.join(CHECKSUMS);
        let crc32 = self.files.into_iter().map(|file| (file.name, file.crc32)).collect();
        let json = serde_json::to_vec_pretty(&Manifest { crc32 })
            .map_err(|error| DiskError::new(DiskOperation::Write, &path, error.into()))?;
        self.disk.write_file(&path, &json)
    }
}

/// Computes the checksum of the bytes that pass through to `out`.
struct Summed<'a> {
    out: &'a mut (dyn Write + Send),
    hasher: &'a mut crc32fast::Hasher,
    bytes: &'a mut u64,
}

impl Write for Summed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        *self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The folder with the checksums of a folder, and the prefix of its names there: the folder itself, or
/// the checkpoint that it is a part of.
fn find_checksums(folder: &Path) -> Option<(&Path, String)> {
    if folder.join(CHECKSUMS).exists() {
        return Some((folder, String::new()));
    }
    let part = folder.file_name()?.to_str().filter(|name| [CRITIC, MASTER].contains(name))?;
    let checkpoint = folder.parent().filter(|checkpoint| checkpoint.join(CHECKSUMS).exists())?;
    Some((checkpoint, format!("{part}/")))
}

/// Checks the files of a folder against its checksums, each read once. For a critic in a checkpoint
/// these are the checkpoint's checksums. A folder without checksums passes.
///
/// # Errors
/// The first file by name that has changed, or (if all files count) is gone.
pub fn verify(folder: &Path, extent: Coverage) -> Result<(), ChecksumError> {
    let Some((folder, prefix)) = find_checksums(folder) else { return Ok(()) };
    let bytes = Disk::new().read_file(&folder.join(CHECKSUMS)).map_err(unreadable)?;
    let place = |file: &str| format!("`{file}` of the checkpoint {}", folder.display());
    let manifest: Manifest = serde_json::from_slice(&bytes).map_err(|source| {
        damaged(folder, format!("{} is damaged", place(CHECKSUMS)), false).with_source(source)
    })?;
    for (name, &Hexadecimal(expected)) in &manifest.crc32 {
        let Some(own) = name.strip_prefix(&prefix) else { continue };
        let path = folder.join(name);
        let is_wanted = match extent {
            Coverage::Whole => true,
            Coverage::ForUse => !own.contains('/') && ![OPTIMIZER, STATE].contains(&own) && path.exists(),
        };
        if !is_wanted {
            continue;
        }
        if !path.exists() {
            return Err(damaged(folder, format!("{} is missing", place(name)), true).into());
        }
        let found =
            of_file(&path).map_err(|cause| unreadable(DiskError::new(DiskOperation::Read, &path, cause)))?;
        if found != expected {
            let what = format!(
                "{} is damaged: its CRC-32 is {found:08x}, and was {expected:08x} when it was saved",
                place(name)
            );
            return Err(damaged(folder, what, false).into());
        }
    }
    Ok(())
}

/// Whether a checkpoint has all of these files, each with this CRC-32; false if its checksums do not
/// list one.
pub fn covers(checkpoint: &Path, files: &BTreeMap<String, Hexadecimal>) -> bool {
    let manifest = tamis_file::read(&checkpoint.join(CHECKSUMS), u64::MAX).ok();
    let manifest = manifest.and_then(|bytes| serde_json::from_slice::<Manifest>(&bytes).ok());
    manifest.is_some_and(|Manifest { crc32 }| {
        !files.is_empty() && files.iter().all(|(name, sum)| crc32.get(name) == Some(sum))
    })
}

/// CRC-32 of a model: names and contents of its `config.json` and of the files of its weights.
///
/// # Errors
/// The folder or a file of it cannot be read.
pub fn sum_of_model(folder: &Path) -> Result<u32, DiskError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |cause| DiskError::new(DiskOperation::Read, &path, cause)
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed(folder))? {
        let name = entry.map_err(failed(folder))?.file_name().to_string_lossy().into_owned();
        let is_weights = Path::new(&name).extension().is_some_and(|kind| kind == "safetensors");
        if name == "config.json" || is_weights {
            names.push(name);
        }
    }
    names.sort_unstable();
    let mut sum = crc32fast::Hasher::new();
    for name in names {
        let path = folder.join(&name);
        let content = of_file(&path).map_err(failed(&path))?;
        sum.update(name.as_bytes());
        sum.update(&content.to_le_bytes());
    }
    Ok(sum.finalize())
}

fn of_file(path: &Path) -> io::Result<u32> {
    let mut file = tamis_file::open(path)?;
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hasher.finalize()),
            Ok(read) => hasher.update(&buffer[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_sum_of_a_model_changes_with_its_weights_alone() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &str| {
            std::fs::write(folder.path().join(name), content).unwrap();
            sum_of_model(folder.path()).unwrap()
        };
        let shape = write("config.json", "{}");
        let first = write("model-00001-of-00002.safetensors", "one");
        let both = write("model-00002-of-00002.safetensors", "two");
        assert_eq!(write("tokenizer.json", "{}"), both, "no part of the weights");
        let other = write("model-00001-of-00002.safetensors", "eno");
        assert!(shape != first && first != both && both != other);
        assert_eq!(write("model-00001-of-00002.safetensors", "one"), both);
        assert_ne!(write("config.json", "{\"rope_theta\": 1}"), both);
        assert!(sum_of_model(&folder.path().join("gone")).is_err());
    }

    fn written(root: &Path) {
        let disk = Disk::without_flush();
        let mut folder = SummedFolder::new(&disk, root);
        folder.folder("critic").unwrap();
        folder
            .file("model.safetensors", |out| out.write_all(b"12345").and_then(|()| out.write_all(b"6789")))
            .unwrap();
        folder.file("critic/model.safetensors", |out| out.write_all(b"987654321")).unwrap();
        folder.file("critic/optimizer.safetensors", |out| out.write_all(&[7; 40])).unwrap();
        folder.file("state.json", |out| out.write_all(b"{}")).unwrap();
        folder.finish().unwrap();
    }

    #[test]
    fn the_file_is_as_documented() {
        let folder = tempfile::tempdir().unwrap();
        written(folder.path());
        // The published check value of CRC-32.
        insta::assert_snapshot!(std::fs::read_to_string(folder.path().join(CHECKSUMS)).unwrap(), @r#"
        {
          "crc32": {
            "critic/model.safetensors": "015f0201",
            "critic/optimizer.safetensors": "990c14e4",
            "model.safetensors": "cbf43926",
            "state.json": "a3a6bf43"
          }
        }
        "#);
        verify(folder.path(), Coverage::Whole).unwrap();
        // The user removed them.
        std::fs::write(folder.path().join("model.safetensors"), b"other").unwrap();
        std::fs::remove_file(folder.path().join(CHECKSUMS)).unwrap();
        verify(folder.path(), Coverage::Whole).unwrap();
    }

    #[test]
    fn what_is_wrong_is_named_with_the_checkpoint_before() {
        let runs = tempfile::tempdir().unwrap();
        let of_step = |step: u64| {
            let folder = runs.path().join(format!("checkpoints/step_{step}"));
            std::fs::create_dir_all(&folder).unwrap();
            written(&folder);
            folder
        };
        let (first, _, last) = (of_step(2), of_step(20), of_step(100));
        let explain = |folder: &Path, extent| {
            let error = verify(folder, extent).unwrap_err();
            let text = format!("{error}\n{}", error.hint().unwrap());
            text.replace(&runs.path().display().to_string(), "RUN")
        };
        std::fs::write(last.join("model.safetensors"), b"123456788").unwrap();
        insta::assert_snapshot!(explain(&last, Coverage::Whole), @r#"
        `model.safetensors` of the checkpoint RUN/checkpoints/step_100 is damaged: its CRC-32 is bcf309b0, and was cbf43926 when it was saved
        restore a copy of the file, or move RUN/checkpoints/step_100 elsewhere to resume from the checkpoint before it, RUN/checkpoints/step_20. If the change was intended, remove RUN/checkpoints/step_100/checksums.json
        "#);
        insta::assert_snapshot!(explain(&last, Coverage::ForUse).lines().next().unwrap(), @"`model.safetensors` of the checkpoint RUN/checkpoints/step_100 is damaged: its CRC-32 is bcf309b0, and was cbf43926 when it was saved");
        std::fs::remove_file(first.join("critic/optimizer.safetensors")).unwrap();
        insta::assert_snapshot!(explain(&first, Coverage::Whole), @r#"
        `critic/optimizer.safetensors` of the checkpoint RUN/checkpoints/step_2 is missing
        restore a copy of the file, or begin a new run: there is no checkpoint before it
        "#);
        verify(&first, Coverage::ForUse).unwrap();
        // A critic's files are in the checksums of its checkpoint; using it does not need its moments.
        verify(&last.join("critic"), Coverage::ForUse).unwrap();
        std::fs::write(last.join("critic/model.safetensors"), b"987654320").unwrap();
        insta::assert_snapshot!(explain(&last.join("critic"), Coverage::ForUse).lines().next().unwrap(), @"`critic/model.safetensors` of the checkpoint RUN/checkpoints/step_100 is damaged: its CRC-32 is 76583297, and was 015f0201 when it was saved");
        std::fs::write(last.join("critic/model.safetensors"), b"987654321").unwrap();
        std::fs::write(last.join(CHECKSUMS), b"{\"crc32\": {\"a\": \"12x\"}}").unwrap();
        insta::assert_snapshot!(explain(&last, Coverage::Whole), @r#"
        `checksums.json` of the checkpoint RUN/checkpoints/step_100 is damaged
        restore a copy of the file, or move RUN/checkpoints/step_100 elsewhere to resume from the checkpoint before it, RUN/checkpoints/step_20. If the change was intended, remove RUN/checkpoints/step_100/checksums.json
        "#);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Any flipped bit of any file is found.
        #[test]
        fn every_flipped_bit_is_found(file in 0..4_usize, at: prop::sample::Index, bit in 0..8_u8) {
            let folder = tempfile::tempdir().unwrap();
            written(folder.path());
            let names = ["model.safetensors", "critic/optimizer.safetensors", "state.json", CHECKSUMS];
            let path = folder.path().join(names[file]);
            let mut bytes = std::fs::read(&path).unwrap();
            let at = at.index(bytes.len());
            // White space between the parts of JSON has no meaning, nor has the case of a digit.
            prop_assume!(file != 3 || bytes[at].is_ascii_graphic() && bit != 5);
            bytes[at] ^= 1_u8 << bit;
            std::fs::write(&path, bytes).unwrap();
            prop_assert!(verify(folder.path(), Coverage::Whole).is_err());
        }
    }
}
