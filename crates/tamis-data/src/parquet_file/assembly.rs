//! Assembles rows from columns. Parquet stores each leaf of a row's tree in a separate column. Levels show
//! how far down a value is defined (definition level) and in which list it continues (repetition level).
//!
//! A tree of [`Node`]s follows the schema; its leaves are readers at the current row. Values are counted
//! before they become JSON, so a row cannot exceed its limit, whatever its runs and dictionaries claim.

use std::ops::Range;
use std::sync::Arc;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use parquet::basic::{ConvertedType, LogicalType, Repetition};
use parquet::column::reader::ColumnReader;
use parquet::errors::{ParquetError, Result};
use parquet::record::Field;
use parquet::schema::types::{ColumnDescPtr, Type};
use serde_json::{Map, Value};
use tamis_core::fault;
use tamis_core::figure;

use super::leaf::{Leaf, Place, Scalar, leaf};
use super::pages::{Decoded, VALUE_BYTES, general};
use super::scalar;
use crate::record_error::RowFault;

/// Most bytes of a row, and the size counted for a row beside its values.
const MAX_ROW: u64 = tamis_file::MAX_LINE;
const ROW_BYTES: u64 = 256;

/// A part of a row.
#[derive(Debug)]
enum Node {
    Leaf(usize),
    /// Null unless the leaf's definition level is above this one.
    Optional {
        defined: i16,
        leaf: usize,
        node: Box<Node>,
    },
    Group(Vec<(String, Node)>),
    List {
        defined: i16,
        repeated: i16,
        leaf: usize,
        node: Box<Node>,
    },
    Map {
        defined: i16,
        repeated: i16,
        leaf: usize,
        key: Box<Node>,
        value: Box<Node>,
    },
}

/// The trees of some columns, and the leaves that they read.
#[derive(Debug)]
pub(super) struct Schema {
    columns: Vec<Column>,
    pub(super) leaves: Vec<LeafPlace>,
}

#[derive(Debug)]
struct Column {
    name: String,
    node: Node,
    leaves: Range<usize>,
}

#[derive(Debug)]
pub(super) struct LeafPlace {
    /// Index of the leaf among all leaves of the file.
    pub(super) number: usize,
    /// Path in the objects of a row. Groups that only make a list or a map are left out.
    path: String,
}

impl Schema {
    /// The wanted columns of a file.
    pub(super) fn new(root: &Type, wanted: &dyn Fn(&Type) -> bool) -> Result<Self> {
        let mut builder = Builder { next: 0, leaves: Vec::new() };
        let mut columns = Vec::new();
        for column in root.get_fields() {
            if wanted(column) {
                let first = builder.leaves.len();
                let node = builder.node(column, column.name(), 0, 0)?;
                columns.push(Column {
                    name: column.name().to_owned(),
                    node,
                    leaves: first..builder.leaves.len(),
                });
            } else {
                builder.pass(column);
            }
        }
        Ok(Self { columns, leaves: builder.leaves })
    }
}

struct Builder {
    next: usize,
    leaves: Vec<LeafPlace>,
}

impl Builder {
    fn pass(&mut self, field: &Type) {
        if field.is_primitive() {
            self.next += 1;
        } else {
            field.get_fields().iter().for_each(|child| self.pass(child));
        }
    }

    fn node(&mut self, field: &Type, path: &str, defined: i16, repeated: i16) -> Result<Node> {
        let leaf = self.leaves.len();
        match field.get_basic_info().repetition() {
            Repetition::REQUIRED => self.content(field, path, defined, repeated),
            Repetition::OPTIONAL => {
                let node = Box::new(self.content(field, path, defined + 1, repeated)?);
                Ok(Node::Optional { defined, leaf, node })
            }
            // A repeated field without annotation is a list that always exists.
            Repetition::REPEATED => {
                let node = Box::new(self.content(field, path, defined + 1, repeated + 1)?);
                Ok(Node::List { defined, repeated, leaf, node })
            }
        }
    }

    fn content(&mut self, field: &Type, path: &str, defined: i16, repeated: i16) -> Result<Node> {
        let leaf = self.leaves.len();
        if field.is_primitive() {
            self.leaves.push(LeafPlace { number: self.next, path: path.to_owned() });
            self.next += 1;
            return Ok(Node::Leaf(leaf));
        }
        let kind = field.get_basic_info().converted_type();
        let is_list = kind == ConvertedType::LIST;
        if !is_list && kind != ConvertedType::MAP && kind != ConvertedType::MAP_KEY_VALUE {
            let children = field.get_fields().iter().map(|child| {
                let path = format!("{path}.{}", child.name());
                Ok((child.name().to_owned(), self.node(child, &path, defined, repeated)?))
            });
            let children: Vec<_> = children.collect::<Result<_>>()?;
            if children.is_empty() {
                return Err(general(format!("column `{path}` has a group without fields")));
            }
            return Ok(Node::Group(children));
        }
        let invalid = || general(format!("column `{path}` is not a valid list or map"));
        let [inner] = field.get_fields() else { return Err(invalid()) };
        if inner.get_basic_info().repetition() != Repetition::REPEATED {
            return Err(invalid());
        }
        let (inside, again) = (defined + 1, repeated + 1);
        if is_list {
            let node = if is_element(inner) {
                self.content(inner, path, inside, again)?
            } else {
                self.node(inner.get_fields().first().ok_or_else(invalid)?, path, inside, again)?
            };
            return Ok(Node::List { defined, repeated, leaf, node: Box::new(node) });
        }
        if inner.is_primitive() {
            return Err(invalid());
        }
        match inner.get_fields() {
            // A map without values is a list.
            [key] => {
                let node = Box::new(self.node(key, path, inside, again)?);
                Ok(Node::List { defined, repeated, leaf, node })
            }
            [key, value] => {
                let key = Box::new(self.node(key, path, inside, again)?);
                let value = Box::new(self.node(value, path, inside, again)?);
                Ok(Node::Map { defined, repeated, leaf, key, value })
            }
            _ => Err(invalid()),
        }
    }
}

/// Whether the repeated field of a list is its element, as old writers store it, and not a group around the
/// element: the rules of Parquet's `LogicalTypes.md`.
fn is_element(repeated: &Type) -> bool {
    if repeated.is_primitive() {
        return true;
    }
    match repeated.get_fields() {
        [only] if only.get_basic_info().repetition() == Repetition::REPEATED => false,
        [_] => {
            let kind = repeated.get_basic_info().converted_type();
            kind != ConvertedType::LIST && (repeated.name() == "array" || repeated.name().ends_with("_tuple"))
        }
        _ => true,
    }
}

/// Why there is no row.
#[derive(Debug)]
pub(super) enum RowError {
    /// Only this row is broken.
    Row(RowFault),
    /// The rest of the file cannot be read either.
    File(ParquetError),
}

impl From<ParquetError> for RowError {
    fn from(error: ParquetError) -> Self {
        Self::File(error)
    }
}

/// A row without its place.
#[derive(Debug, Default)]
pub(super) struct AssembledRow {
    pub(super) values: Map<String, Value>,
    pub(super) binary: Vec<String>,
    pub(super) encoded: Map<String, Value>,
}

/// The rows of one row group.
pub(super) struct Assembly {
    schema: Arc<Schema>,
    leaves: Vec<Box<dyn Leaf>>,
    decoded: Arc<Decoded>,
}

impl Assembly {
    pub(super) fn new(
        schema: Arc<Schema>,
        columns: impl Iterator<Item = Result<(ColumnReader, ColumnDescPtr)>>,
        decoded: Arc<Decoded>,
    ) -> Result<Self> {
        let leaves = columns.map(|column| column.map(|(reader, column)| leaf(reader, column)));
        Ok(Self { schema, leaves: leaves.collect::<Result<_>>()?, decoded })
    }

    /// The next row. There must be one.
    pub(super) fn row(&mut self) -> std::result::Result<AssembledRow, RowError> {
        self.decoded.values(ROW_BYTES)?;
        for leaf in &mut self.leaves {
            leaf.start_row()?;
        }
        let mut assembled = AssembledRow::default();
        let mut row = RowReader {
            schema: &self.schema,
            leaves: &mut self.leaves,
            num_bytes: 0,
            text: Bytes::Text,
            binary: &mut assembled.binary,
        };
        for Column { name, node, leaves } in &self.schema.columns {
            let begin: Vec<Place> = row.leaves[leaves.clone()].iter().map(|leaf| leaf.place()).collect();
            row.text = Bytes::Text;
            assembled.values.insert(name.clone(), row.value(node)?);
            if row.text == Bytes::WasText {
                row.text = Bytes::Base64;
                row.leaves[leaves.clone()]
                    .iter_mut()
                    .zip(begin)
                    .for_each(|(leaf, place)| leaf.set_place(place));
                assembled.encoded.insert(name.clone(), row.value(node)?);
            }
        }
        let num_bytes = row.num_bytes;
        self.decoded.values(num_bytes)?;
        Ok(assembled)
    }
}

/// How to treat bytes that the file does not declare as text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bytes {
    /// Text, if they are UTF-8.
    Text,
    /// As `Text`, and some were UTF-8.
    WasText,
    Base64,
}

struct RowReader<'row> {
    schema: &'row Schema,
    leaves: &'row mut Vec<Box<dyn Leaf>>,
    num_bytes: u64,
    text: Bytes,
    binary: &'row mut Vec<String>,
}

impl RowReader<'_> {
    fn leaf(&mut self, leaf: usize) -> Result<&mut dyn Leaf> {
        match self.leaves.get_mut(leaf) {
            Some(leaf) => Ok(&mut **leaf),
            None => Err(general("a column is missing".to_owned())),
        }
    }

    fn count(&mut self, bytes: u64) -> Result<()> {
        self.num_bytes = self.num_bytes.saturating_add(bytes);
        if self.num_bytes > MAX_ROW {
            return Err(general(format!("the next row takes more than {}", figure::bytes(MAX_ROW))));
        }
        Ok(())
    }

    fn value(&mut self, node: &Node) -> std::result::Result<Value, RowError> {
        match node {
            Node::Leaf(leaf) => self.scalar(*leaf),
            Node::Optional { defined, leaf, node } => {
                if self.leaf(*leaf)?.definition() > *defined {
                    self.value(node)
                } else {
                    self.pass(node)?;
                    Ok(Value::Null)
                }
            }
            Node::Group(children) => {
                let children = children.iter().map(|(name, child)| Ok((name.clone(), self.value(child)?)));
                children.collect::<std::result::Result<Map<_, _>, RowError>>().map(Value::Object)
            }
            Node::List { defined, repeated, leaf, node } => {
                let mut values = Vec::new();
                self.each(*leaf, *defined, *repeated, &mut |row, is_there| {
                    if is_there {
                        values.push(row.value(node)?);
                    } else {
                        row.pass(node)?;
                    }
                    Ok(())
                })?;
                Ok(Value::Array(values))
            }
            Node::Map { defined, repeated, leaf, key, value } => {
                let mut values = Map::new();
                self.each(*leaf, *defined, *repeated, &mut |row, is_there| {
                    if !is_there {
                        row.pass(key)?;
                        row.pass(value)?;
                        return Ok(());
                    }
                    let name = match row.value(key)? {
                        Value::String(text) => text,
                        other => other.to_string(),
                    };
                    values.insert(name, row.value(value)?);
                    Ok(())
                })?;
                Ok(Value::Object(values))
            }
        }
    }

    /// Calls `each` for every member of a list; for an empty list once, without a member.
    fn each(
        &mut self,
        leaf: usize,
        defined: i16,
        repeated: i16,
        member: &mut dyn FnMut(&mut Self, bool) -> std::result::Result<(), RowError>,
    ) -> std::result::Result<(), RowError> {
        loop {
            if self.leaf(leaf)?.definition() <= defined {
                return member(self, false);
            }
            member(self, true)?;
            if self.leaf(leaf)?.repetition() <= repeated {
                return Ok(());
            }
        }
    }

    /// Skips an absent value: one level in each leaf.
    fn pass(&mut self, node: &Node) -> Result<()> {
        match node {
            Node::Leaf(leaf) => {
                self.count(VALUE_BYTES)?;
                self.leaf(*leaf)?.pass();
                Ok(())
            }
            Node::Optional { node, .. } | Node::List { node, .. } => self.pass(node),
            Node::Group(children) => children.iter().try_for_each(|(_, child)| self.pass(child)),
            Node::Map { key, value, .. } => {
                self.pass(key)?;
                self.pass(value)
            }
        }
    }

    fn scalar(&mut self, leaf: usize) -> std::result::Result<Value, RowError> {
        let scalar = self.leaf(leaf)?.take()?;
        let column = self.leaf(leaf)?.column();
        let bytes = match scalar {
            Scalar::Bytes(bytes) => bytes,
            Scalar::Field(field) => {
                self.count(VALUE_BYTES)?;
                return Ok(scalar::of_field(&field, &column));
            }
        };
        self.count(VALUE_BYTES + bytes.len() as u64)?;
        let path = || self.schema.leaves.get(leaf).map(|leaf| leaf.path.clone()).unwrap_or_default();
        match column.converted_type() {
            ConvertedType::UTF8 | ConvertedType::ENUM | ConvertedType::JSON => {
                let text = std::str::from_utf8(bytes.data()).map_err(|_| {
                    RowError::Row(
                        fault!(
                            "column `{column}` holds bytes that are not UTF-8, although the file declares \
                        text",
                            column = path()
                        )
                        .into(),
                    )
                })?;
                if column.converted_type() != ConvertedType::JSON {
                    return Ok(Value::from(text));
                }
                // Each value in the JSON text counts as a value of the row.
                let num_values = text.bytes().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count();
                self.count(VALUE_BYTES * num_values as u64)?;
                serde_json::from_str(text).map_err(|error| {
                    RowError::Row(fault!("column `{column}` holds invalid JSON, although the file declares JSON ({error}); write the \
                        column as \
             text if it is", column = path()).into())
                })
            }
            ConvertedType::BSON | ConvertedType::NONE
                if column.logical_type_ref() != Some(&LogicalType::Float16) =>
            {
                match std::str::from_utf8(bytes.data()) {
                    Ok(text) if self.text != Bytes::Base64 => {
                        self.text = Bytes::WasText;
                        return Ok(Value::from(text));
                    }
                    Err(_) => {
                        let path = path();
                        if !self.binary.contains(&path) {
                            self.binary.push(path);
                        }
                    }
                    Ok(_) => {}
                }
                Ok(Value::from(BASE64_STANDARD.encode(bytes.data())))
            }
            _ => Ok(scalar::of_field(&Field::convert_byte_array(&column, bytes)?, &column)),
        }
    }
}
