//! Beside the kernel, for every crate: reads regular files of limited size, and the texts that a build script
//! packed into the program ([`unpack`]).
//!
//! A path from a user may be a pipe without a writer, an endless device, a folder, or the wrong file of 50
//! GB. The files of tamis are regular ones, and those that are read completely are small. [`open`] refuses
//! anything that is not a regular file; [`read`] and [`read_text`] also refuse large ones. Each does so at
//! once, with an error that names what was found. Files of a run folder are opened in the same way, also for
//! writing ([`open_with`]).

use std::fs::{File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use tamis_core::figure;

/// Most bytes of a configuration.
pub const MAX_CONFIGURATION: u64 = 16 << 20;
/// Most bytes of a chat template.
pub const MAX_TEMPLATE: u64 = 1 << 20;
/// Most bytes of a model's `config.json` and `generation_config.json`.
pub const MAX_MODEL_CONFIG: u64 = 16 << 20;
/// Most bytes of a file of a tokenizer. The largest known ones have about 40 MB.
pub const MAX_TOKENIZER: u64 = 1 << 30;
/// Most bytes of a data file of a built-in task.
pub const MAX_TASK: u64 = 1 << 30;
/// Most bytes of one line of a data file.
pub const MAX_LINE: u64 = 64 << 20;

/// Opens a regular file, or a link to one, for reading.
///
/// # Errors
/// The system's errors, and [`ErrorKind::InvalidInput`] for something else: a folder, a pipe, a device, a
/// socket. The message names it.
pub fn open(path: &Path) -> Result<File> {
    open_with(path, OpenOptions::new().read(true))
}

/// Opens a regular file, or a link to one, with the given options, for example to append. A missing file is
/// created if the options ask for it.
///
/// # Errors
/// As [`open`].
pub fn open_with(path: &Path, options: &OpenOptions) -> Result<File> {
    // Opening a pipe would block until its other end is opened.
    match std::fs::metadata(path) {
        Ok(found) => refuse_others(&found)?,
        // The options decide whether it is created.
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let file = options.open(path)?;
    refuse_others(&file.metadata()?)?;
    Ok(file)
}

/// Reads at most the last `most` bytes of a regular file. Also returns whether there are bytes before them.
///
/// # Errors
/// As [`open`].
pub fn read_end(path: &Path, most: u64) -> Result<(Vec<u8>, bool)> {
    let mut file = open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(most)))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok((bytes, length > most))
}

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
/// As [`open`], and [`ErrorKind::FileTooLarge`] with the limit.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let file = open(path)?;
    let length = file.metadata()?.len();
    if length > limit {
        return Err(too_large(limit, Some(length)));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    // The reported size is not always true: files of the system have 0.
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit { Err(too_large(limit, None)) } else { Ok(bytes) }
}

/// As [`read`], for text in UTF-8.
///
/// # Errors
/// As [`read`], and [`ErrorKind::InvalidData`] with the place of the first byte that is not UTF-8.
pub fn read_text(path: &Path, limit: u64) -> Result<String> {
    String::from_utf8(read(path, limit)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let before = error.as_bytes().get(..at).unwrap_or_default();
        let line = before.split(|&byte| byte == b'\n').count();
        Error::new(ErrorKind::InvalidData, format!("it is not UTF-8 (byte {at}, in line {line})"))
    })
}

/// The texts that a build script packed into the program, with their names: a gzip stream of `NAME\0TEXT\0`,
/// one after another. Nothing of a stream that is damaged.
pub fn unpack(packed: &[u8]) -> Vec<(String, String)> {
    let mut all = String::new();
    if flate2::read::GzDecoder::new(packed).read_to_string(&mut all).is_err() {
        return Vec::new();
    }
    let mut words = all.split_terminator('\0').map(str::to_owned);
    std::iter::from_fn(|| Some((words.next()?, words.next()?))).collect()
}

/// The path nearest in name to one that does not exist: an entry of the same folder, or of a folder with a
/// similar name if a folder on the way is misspelt.
///
/// ```
/// let near = tamis_file::nearest("src/libs.rs".as_ref());
/// assert_eq!(near.as_deref(), Some("src/lib.rs".as_ref()));
/// ```
pub fn nearest(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let parent = path.parent()?;
    let folder = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let Ok(entries) = std::fs::read_dir(folder) else {
        let path = nearest(parent)?.join(name);
        return if path.exists() { Some(path) } else { nearest(&path) };
    };
    // A folder of data may hold a million files.
    let names = entries.flatten().take(10_000).filter_map(|entry| entry.file_name().into_string().ok());
    // The path itself may exist, as a dangling link.
    let names = names.filter(|other| other != name);
    // A configuration is not its own data.
    let is_yaml = |name: &str| [".yaml", ".yml"].iter().any(|ending| name.ends_with(ending));
    let names = names.filter(|other| !is_yaml(name) || is_yaml(other) || !other.contains('.'));
    // Many files of a folder have the same ending. So endings only decide between names that are otherwise
    // equally near.
    let similarity = strsim::normalized_damerau_levenshtein;
    let mut near: Vec<(f64, f64, String)> = names
        .map(|other| (similarity(stem(name), stem(&other)), similarity(name, &other), other))
        .filter(|(of_stems, ..)| *of_stems >= 0.7)
        .collect();
    near.sort_by(|left, right| right.partial_cmp(left).unwrap_or(std::cmp::Ordering::Equal));
    near.into_iter().next().map(|(.., other)| parent.join(other))
}

/// The entry of the same folder whose name is nearest to a path's, among those that `is_one` accepts. These
/// are fewer than all files, so one wrong letter is allowed however short the name is.
pub fn nearest_of(path: &Path, is_one: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let parent = path.parent()?;
    let folder = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let names = std::fs::read_dir(folder).ok()?.flatten().take(10_000);
    let names = names.filter_map(|entry| entry.file_name().into_string().ok()).filter(|other| other != name);
    let distances = names.map(|other| (strsim::osa_distance(name, &other), other));
    let allowed = (name.chars().count() * 3 / 10).max(1);
    let mut near: Vec<(usize, String)> =
        distances.filter(|(distance, _)| *distance <= allowed && *distance < name.chars().count()).collect();
    near.sort();
    near.into_iter().map(|(_, other)| parent.join(other)).find(|path| is_one(path))
}

/// A name without its extension.
fn stem(name: &str) -> &str {
    Path::new(name).file_stem().and_then(|stem| stem.to_str()).unwrap_or(name)
}

/// "did you mean" for a path that does not exist; `None` if it exists, or if nothing is similar.
pub fn suggest(path: &Path) -> Option<String> {
    let near = if path.exists() { None } else { nearest(path) };
    near.map(|near| format!("did you mean `{}`?", near.display()))
}

fn too_large(limit: u64, length: Option<u64>) -> Error {
    let has = length.map_or_else(|| "more".to_owned(), figure::bytes);
    Error::new(
        ErrorKind::FileTooLarge,
        format!("it has {has}, and {} is the most that is read", figure::bytes(limit)),
    )
}

fn refuse_others(metadata: &Metadata) -> Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let what = if metadata.is_dir() { "a folder" } else { special(metadata) };
    let kind = if metadata.is_dir() { ErrorKind::IsADirectory } else { ErrorKind::InvalidInput };
    Err(Error::new(kind, format!("it is {what}, not a regular file")))
}

#[cfg(unix)]
fn special(metadata: &Metadata) -> &'static str {
    use std::os::unix::fs::FileTypeExt as _;
    let kind = metadata.file_type();
    if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

#[cfg(not(unix))]
fn special(_: &Metadata) -> &'static str {
    "a pipe or a device"
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn packed_texts_come_back_or_not_at_all() {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packer.write_all("a.md\0# é\n\0b.md\0\0".as_bytes()).unwrap();
        let mut packed = packer.finish().unwrap();
        let pair = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        assert_eq!(unpack(&packed), [pair("a.md", "# é\n"), pair("b.md", "")]);
        // The sum behind the data.
        let place = packed.len() - 6;
        packed[place] ^= 1;
        assert_eq!(unpack(&packed), []);
    }

    #[test]
    fn a_file_up_to_the_limit_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        let error = read(&path, 4).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        assert_eq!(error.to_string(), "it has 5 B, and 4 B is the most that is read");
    }

    #[test]
    fn what_is_no_regular_file_is_named_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let printed = |path: &Path| read(path, 100).unwrap_err().to_string();
        assert_eq!(printed(folder.path()), "it is a folder, not a regular file");
        #[cfg(unix)]
        {
            assert_eq!(printed(Path::new("/dev/zero")), "it is a device, not a regular file");
            let pipe = folder.path().join("pipe");
            assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
            assert_eq!(printed(&pipe), "it is a pipe, not a regular file");
            // Writing is refused, too: the pipe may never get a reader.
            for options in [OpenOptions::new().append(true).create(true), OpenOptions::new().write(true)] {
                let error = open_with(&pipe, options).unwrap_err().to_string();
                assert_eq!(error, "it is a pipe, not a regular file");
            }
            assert_eq!(read_end(&pipe, 1).unwrap_err().to_string(), "it is a pipe, not a regular file");
            let socket = folder.path().join("socket");
            let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
            assert_eq!(printed(&socket), "it is a socket, not a regular file");
        }
        assert_eq!(read(&folder.path().join("none"), 1).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn files_are_made_if_the_options_say_so_and_read_from_their_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        assert_eq!(
            open_with(&path, OpenOptions::new().append(true)).unwrap_err().kind(),
            ErrorKind::NotFound
        );
        for piece in ["one ", "two ", "three"] {
            let mut file = open_with(&path, OpenOptions::new().append(true).create(true)).unwrap();
            std::io::Write::write_all(&mut file, piece.as_bytes()).unwrap();
        }
        assert_eq!(read_end(&path, 5).unwrap(), (b"three".to_vec(), true));
        assert_eq!(read_end(&path, 13).unwrap(), (b"one two three".to_vec(), false));
    }

    #[test]
    fn a_path_of_nothing_is_near_a_path_of_something() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("configs")).unwrap();
        std::fs::write(folder.path().join("configs/quickstart.yaml"), "").unwrap();
        let meant = |path: &str| {
            let near = nearest(&folder.path().join(path));
            near.map(|near| near.strip_prefix(folder.path()).unwrap().to_str().unwrap().to_owned())
        };
        let there = Some("configs/quickstart.yaml".to_owned());
        assert_eq!(meant("configs/quickstrat.yaml"), there);
        assert_eq!(meant("configs/quickstart.yml"), there);
        assert_eq!(meant("configs/quickstart"), there);
        assert_eq!(meant("config/quickstart.yaml"), there);
        assert_eq!(meant("config/quickstat.yaml"), there);
        assert_eq!(meant("configs/other.yaml"), None);
        assert_eq!(meant("configs/quickstart.yaml"), None, "not itself");
        assert_eq!(meant("configs/quiet.yaml"), None);
        std::fs::write(folder.path().join("train.jsonl"), "").unwrap();
        assert_eq!(meant("train.parquet"), Some("train.jsonl".to_owned()));
        assert_eq!(meant("train.yaml"), None, "data is no configuration");
        assert_eq!(meant("nowhere/other.yaml"), None);
        assert_eq!(suggest(folder.path()), None);
        assert_eq!(nearest(Path::new("")), None);
    }

    #[test]
    fn a_text_that_is_not_utf8_is_refused_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, b"a\nb\xffc").unwrap();
        assert_eq!(read_text(&path, 10).unwrap_err().to_string(), "it is not UTF-8 (byte 3, in line 2)");
    }
}
