//! Images of prompts. They are files named by path, of which only the size is read. A row names its images in
//! a column `images` or `image` (see [`IMAGE_COLUMNS`]): one, or a list of them. Each is a path, an object
//! with `path` (or `image`), or an object with `bytes`, as in Parquet files of data sets for verl and of the
//! hub. Bytes are written into a folder, each image once, with its content as the name. So models and servers
//! get paths, and nothing else in a run holds pixels.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tamis_core::figure;

use crate::data_record::kind;
use crate::whole_file::WholeFile;
use tamis_core::caught;
use tamis_core::fault;
use tamis_core::fault::Fault;

/// Columns that may hold images if none is configured, in this order.
pub const IMAGE_COLUMNS: [&str; 2] = ["images", "image"];

/// Marks the place of an image in the text of a message, as in verl and EasyR1.
pub const PLACEHOLDER: &str = "<image>";

/// Most bytes of an image's file.
const MAX_BYTES: u64 = 256 << 20;

/// Largest ratio of an image's longer side to its shorter one. Qwen's processors refuse more.
const MAX_ASPECT: u32 = 200;

/// An image of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptImage {
    /// Absolute path of the file.
    pub path: String,
    /// Pixels from left to right, as the file stores them.
    pub width: u32,
    /// Pixels from top to bottom, as the file stores them.
    pub height: u32,
}

impl PromptImage {
    /// Name of the file without its folders.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

/// Folders for images.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImagePlaces {
    /// Folder that relative paths start from; `None`: that of the data's file.
    pub folder: Option<PathBuf>,
    /// Folder that bytes are written into. `None`, for checks: nothing is written, and paths are the ones
    /// below the working folder that a run would use.
    pub store: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct ImageColumn<'a> {
    /// The values; bytes that are not text are base64.
    pub(crate) value: &'a Value,
    /// The same with all bytes as base64, if some of them are text.
    pub(crate) encoded: Option<&'a Value>,
    /// Whether bare texts, outside an object, are bytes.
    pub(crate) is_binary: bool,
}

impl ImagePlaces {
    /// The images of a row of the file `data`, and whether some came as bytes. A null image counts as none.
    pub(crate) fn images(
        &self,
        column: ImageColumn<'_>,
        data: &Path,
    ) -> Result<(Vec<PromptImage>, bool), (usize, Fault)> {
        let encoded = column.encoded.unwrap_or(column.value);
        let pairs: Vec<(&Value, &Value)> = match (column.value, encoded) {
            (Value::Array(values), Value::Array(encoded)) => values.iter().zip(encoded).collect(),
            pair => vec![pair],
        };
        let (mut images, mut had_bytes) = (Vec::new(), false);
        for (place, (value, encoded)) in pairs.into_iter().enumerate() {
            if value.is_null() {
                continue;
            }
            let (image, was_bytes) =
                self.image(value, encoded, column.is_binary, data).map_err(|fault| (place, fault))?;
            images.push(image);
            had_bytes |= was_bytes;
        }
        Ok((images, had_bytes))
    }

    fn image(
        &self,
        value: &Value,
        encoded: &Value,
        is_binary: bool,
        data: &Path,
    ) -> Result<(PromptImage, bool), Fault> {
        match value {
            Value::String(_) if is_binary => {
                let text = encoded.as_str().unwrap_or_default();
                Ok((
                    self.store(
                        &BASE64.decode(text).map_err(|_| fault!("`bytes` is text that is not base64"))?,
                    )?,
                    true,
                ))
            }
            Value::String(path) => Ok((self.open(path, data)?, false)),
            Value::Object(fields) => {
                if let Some(text) = encoded.get("bytes").and_then(Value::as_str) {
                    return Ok((
                        self.store(
                            &BASE64.decode(text).map_err(|_| fault!("`bytes` is text that is not base64"))?,
                        )?,
                        true,
                    ));
                }
                let path = ["path", "image"].iter().find_map(|&name| fields.get(name)?.as_str());
                Ok((self.open(path.ok_or_else(|| fault!("it has neither a path nor bytes"))?, data)?, false))
            }
            other => Err(fault!(
                "it must be a path, or an object with `path` or `bytes`, and is {actual}",
                actual = kind(other)
            )),
        }
    }

    fn open(&self, name: &str, data: &Path) -> Result<PromptImage, Fault> {
        let name = name.strip_prefix("file://").unwrap_or(name);
        if name.contains("://") || name.starts_with("data:") {
            return Err(fault!(
                "{address} is a URL, but images must be files: download them and use their paths, store their bytes in a Parquet file, \
                or skip such columns with data.images=false",
                address = name.chars().take(60).collect::<String>()
            ));
        }
        if name.is_empty() {
            return Err(fault!("it has neither a path nor bytes"));
        }
        let own = data.parent().unwrap_or(Path::new(""));
        let path = self.folder.as_deref().unwrap_or(own).join(name);
        let unreadable = |error: std::io::Error| {
            fault!(
                "{path} cannot be read: {error}; paths are relative to the data's file, or to data.image_folder; data.images=false skips \
                such columns",
                path = path.display()
            )
        };
        let whole = std::path::absolute(&path).map_err(unreadable)?;
        let shown = whole
            .to_str()
            .ok_or_else(|| fault!("the path {path} is not UTF-8; rename it", path = whole.display()))?;
        let file = tamis_file::open(&path).map_err(unreadable)?;
        let size = file.metadata().map_err(unreadable)?.len();
        if size > MAX_BYTES {
            let detail = format!("it has more than {}", figure::bytes(MAX_BYTES));
            return Err(fault!(
                "{shown} cannot be read: {detail}; paths are relative to the data's file, or to data.image_folder; data.images=false \
                skips such columns"
            ));
        }
        let (width, height) = size_of_file(file, shown)?;
        Ok(PromptImage { path: shown.to_owned(), width, height })
    }

    fn store(&self, bytes: &[u8]) -> Result<PromptImage, Fault> {
        const WHAT: &str = "what `bytes` holds";
        let format =
            || fault!("{what} is not an image of a known format (PNG, JPEG, WebP, GIF, BMP)", what = WHAT);
        let ending = ending_of(bytes).ok_or_else(format)?;
        let (width, height) = checked_shape(probed(imagesize::blob_size, bytes).ok_or_else(format)?, WHAT)?;
        let name = format!("{:032x}.{ending}", fingerprint(bytes));
        let folder = self.store.as_deref().unwrap_or(Path::new(""));
        let path = folder.join(name);
        let failed =
            |detail: String| fault!("its bytes cannot be written to {path}: {detail}", path = path.display());
        let whole = std::path::absolute(&path).map_err(|error| failed(error.to_string()))?;
        let shown = whole
            .to_str()
            .ok_or_else(|| fault!("the path {path} is not UTF-8; rename it", path = whole.display()))?;
        if self.store.is_some() {
            write(folder, &path, bytes).map_err(failed)?;
        }
        Ok(PromptImage { path: shown.to_owned(), width, height })
    }
}

fn write(folder: &Path, path: &Path, bytes: &[u8]) -> Result<(), String> {
    match tamis_file::read(path, MAX_BYTES) {
        Ok(there) if there == bytes => return Ok(()),
        Ok(_) => return Err("another file is there".to_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error.to_string()),
    }
    let write = || {
        std::fs::create_dir_all(folder)?;
        let mut file = WholeFile::create(path)?;
        file.write_all(bytes)?;
        file.commit()
    };
    write().map_err(|error: std::io::Error| error.to_string())
}

/// Width and height of an image file. Only its header is read.
fn size_of_file(file: File, shown: &str) -> Result<(u32, u32), Fault> {
    let format = || fault!("{shown} is not an image of a known format (PNG, JPEG, WebP, GIF, BMP)");
    let mut reader = std::io::BufReader::new(file);
    let mut head = Vec::new();
    (&mut reader).take(32).read_to_end(&mut head).map_err(|_| format())?;
    ending_of(&head).ok_or_else(format)?;
    std::io::Seek::rewind(&mut reader).map_err(|_| format())?;
    let size = probed(imagesize::reader_size, reader).ok_or_else(format)?;
    checked_shape(size, shown)
}

/// The result of reading a file's header; `None` if the header is invalid.
fn probed<S, T, E>(look: impl FnOnce(S) -> Result<T, E>, source: S) -> Option<T> {
    caught::catch(|| look(source).ok()).ok().flatten()
}

fn checked_shape(size: imagesize::ImageSize, what: &str) -> Result<(u32, u32), Fault> {
    let imagesize::ImageSize { width, height } = size;
    let shape = || {
        fault!(
            "{what} is {width} x {height} pixels, but one side may be at most {MAX_ASPECT} times the other"
        )
    };
    let (w, h) = (u32::try_from(width).map_err(|_| shape())?, u32::try_from(height).map_err(|_| shape())?);
    let (short, long) = (w.min(h), w.max(h));
    if short == 0 || u64::from(long) > u64::from(short) * u64::from(MAX_ASPECT) {
        return Err(shape());
    }
    Ok((w, h))
}

/// Ending of the name of an image's file, by its first bytes.
fn ending_of(bytes: &[u8]) -> Option<&'static str> {
    use imagesize::ImageType;
    match probed(imagesize::image_type, bytes)? {
        ImageType::Png => Some("png"),
        ImageType::Jpeg => Some("jpg"),
        ImageType::Webp => Some("webp"),
        ImageType::Gif => Some("gif"),
        ImageType::Bmp => Some("bmp"),
        _ => None,
    }
}

/// FNV-1a of 128 bits.
fn fingerprint(bytes: &[u8]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(BASIS, |hash, &byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}

/// Base64 with padding (RFC 4648). Surplus bits of the last digit are ignored, as in Python.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// A PNG of this size with only a header: sizes are read, pixels never.
    pub(crate) fn png(width: u32, height: u32) -> Vec<u8> {
        let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        bytes.extend(width.to_be_bytes());
        bytes.extend(height.to_be_bytes());
        bytes.extend([8, 2, 0, 0, 0, 0, 0, 0, 0]);
        bytes
    }

    fn images(
        places: &ImagePlaces,
        value: &Value,
        data: &Path,
    ) -> Result<(Vec<PromptImage>, bool), (usize, Fault)> {
        places.images(ImageColumn { value, encoded: None, is_binary: false }, data)
    }

    #[test]
    fn paths_start_where_the_data_is() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("train.jsonl");
        std::fs::create_dir(folder.path().join("pictures")).unwrap();
        std::fs::write(folder.path().join("pictures/a.png"), png(30, 20)).unwrap();
        let expected = PromptImage {
            path: folder.path().join("pictures/a.png").display().to_string(),
            width: 30,
            height: 20,
        };
        let of = |places: &ImagePlaces, value: Value| images(places, &value, &data).unwrap();
        let plain = ImagePlaces::default();
        let listed = json!(["pictures/a.png", null, {"path": "pictures/a.png", "bytes": null}, {"image": expected.path}]);
        assert_eq!(of(&plain, listed), (vec![expected.clone(); 3], false));
        assert_eq!(of(&plain, json!("file://pictures/a.png")).0, std::slice::from_ref(&expected));
        assert_eq!(of(&plain, json!([])), (Vec::new(), false));
        let elsewhere = ImagePlaces { folder: Some(folder.path().join("pictures")), store: None };
        assert_eq!(of(&elsewhere, json!("a.png")).0, [expected]);
    }

    #[test]
    fn bytes_become_one_file_each() {
        let folder = tempfile::tempdir().unwrap();
        let places = ImagePlaces { folder: None, store: Some(folder.path().join("images")) };
        let value = json!([{"bytes": BASE64.encode(png(3, 5)), "path": "x.png"}, {"bytes": BASE64.encode(png(3, 5))}]);
        for _ in 0..2 {
            let (found, had_bytes) = images(&places, &value, Path::new("a.parquet")).unwrap();
            assert!(had_bytes && found[0] == found[1]);
            assert_eq!((found[0].width, found[0].height), (3, 5));
            assert_eq!(std::fs::read(&found[0].path).unwrap(), png(3, 5));
            assert_eq!(std::fs::read_dir(folder.path().join("images")).unwrap().count(), 1);
        }
        let other = json!([{"bytes": BASE64.encode(png(4, 5))}]);
        images(&places, &other, Path::new("a.parquet")).unwrap();
        assert_eq!(std::fs::read_dir(folder.path().join("images")).unwrap().count(), 2);
        let checked = images(&ImagePlaces::default(), &other, Path::new("a.parquet")).unwrap().0;
        assert!(!Path::new(&checked[0].path).exists(), "a check writes nothing");
    }

    #[test]
    fn what_is_no_image_is_refused_by_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("train.jsonl");
        std::fs::write(folder.path().join("text.png"), "no image").unwrap();
        std::fs::write(folder.path().join("long.png"), png(20_100, 100)).unwrap();
        let fault = |value: Value| {
            let (place, fault) = images(&ImagePlaces::default(), &value, &data).unwrap_err();
            format!("{place}: {fault}").replace(&folder.path().display().to_string(), "FOLDER")
        };
        insta::assert_snapshot!(fault(json!([null, 7])), @"1: it must be a path, or an object with `path` or `bytes`, and is a number");
        insta::assert_snapshot!(fault(json!({"path": null, "bytes": null})), @"0: it has neither a path nor bytes");
        insta::assert_snapshot!(fault(json!("https://example.org/a.png")), @"0: https://example.org/a.png is a URL, but images must be files: download them and use their paths, store their bytes in a Parquet file, or skip such columns with data.images=false");
        insta::assert_snapshot!(fault(json!("gone.png")), @"0: FOLDER/gone.png cannot be read: No such file or directory (os error 2); paths are relative to the data's file, or to data.image_folder; data.images=false skips such columns");
        insta::assert_snapshot!(fault(json!("text.png")), @"0: FOLDER/text.png is not an image of a known format (PNG, JPEG, WebP, GIF, BMP)");
        insta::assert_snapshot!(fault(json!("long.png")), @"0: FOLDER/long.png is 20100 x 100 pixels, but one side may be at most 200 times the other");
        insta::assert_snapshot!(fault(json!({"bytes": "no!"})), @"0: `bytes` is text that is not base64");
        insta::assert_snapshot!(fault(json!({"bytes": "AAEC"})), @"0: what `bytes` holds is not an image of a known format (PNG, JPEG, WebP, GIF, BMP)");
    }
}
