//! The text of a configuration file.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use super::followers;
use crate::diagnostic::{Diagnostic, Problem};
use crate::path::take_paths_from;
use crate::source::{Origin, Source, SourceKind};
use crate::table;
use crate::tree::Node;
use crate::yaml;

/// Reads a configuration file: a regular one of a bounded size, in UTF-8.
pub fn read_source(path: &Path, kind: SourceKind) -> Result<Arc<Source>, Diagnostic> {
    let bytes = tamis_file::read(path, tamis_file::MAX_CONFIGURATION).map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::NotFound => {
                Some("name a YAML file; a relative path is relative to the working directory".to_owned())
            }
            ErrorKind::IsADirectory => Some("name a YAML file in this folder".to_owned()),
            _ => None,
        };
        let similar = (error.kind() == ErrorKind::NotFound).then(|| tamis_file::suggest(path)).flatten();
        let problem =
            Problem::Unreadable { path: path.to_owned(), message: error.to_string(), similar, hint };
        Diagnostic::error(problem, None)
    })?;
    String::from_utf8(bytes).map(|text| Source::new(kind.clone(), text)).map_err(|error| {
        let byte = error.utf8_error().valid_up_to();
        let bytes = error.as_bytes();
        let is_utf16 = bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]);
        let before = bytes.get(..byte).unwrap_or_default();
        let line = before.split(|&byte| byte == b'\n').count();
        let start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |place| place + 1);
        let column = String::from_utf8_lossy(before.get(start..).unwrap_or_default()).chars().count() + 1;
        let text = String::from_utf8_lossy(bytes).into_owned();
        let origin = Origin { source: Source::new(kind, text), line, column, length: 1 };
        let (is, of, note) = if is_utf16 {
            ("UTF-16, not UTF-8".to_owned(), "UTF-16", "")
        } else {
            (format!("not UTF-8: byte {byte} does not belong to a character"), "LATIN1", " if it is Latin-1")
        };
        let hint = format!("save the file as UTF-8 (`iconv -f {of} -t UTF-8`{note})");
        Diagnostic::error(Problem::rule(format!("the file is {is}"), hint), Some(origin))
    })
}

/// Reads a file of ours as a tree, with paths relative to the working directory.
pub fn read_native(path: &Path) -> Option<Node> {
    let source = read_source(path, SourceKind::File(path.into())).ok()?;
    let mut tree = yaml::parse(&source).ok()?;
    followers::release(&mut tree);
    take_paths_from(&mut tree, table::root(), path.parent());
    Some(tree)
}
