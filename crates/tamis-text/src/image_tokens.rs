//! Images in a tokenized text: the token that marks an image, and how many of them an image of a given size
//! becomes.
//!
//! A chat template writes one token for an image. The model reads one token for each patch that its vision
//! tower makes of the image. Their number follows from the image's size and the settings of the model's image
//! processor. This module supports the models of the Qwen2-VL family.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tamis_core::fault;
use tamis_core::fault::Fault;

/// Supported values of `model_type`.
pub const MODEL_TYPES: [&str; 2] = ["qwen2_vl", "qwen2_5_vl"];

/// The files of a model's image processor. The first one that exists is read.
pub(crate) const PROCESSOR_FILES: [&str; 3] =
    ["processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"];

/// How a model's images become tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageTokens {
    token_id: u32,
    /// Tokens around an image.
    marks: Vec<u32>,
    /// Side, in pixels, of the square that becomes one token.
    factor: u32,
    min_pixels: u64,
    max_pixels: u64,
}

impl ImageTokens {
    /// Reads a model's folder. `None` if its configuration is missing, or is not of a model in
    /// [`MODEL_TYPES`].
    pub fn read(folder: &Path) -> Result<Option<Self>, Fault> {
        let json = |name: &str| -> Result<Option<(PathBuf, Value)>, Fault> {
            let path = folder.join(name);
            match tamis_file::read(&path, tamis_file::MAX_MODEL_CONFIG) {
                Ok(bytes) => match serde_json::from_slice(&bytes) {
                    Ok(value) => Ok(Some((path, value))),
                    Err(source) => Err(fault!("{} is not JSON", path.display()).with_source(source)),
                },
                Err(source) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
                Err(source) => Err(fault!("failed to read {}", path.display()).with_source(source)),
            }
        };
        let Some((path, config)) = json("config.json")? else { return Ok(None) };
        if !config["model_type"].as_str().is_some_and(|kind| MODEL_TYPES.contains(&kind)) {
            return Ok(None);
        }
        let [nested, plain, _] = PROCESSOR_FILES;
        let nested =
            json(nested)?.and_then(|(path, value)| Some((path, value.get("image_processor")?.clone())));
        let (processor_path, processor) = match nested {
            Some(found) => found,
            None => json(plain)?.ok_or_else(|| {
                fault!(
                    "there is no preprocessor_config.json in {}, which defines how images become patches; \
                    it comes with the model",
                    folder.display()
                )
            })?,
        };
        let id = |field: &'static str| match &config[field] {
            Value::Null => Ok(None),
            value => value.as_u64().and_then(|id| u32::try_from(id).ok()).map(Some).ok_or_else(|| {
                let (path, actual) = (path.clone(), value.to_string());
                fault!("`{field}` in {} must be a token id, and is {actual}", path.display())
            }),
        };
        let number = |value: &Value, field: &'static str, default: u64| match value {
            Value::Null => Ok(default),
            value => value.as_u64().filter(|&number| number > 0 && number < 1 << 40).ok_or_else(|| {
                let (path, actual) = (processor_path.clone(), value.to_string());
                fault!("`{field}` in {} must be a whole number above 0, and is {actual}", path.display())
            }),
        };
        let token_id = id("image_token_id")?.ok_or_else(|| {
            fault!("`image_token_id` in {} must be a token id, and is missing", path.display())
        })?;
        let marks =
            [id("vision_start_token_id")?, id("vision_end_token_id")?].into_iter().flatten().collect();
        let sides = number(&processor["patch_size"], "patch_size", 14)?.saturating_mul(number(
            &processor["merge_size"],
            "merge_size",
            2,
        )?);
        let factor = u32::try_from(sides).ok().filter(|&factor| factor <= 1 << 12).ok_or_else(|| {
            let (path, actual) = (processor_path.clone(), processor["patch_size"].to_string());
            fault!("`patch_size` in {} must be the side of a patch, and is {actual}", path.display())
        })?;
        let size = &processor["size"];
        let least = number(&size["shortest_edge"], "size.shortest_edge", 56 * 56)?;
        let most = number(&size["longest_edge"], "size.longest_edge", 28 * 28 * 1280)?;
        let min_pixels = number(&processor["min_pixels"], "min_pixels", least)?;
        let max_pixels = number(&processor["max_pixels"], "max_pixels", most)?;
        if max_pixels < min_pixels.max(u64::from(factor).pow(2)) {
            let (path, actual) = (processor_path, max_pixels.to_string());
            let expected = "at least `min_pixels` and the pixels of one token";
            return Err(fault!("`max_pixels` in {} must be {expected}, and is {actual}", path.display()));
        }
        Ok(Some(Self { token_id, marks, factor, min_pixels, max_pixels }))
    }

    /// The token of an image. A chat template writes it once; the model reads it [`Self::count`] times.
    pub fn token_id(&self) -> u32 {
        self.token_id
    }

    /// Number of tokens for an image of this many pixels. The image is resized as by transformers'
    /// `smart_resize`: both sides become multiples of a token's side, the area stays within the processor's
    /// bounds, and the shape is kept as nearly as possible. No side may be 0.
    pub fn count(&self, width: u32, height: u32) -> usize {
        let (w, h, factor) = (f64::from(width), f64::from(height), f64::from(self.factor));
        let (least, most) = (self.min_pixels as f64, self.max_pixels as f64);
        let rounded = |side: f64| (side / factor).round_ties_even();
        let (mut across, mut down) = (rounded(w), rounded(h));
        let pixels = across * down * factor * factor;
        if pixels > most {
            let shrink = (h * w / most).sqrt();
            across = (w / shrink / factor).floor().max(1.0);
            down = (h / shrink / factor).floor().max(1.0);
        } else if pixels < least {
            let grow = (least / (h * w)).sqrt();
            across = (w * grow / factor).ceil();
            down = (h * grow / factor).ceil();
        }
        (across * down) as usize
    }

    /// Turns the output of a template into the model's input: repeats the token of each image as often as
    /// that image has tokens. If the number of images is not that of `lengths`, the error is the number
    /// found.
    pub fn expand(&self, ids: &[u32], lengths: &[usize]) -> Result<Vec<u32>, usize> {
        let num_images = ids.iter().filter(|&&id| id == self.token_id).count();
        // Two adjacent images could not be separated again.
        let touch = ids.windows(2).any(|pair| pair == [self.token_id; 2]);
        if num_images != lengths.len() || touch {
            return Err(num_images);
        }
        let mut lengths = lengths.iter();
        let mut times = |id: u32| if id == self.token_id { lengths.next().copied().unwrap_or(1) } else { 1 };
        Ok(ids.iter().flat_map(|&id| std::iter::repeat_n(id, times(id))).collect())
    }

    /// Whether a cut of `whole` left every token that belongs to an image in it.
    pub fn are_kept(&self, whole: &[u32], cut: &[u32]) -> bool {
        let own = |id: &u32| *id == self.token_id || self.marks.contains(id);
        whole.iter().filter(|id| own(id)).count() == cut.iter().filter(|id| own(id)).count()
    }
}

/// The reverse of [`ImageTokens::expand`]: the adjacent tokens of one image become one.
pub fn contract(ids: &[u32], token_id: u32) -> Vec<u32> {
    let mut short: Vec<u32> = Vec::with_capacity(ids.len());
    for &id in ids {
        if id != token_id || short.last() != Some(&id) {
            short.push(id);
        }
    }
    short
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn folder(config: &Value, files: &[(&str, Value)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        for (name, content) in files {
            std::fs::write(folder.path().join(name), content.to_string()).unwrap();
        }
        folder
    }

    fn qwen() -> Value {
        json!({"model_type": "qwen2_5_vl", "image_token_id": 9, "vision_start_token_id": 7, "vision_end_token_id": 8})
    }

    fn of(processor: Value) -> ImageTokens {
        ImageTokens::read(folder(&qwen(), &[("preprocessor_config.json", processor)]).path())
            .unwrap()
            .unwrap()
    }

    /// From transformers 5.23's `Qwen2VLImageProcessorPil.get_number_of_image_patches`, divided by 4.
    #[test]
    fn counts_are_those_of_the_processor() {
        let released =
            of(json!({"min_pixels": 3136, "max_pixels": 12_845_056, "patch_size": 14, "merge_size": 2}));
        for (width, height, expected) in COUNTS_OF_RELEASED {
            assert_eq!(released.count(width, height), expected, "{width} x {height}");
        }
        let small = of(json!({"size": {"shortest_edge": 784, "longest_edge": 7840}, "patch_size": 7}));
        for (width, height, expected) in COUNTS_OF_SMALL {
            assert_eq!(small.count(width, height), expected, "{width} x {height}");
        }
    }

    #[test]
    fn settings_are_found_where_transformers_finds_them() {
        let nested = json!({"image_processor": {"patch_size": 16, "merge_size": 2}});
        let plain = json!({"patch_size": 14, "merge_size": 1});
        let read = |files: &[(&str, Value)]| ImageTokens::read(folder(&qwen(), files).path());
        let both = read(&[("processor_config.json", nested), ("preprocessor_config.json", plain.clone())]);
        assert_eq!(both.unwrap().unwrap().factor, 32);
        let legacy = read(&[
            ("processor_config.json", json!({"processor_class": "x"})),
            ("preprocessor_config.json", plain),
        ]);
        assert_eq!(legacy.unwrap().unwrap().factor, 14);
        let missing = read(&[]).unwrap_err().to_string();
        assert!(missing.contains("there is no preprocessor_config.json"), "{missing}");
        let text = folder(&json!({"model_type": "qwen2"}), &[]);
        assert_eq!(ImageTokens::read(text.path()).unwrap(), None);
        let field = read(&[("preprocessor_config.json", json!({"patch_size": 0}))]).unwrap_err().to_string();
        assert!(field.contains("`patch_size`") && field.ends_with("and is 0"), "{field}");
        let most = read(&[("preprocessor_config.json", json!({"max_pixels": 100}))]).unwrap_err().to_string();
        assert!(most.contains("`max_pixels`"), "{most}");
    }

    #[test]
    fn images_are_expanded_contracted_and_kept() {
        let images = of(json!({}));
        let ids = [1, 7, 9, 8, 2, 7, 9, 8, 3];
        let expanded = images.expand(&ids, &[3, 1]).unwrap();
        assert_eq!(expanded, [1, 7, 9, 9, 9, 8, 2, 7, 9, 8, 3]);
        assert_eq!(contract(&expanded, images.token_id()), ids);
        assert_eq!(images.expand(&ids, &[3]), Err(2));
        assert_eq!(images.expand(&[1, 2], &[3]), Err(0));
        assert_eq!(images.expand(&[9, 9], &[1, 1]), Err(2), "touching ones");
        assert!(images.are_kept(&expanded, &expanded[1..]));
        for cut in [&expanded[2..], &expanded[3..], &expanded[..9]] {
            assert!(!images.are_kept(&expanded, cut), "{cut:?}");
        }
    }

    const COUNTS_OF_RELEASED: [(u32, u32, usize); 13] = [
        (28, 28, 4),
        (10, 10, 4),
        (1, 150, 25),
        (224, 224, 64),
        (640, 480, 391),
        (481, 641, 391),
        (42, 42, 4),
        (70, 98, 8),
        (14, 1000, 17),
        (1920, 1080, 2691),
        (6000, 4000, 16224),
        (8000, 100, 1144),
        (33, 57, 6),
    ];
    const COUNTS_OF_SMALL: [(u32, u32, usize); 13] = [
        (28, 28, 4),
        (10, 10, 4),
        (1, 150, 25),
        (224, 224, 36),
        (640, 480, 35),
        (481, 641, 35),
        (42, 42, 9),
        (70, 98, 35),
        (14, 1000, 53),
        (1920, 1080, 32),
        (6000, 4000, 35),
        (8000, 100, 56),
        (33, 57, 8),
    ];
}
