//! The files of a split of a data set.
//!
//! The card of a data set (`configs` in its README) declares the files of each split. If it does not, the
//! names of the files do, much as in the library `datasets`: `CONFIGURATION/SPLIT-00000-of-00002.parquet`,
//! `data/SPLIT.jsonl`, `CONFIGURATION/SPLIT/0000.parquet` (the hub's own conversion). A file whose name shows
//! no split belongs to `train`.

use tamis_config::locate::WantedSplit;

use crate::error::{HubCause, HubError, listed};
use crate::listing::{CardConfiguration, Listing};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SplitFiles {
    pub(crate) configuration: String,
    pub(crate) split: String,
    /// Sorted.
    pub(crate) files: Vec<String>,
}

/// Most stars in a pattern.
const MOST_STARS: usize = 6;

/// The split in a file's name, and the file.
type Placed = (Option<String>, String);

struct Configuration {
    name: String,
    is_default: bool,
    splits: Vec<(String, Vec<String>)>,
}

const FORM: &str = "a split is written `owner/name:configuration/split`";

/// Finds a split among the files of a repository.
///
/// # Errors
/// Names what there is instead.
pub(crate) fn find_split(
    name: &str,
    listing: &Listing,
    wanted: WantedSplit<'_>,
) -> Result<SplitFiles, HubError> {
    let configurations = configurations(listing);
    if configurations.is_empty() {
        return Err(HubError::new(
            HubCause::NoRows,
            format!("`{name}` has no Parquet or JSONL files at this revision"),
            "if the hub has converted it, use the revision `refs/convert/parquet`; otherwise write the rows to a JSONL or Parquet file",
        ));
    }
    let names = || listed(configurations.iter().map(|found| found.name.as_str()));
    let is_split = |found: &Configuration, split: &str| position(&found.splits, split).is_some();
    let configuration = match wanted.configuration {
        Some(asked) => {
            let found = configurations.iter().find(|found| found.name == asked);
            found.ok_or_else(|| {
                let message = format!("`{name}` has no configuration `{asked}`; it has {}", names());
                HubError::new(HubCause::NoSplit, message, FORM)
            })?
        }
        None => match configurations.as_slice() {
            [only] => only,
            several => {
                let by_name = || several.iter().find(|found| found.name == "default");
                let default = several.iter().find(|found| found.is_default).or_else(by_name);
                default.ok_or_else(|| {
                    // The name of a configuration may have been given as the split.
                    let of_name =
                        wanted.split.and_then(|split| several.iter().find(|found| found.name == split));
                    let example = of_name.or(several.first());
                    let there =
                        wanted.or.iter().find(|split| example.is_some_and(|found| is_split(found, split)));
                    let split =
                        wanted.split.filter(|_| of_name.is_none()).or(there.copied()).unwrap_or("train");
                    let example = example.map_or("", |found| found.name.as_str());
                    HubError::new(
                        HubCause::WhichConfiguration,
                        format!("`{name}` has several configurations: {}", names()),
                        format!("name one: `{name}:{example}/{split}`"),
                    )
                })?
            }
        },
    };
    let asked: Vec<&str> = wanted.split.map_or_else(|| wanted.or.to_vec(), |split| vec![split]);
    let found = asked.iter().find_map(|split| position(&configuration.splits, split));
    let Some((split, files)) = found.and_then(|index| configuration.splits.get(index)) else {
        let split = asked.first().copied().unwrap_or_default();
        let meant = configurations.iter().find(|other| wanted.configuration.is_none() && other.name == split);
        let usual = wanted.or.iter().find(|usual| meant.is_some_and(|meant| is_split(meant, usual)));
        let splits = listed(configuration.splits.iter().map(|(split, _)| split.as_str()));
        return Err(HubError::new(
            HubCause::NoSplit,
            format!("`{name}` has no split `{split}` in `{}`; it has {splits}", configuration.name),
            meant.zip(usual).map_or_else(
                || FORM.to_owned(),
                |(meant, usual)| format!("write `{name}:{}/{usual}`", meant.name),
            ),
        ));
    };
    Ok(SplitFiles { configuration: configuration.name.clone(), split: split.clone(), files: files.clone() })
}

/// The index of a split by its name, or by another usual form of it (`val` for `validation`).
fn position(splits: &[(String, Vec<String>)], asked: &str) -> Option<usize> {
    let exact = splits.iter().position(|(split, _)| split == asked);
    exact.or_else(|| {
        let usual = usual_split(asked)?;
        splits.iter().position(|(split, _)| usual_split(split) == Some(usual))
    })
}

/// All configurations with their splits and files, in the order of the card or of their names.
fn configurations(listing: &Listing) -> Vec<Configuration> {
    let mut files: Vec<&str> = listing.names().filter(|name| is_read(name)).collect();
    files.sort_unstable();
    let declared = |configuration: &CardConfiguration| {
        let inside =
            |file: &&&str| configuration.folder.as_deref().is_none_or(|folder| below(file, folder).is_some());
        let own: Vec<&str> = files.iter().filter(inside).copied().collect();
        let mut splits: Vec<(String, Vec<String>)> = Vec::new();
        for split in &configuration.splits {
            let is_of = |file: &&&str| {
                let relative = configuration.folder.as_deref().and_then(|folder| below(file, folder));
                let is_match = |pattern: &String| {
                    let pattern = pattern.trim_start_matches("./");
                    matches(pattern, file) || relative.is_some_and(|file| matches(pattern, file))
                };
                // Each star tries every position. A card with many stars was not written by a person.
                let is_plain = |pattern: &&String| pattern.matches('*').count() <= MOST_STARS;
                split.patterns.iter().filter(is_plain).any(is_match)
            };
            let of_split: Vec<String> = own.iter().filter(is_of).map(|file| (*file).to_owned()).collect();
            if !of_split.is_empty() {
                splits.push((split.split.clone(), of_one_form(of_split)));
            }
        }
        if configuration.splits.is_empty() {
            let place = |file: &&str| (split_of(file).1.map(str::to_owned), (*file).to_owned());
            splits = by_split(own.iter().map(place).collect());
        }
        let (name, is_default) = (configuration.name.clone(), configuration.is_default);
        Configuration { name, is_default, splits }
    };
    if !listing.configurations.is_empty() {
        let found = listing.configurations.iter().map(declared);
        return found.filter(|configuration| !configuration.splits.is_empty()).collect();
    }
    let mut found: Vec<(String, Vec<Placed>)> = Vec::new();
    for file in files {
        let (configuration, split) = split_of(file);
        let entry = (split.map(str::to_owned), file.to_owned());
        match found.iter_mut().find(|(name, _)| *name == configuration) {
            Some((_, files)) => files.push(entry),
            None => found.push((configuration, vec![entry])),
        }
    }
    let configuration = |(name, files)| Configuration { name, is_default: false, splits: by_split(files) };
    found.into_iter().map(configuration).collect()
}

/// Whether a file of this name can be read as rows.
fn is_read(name: &str) -> bool {
    [".parquet", ".jsonl"].iter().any(|ending| name.ends_with(ending))
}

/// Only the Parquet files if a split has both formats: they hold the same rows.
fn of_one_form(files: Vec<String>) -> Vec<String> {
    let (parquet, others): (Vec<_>, Vec<_>) = files.into_iter().partition(|file| file.ends_with(".parquet"));
    if parquet.is_empty() { others } else { parquet }
}

/// Groups files by the splits in their names. If no name shows a split, all are `train`.
fn by_split(files: Vec<Placed>) -> Vec<(String, Vec<String>)> {
    let is_said = files.iter().any(|(split, _)| split.is_some());
    let mut splits: Vec<(String, Vec<String>)> = Vec::new();
    for (split, file) in files {
        let split = match split {
            Some(split) => split,
            None if is_said => continue,
            None => "train".to_owned(),
        };
        match splits.iter_mut().find(|(other, _)| *other == split) {
            Some((_, files)) => files.push(file),
            None => splits.push((split, vec![file])),
        }
    }
    splits.into_iter().map(|(split, files)| (split, of_one_form(files))).collect()
}

/// Configuration and split from the path of a file.
fn split_of(file: &str) -> (String, Option<&str>) {
    let (folders, name) = file.rsplit_once('/').unwrap_or(("", file));
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let mut folders: Vec<&str> = folders.split('/').filter(|folder| !folder.is_empty()).collect();
    let is_number = !stem.is_empty() && stem.bytes().all(|byte| byte.is_ascii_digit());
    let split = if is_number {
        folders.pop()
    } else {
        let of_folder = |folders: &mut Vec<&str>| {
            let split = usual_split(folders.last()?)?;
            folders.pop();
            Some(split)
        };
        shard(stem).map(|(split, _)| split).or_else(|| usual_split(stem)).or_else(|| of_folder(&mut folders))
    };
    folders.retain(|folder| *folder != "data");
    let configuration = if folders.is_empty() { "default".to_owned() } else { folders.join("/") };
    (configuration, split)
}

/// The split and the number of files in a name like `train-00000-of-00002`, with or without a checksum at its
/// end.
fn shard(stem: &str) -> Option<(&str, usize)> {
    let (before, after) = stem.rsplit_once("-of-")?;
    let (split, index) = before.rsplit_once('-')?;
    let count = after.split('-').next()?;
    let is_number = |text: &str| text.len() >= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(index) && is_number(count) && !split.is_empty()).then_some((split, count.parse().ok()?))
}

/// Whether files are missing, judged by the counts in the names (`train-00000-of-00002.parquet`).
pub(crate) fn lacks_shards(files: &[String]) -> bool {
    let count = |file: &String| {
        let name = file.rsplit_once('/').map_or(file.as_str(), |(_, name)| name);
        shard(name.rsplit_once('.').map_or(name, |(stem, _)| stem)).map(|(_, count)| count)
    };
    files.iter().filter_map(count).any(|count| count > files.len())
}

/// The usual split in a name: one of its words is `train`, `validation`, `test` or a synonym.
fn usual_split(name: &str) -> Option<&'static str> {
    // The hub converts only the first gigabytes of a large data set. Such partial splits have to be requested
    // by name.
    if name.starts_with("partial-") {
        return None;
    }
    name.split(|character: char| !character.is_ascii_alphanumeric()).find_map(|word| {
        match word.to_ascii_lowercase().as_str() {
            "train" | "training" => Some("train"),
            "validation" | "valid" | "val" | "dev" => Some("validation"),
            "test" | "testing" | "eval" | "evaluation" => Some("test"),
            _ => None,
        }
    })
}

/// The rest of a path below a folder.
fn below<'f>(file: &'f str, folder: &str) -> Option<&'f str> {
    let folder = folder.trim_start_matches("./").trim_matches('/');
    if folder.is_empty() || folder == "." { Some(file) } else { file.strip_prefix(folder)?.strip_prefix('/') }
}

/// Whether a path matches a pattern: `*` and `?` within a folder, `**` across folders.
fn matches(pattern: &str, path: &str) -> bool {
    if let Some(rest) = pattern.strip_prefix("**/") {
        return matches(rest, path)
            || path.match_indices('/').any(|(slash, _)| matches(rest, &path[slash + 1..]));
    }
    if let Some(rest) = pattern.strip_prefix("**") {
        return path
            .char_indices()
            .map(|(index, _)| index)
            .chain([path.len()])
            .any(|index| matches(rest, &path[index..]));
    }
    let mut characters = pattern.chars();
    let Some(first) = characters.next() else { return path.is_empty() };
    let rest = characters.as_str();
    if first == '*' {
        let end = path.find('/').unwrap_or(path.len());
        let within = path.get(..end).unwrap_or_default();
        let mut places = within.char_indices().map(|(index, _)| index).chain([end]);
        return places.any(|index| matches(rest, &path[index..]));
    }
    let mut others = path.chars();
    let other = others.next();
    let is_same = if first == '?' { other.is_some_and(|other| other != '/') } else { other == Some(first) };
    is_same && matches(rest, others.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listing::{CardSplit, ListedFile};

    const VALIDATION: [&str; 2] = ["validation", "test"];

    fn listing(names: &[&str]) -> Listing {
        let file = |name: &&str| ListedFile { name: (*name).to_owned(), size: None, checksum: None };
        let commit = "7ae557604adf67be50417f59c2c2f167def9a775".to_owned();
        Listing { commit, files: names.iter().map(file).collect(), configurations: Vec::new() }
    }

    fn declare(listing: &mut Listing, name: &str, splits: &[(&str, &str)]) {
        let split = |(split, pattern): &(&str, &str)| CardSplit {
            split: (*split).to_owned(),
            patterns: vec![(*pattern).to_owned()],
        };
        listing.configurations.push(CardConfiguration {
            name: name.to_owned(),
            is_default: false,
            folder: None,
            splits: splits.iter().map(split).collect(),
        });
    }

    /// The result for `configuration/split` (either may be missing), in one line.
    fn find(listing: &Listing, wanted: &str) -> String {
        let (configuration, split) = match wanted.split_once('/') {
            Some((configuration, split)) => (Some(configuration), split),
            None => (None, wanted),
        };
        let split = Some(split).filter(|split| !split.is_empty());
        match find_split("o/d", listing, WantedSplit { configuration, split, or: &VALIDATION }) {
            Ok(found) => format!("{}/{}: {}", found.configuration, found.split, found.files.join(" ")),
            Err(error) => format!("{error}; {}", error.hint().unwrap_or_default()),
        }
    }

    fn gsm8k() -> Listing {
        let mut listing = listing(&[
            "README.md",
            "main/test-00000-of-00001.parquet",
            "main/train-00000-of-00001.parquet",
            "socratic/test-00000-of-00001.parquet",
            "socratic/train-00000-of-00001.parquet",
        ]);
        for name in ["main", "socratic"] {
            let (train, test) = (format!("{name}/train-*"), format!("{name}/test-*"));
            declare(&mut listing, name, &[("train", &train), ("test", &test)]);
        }
        listing
    }

    #[test]
    fn the_card_says_which_files_a_split_has() {
        let gsm8k = gsm8k();
        assert_eq!(find(&gsm8k, "main/train"), "main/train: main/train-00000-of-00001.parquet");
        assert_eq!(find(&gsm8k, "socratic/"), "socratic/test: socratic/test-00000-of-00001.parquet");
        let mut one = listing(&["data/dapo-math-17k.parquet", "old.jsonl"]);
        declare(&mut one, "default", &[("train", "data/*")]);
        assert_eq!(find(&one, "train"), "default/train: data/dapo-math-17k.parquet");
    }

    #[test]
    fn what_there_is_instead_is_told() {
        let gsm8k = gsm8k();
        assert_eq!(
            find(&gsm8k, "train"),
            "`o/d` has several configurations: `main`, `socratic`; name one: `o/d:main/train`"
        );
        assert_eq!(
            find(&gsm8k, "socratic"),
            "`o/d` has several configurations: `main`, `socratic`; name one: `o/d:socratic/test`"
        );
        assert!(
            find(&gsm8k, "mian/train")
                .starts_with("`o/d` has no configuration `mian`; it has `main`, `socratic`")
        );
        assert!(
            find(&gsm8k, "main/dev")
                .starts_with("`o/d` has no split `dev` in `main`; it has `train`, `test`")
        );
        assert!(find(&listing(&["a.csv"]), "train").starts_with("`o/d` has no Parquet or JSONL files"));
    }

    #[test]
    fn names_say_it_where_no_card_does() {
        let names = |names: &[&str], wanted: &str| find(&listing(names), wanted);
        assert_eq!(
            names(&["train.jsonl", "test.jsonl", "notes.jsonl"], "train"),
            "default/train: train.jsonl"
        );
        assert_eq!(
            names(&["data/train_sft-00000-of-00001-0123456789abcdef.parquet"], "train_sft"),
            "default/train_sft: data/train_sft-00000-of-00001-0123456789abcdef.parquet"
        );
        assert_eq!(names(&["a.parquet", "b.parquet"], "train"), "default/train: a.parquet b.parquet");
        assert_eq!(
            names(&["main/train/0000.parquet", "main/test/0000.parquet", "main/train/0001.parquet"], "train"),
            "main/train: main/train/0000.parquet main/train/0001.parquet"
        );
        assert_eq!(names(&["en/dev.jsonl", "fr/dev.jsonl"], "fr/val"), "fr/validation: fr/dev.jsonl");
        assert_eq!(names(&["train.jsonl", "train.parquet"], "train"), "default/train: train.parquet");
        assert_eq!(names(&["train.jsonl", "math-test.jsonl"], ""), "default/test: math-test.jsonl");
        let partial = ["big/partial-train/0000.parquet"];
        assert!(
            names(&partial, "train")
                .starts_with("`o/d` has no split `train` in `big`; it has `partial-train`")
        );
        assert_eq!(names(&partial, "partial-train"), "big/partial-train: big/partial-train/0000.parquet");
    }

    #[test]
    fn patterns_are_those_of_cards() {
        for (pattern, path, is_match) in [
            ("main/train-*", "main/train-00000-of-00001.parquet", true),
            ("main/train-*", "main/train-x/y.parquet", false),
            ("*.jsonl", "a/b.jsonl", false),
            ("**/*.jsonl", "a/b.jsonl", true),
            ("**/*.jsonl", "b.jsonl", true),
            ("data/**", "data/a/b.parquet", true),
            ("a?.parquet", "ab.parquet", true),
            ("a?.parquet", "a.parquet", false),
            ("a.parquet", "a.parquet", true),
        ] {
            assert_eq!(matches(pattern, path), is_match, "{pattern} {path}");
        }
    }

    #[test]
    fn shards_count_themselves() {
        let lacks =
            |files: &[&str]| lacks_shards(&files.iter().map(|&file| file.to_owned()).collect::<Vec<_>>());
        assert!(lacks(&["a/train-00000-of-00002.parquet"]));
        assert!(!lacks(&["a/train-00000-of-00002.parquet", "a/train-00001-of-00002.parquet"]));
        assert!(!lacks(&["a/train.parquet"]));
    }
}
