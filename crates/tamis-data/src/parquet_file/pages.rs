//! Pages of a Parquet column, within limits. A page of a few bytes may decode to gigabytes: a run repeats a
//! value any number of times, and a header claims any size. This module checks what the library would
//! allocate or decode at once: the size of a page, the number of values in its dictionary, and the number of
//! values of one row.

use std::fs::File;
use std::io::{BufReader, Read as _, Seek as _, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parquet::basic::{Compression, Encoding, PageType, Type as Physical};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::{ColumnReader, get_column_reader};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::ColumnDescPtr;
use tamis_core::figure;

use super::compact::Compact;
use super::delta;

/// Size counted for each value, beside its own bytes.
pub(crate) const VALUE_BYTES: u64 = 8;
/// Size counted for each row, beside its values.
const ROW_BYTES: u64 = 256;
/// Most values of one row in one column: their counted size is that of the longest line of JSON lines.
const MAX_VALUES: u64 = tamis_file::MAX_LINE / VALUE_BYTES;
/// Most values (or groups of eight) in a run of levels: the library keeps 32 bits of their number.
const MAX_RUN: u64 = u32::MAX as u64 / 8;
/// Bytes that may be decoded from any file, however small.
const ALWAYS_DECODED: u64 = 256 << 20;
/// Limits on decoded pages and rows, as multiples of the file's length. Real data that repeats itself stays
/// below a hundred.
const PAGES_PER_BYTE: u64 = 64;
const ROWS_PER_BYTE: u64 = 1024;

/// Bytes decoded of one file so far, and their limits.
#[derive(Debug)]
pub(crate) struct Decoded {
    file_length: u64,
    pages: AtomicU64,
    rows: AtomicU64,
}

impl Decoded {
    pub(crate) fn new(file_length: u64) -> Self {
        Self { file_length, pages: AtomicU64::new(0), rows: AtomicU64::new(0) }
    }

    fn limit(&self, per_byte: u64) -> u64 {
        ALWAYS_DECODED.saturating_add(self.file_length.saturating_mul(per_byte))
    }

    fn refuse(&self, what: &str, limit: u64) -> ParquetError {
        general(format!(
            "its {} unpack to more than {} of {what}, which is implausible; if it is correct, write the rows as JSON lines",
            figure::bytes(self.file_length),
            figure::bytes(limit)
        ))
    }

    pub(super) fn page(&self, bytes: u64) -> Result<()> {
        let limit = self.limit(PAGES_PER_BYTE);
        let before = self.pages.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > limit { Err(self.refuse("pages", limit)) } else { Ok(()) }
    }

    /// Counts what was decoded into rows.
    pub(crate) fn values(&self, bytes: u64) -> Result<()> {
        let limit = self.limit(ROWS_PER_BYTE);
        let before = self.rows.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > limit { Err(self.refuse("rows", limit)) } else { Ok(()) }
    }

    /// Refuses more rows than fit, before memory for them is allocated.
    pub(crate) fn check_rows(&self, num_rows: u64) -> Result<()> {
        let limit = self.limit(ROWS_PER_BYTE);
        if num_rows.saturating_mul(ROW_BYTES) > limit {
            return Err(general(format!(
                "it claims {num_rows} rows in {}, which is implausible; if it is correct, write the rows as JSON lines",
                figure::bytes(self.file_length)
            )));
        }
        Ok(())
    }
}

pub(crate) fn column_reader(
    reader: &SerializedFileReader<File>,
    file: &File,
    group: usize,
    column: usize,
    decoded: &Arc<Decoded>,
) -> Result<ColumnReader> {
    let row_group = reader.get_row_group(group)?;
    let metadata = row_group.metadata().column(column);
    let descriptor = metadata.column_descr_ptr();
    let (start, length) = metadata.byte_range();
    let pages = BoundedPages {
        inner: row_group.get_column_page_reader(column)?,
        file: file.try_clone()?,
        next: start,
        end: start.saturating_add(length),
        compression: metadata.compression(),
        column: descriptor.clone(),
        row: RowLength::default(),
        decoded: decoded.clone(),
    };
    Ok(get_column_reader(descriptor, Box::new(pages)))
}

struct BoundedPages {
    inner: Box<dyn PageReader>,
    file: File,
    /// Offset of the next page's header, and the end of the last page.
    next: u64,
    end: u64,
    compression: Compression,
    column: ColumnDescPtr,
    row: RowLength,
    decoded: Arc<Decoded>,
}

/// Sizes from the header of a page.
struct PageSize {
    begins: u64,
    compressed: u64,
    uncompressed: u64,
    /// Bytes of its levels, if they precede the compressed part.
    levels: u64,
    is_compressed: bool,
}

impl BoundedPages {
    fn read_from(&self, start: u64) -> Result<BufReader<File>> {
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(start))?;
        Ok(BufReader::new(file))
    }

    /// Reads the header of the next page, and moves past the page; `None` if there is none.
    fn pass_header(&mut self) -> Result<Option<PageSize>> {
        if self.next >= self.end {
            return Ok(None);
        }
        let mut header = Compact::new(self.read_from(self.next)?, self.decoded.file_length);
        let broken =
            |detail: &dyn std::fmt::Display| general(format!("a page has no valid header: {detail}"));
        let fields = header.integers().map_err(|error| broken(&error))?;
        // If a field occurs twice, the library uses the last.
        let inner =
            |numbers: [i16; 2]| fields.iter().rfind(|(field, _)| *field == numbers).map(|(_, value)| *value);
        let field = |number: i16| inner([0, number]);
        if field(1) == Some(PageType::INDEX_PAGE as i64) {
            return Err(general("it has pages of an index among its data".to_owned()));
        }
        let size = |number: i16| field(number).and_then(|size| u64::try_from(size).ok());
        let (Some(uncompressed), Some(compressed)) = (size(2), size(3)) else {
            return Err(broken(&"it has no size"));
        };
        let begins = self.next + header.num_read;
        self.next = begins.saturating_add(compressed);
        if self.next > self.decoded.file_length {
            return Err(broken(&"the file ends before it"));
        }
        // In version 2 of data pages, the levels precede the compressed part, and compression may be off.
        let levels = [5, 6].map(|number| inner([8, number]).unwrap_or(0));
        let levels = levels.iter().map(|length| u64::try_from(*length).unwrap_or(0)).sum::<u64>();
        let is_compressed = inner([8, 7]) != Some(0);
        Ok(Some(PageSize { begins, compressed, uncompressed, levels, is_compressed }))
    }

    fn check_size(&self, page: &PageSize) -> Result<()> {
        self.decoded.page(page.uncompressed)?;
        let compressed = || {
            let compressed = self.read_from(page.begins.saturating_add(page.levels))?;
            Ok::<_, ParquetError>(compressed.take(page.compressed.saturating_sub(page.levels)))
        };
        let length = page.uncompressed.saturating_sub(page.levels);
        match self.compression {
            // A page of nulls has no values, and is not decompressed.
            _ if !page.is_compressed || length == 0 => {}
            // The library does not stop at the size that the header names.
            Compression::GZIP(_) => {
                let mut unpacked = flate2::read::MultiGzDecoder::new(compressed()?).take(length + 1);
                if std::io::copy(&mut unpacked, &mut std::io::sink())? > length {
                    return Err(general("a page is larger than its header says".to_owned()));
                }
            }
            Compression::LZ4 => {
                let mut magic = Vec::new();
                compressed()?.take(4).read_to_end(&mut magic)?;
                if magic == [0x04, 0x22, 0x4d, 0x18] {
                    return Err(general(
                        "its lz4 uses the frame format of whole files, which Parquet does not allow; write it again with snappy"
                            .to_owned(),
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn check_page(&mut self, page: &Page) -> Result<()> {
        let bytes = page.buffer();
        let num_values = u64::from(page.num_values());
        match page {
            Page::DictionaryPage { .. } => {
                let width = match self.column.physical_type() {
                    Physical::BOOLEAN => 0,
                    Physical::INT32 | Physical::FLOAT | Physical::BYTE_ARRAY => 4,
                    Physical::INT64 | Physical::DOUBLE => 8,
                    Physical::INT96 => 12,
                    Physical::FIXED_LEN_BYTE_ARRAY => u64::try_from(self.column.type_length()).unwrap_or(0),
                };
                let num_bytes = bytes.len() as u64;
                let fits = num_bytes.checked_div(width).unwrap_or(8 * num_bytes + 1);
                if num_values > fits {
                    return Err(general(format!(
                        "a dictionary of {} bytes claims {num_values} values",
                        bytes.len()
                    )));
                }
                Ok(())
            }
            Page::DataPage { encoding, def_level_encoding, rep_level_encoding, .. } => {
                let mut rest = &bytes[..];
                if self.column.max_rep_level() > 0 {
                    if *rep_level_encoding == Encoding::RLE {
                        let levels = sized(&mut rest)?;
                        self.row.add(levels, num_values, &self.column)?;
                    } else {
                        return Err(general(
                            "it has levels in an encoding that Parquet no longer allows".to_owned(),
                        ));
                    }
                }
                if self.column.max_def_level() > 0 && *def_level_encoding == Encoding::RLE {
                    sized(&mut rest)?;
                }
                delta::check(*encoding, rest, num_values, &self.decoded)
            }
            Page::DataPageV2 { encoding, def_levels_byte_len, rep_levels_byte_len, .. } => {
                let repetitions = usize::try_from(*rep_levels_byte_len).unwrap_or(usize::MAX);
                let definitions = usize::try_from(*def_levels_byte_len).unwrap_or(usize::MAX);
                let cut = || general("a page ends before its levels do".to_owned());
                let (levels, rest) = bytes.split_at_checked(repetitions).ok_or_else(cut)?;
                let (_, rest) = rest.split_at_checked(definitions).ok_or_else(cut)?;
                if self.column.max_rep_level() > 0 {
                    self.row.add(levels, num_values, &self.column)?;
                }
                delta::check(*encoding, rest, num_values, &self.decoded)
            }
        }
    }
}

/// Number of values so far of the row at the end of the last page.
#[derive(Default)]
pub(super) struct RowLength(u64);

impl RowLength {
    /// Refuses a row of too many values; a repetition level of 0 begins a row.
    pub(super) fn add(&mut self, levels: &[u8], num_values: u64, column: &ColumnDescPtr) -> Result<()> {
        let width = 16 - column.max_rep_level().leading_zeros();
        let mut left = num_values;
        let mut rest = levels;
        while left > 0 {
            let Some(header) = delta::varint(&mut rest) else { break };
            if header >> 1 > MAX_RUN {
                return Err(general("a run of levels is longer than any page".to_owned()));
            }
            let mut count = |value: u64, count: u64| {
                let count = count.min(left);
                left -= count;
                // A run may be empty, and bits after the last value belong to no row.
                if count > 0 {
                    self.0 = if value > 0 { self.0 + count } else { 1 };
                }
                self.0
            };
            let mut longest = 0;
            if header & 1 == 0 {
                let length = width.div_ceil(8) as usize;
                let Some((value, behind)) = rest.split_at_checked(length) else { break };
                longest =
                    count(value.iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte)), header >> 1);
                rest = behind;
            } else {
                let length =
                    usize::try_from((header >> 1).saturating_mul(u64::from(width))).unwrap_or(usize::MAX);
                let (packed, behind) = rest.split_at_checked(length).unwrap_or((rest, &[]));
                for place in 0..packed.len() as u64 * 8 / u64::from(width) {
                    longest = longest.max(count(delta::bits(packed, place * u64::from(width), width), 1));
                }
                rest = behind;
            }
            if longest > MAX_VALUES {
                return Err(general(format!(
                    "a row has more than {MAX_VALUES} values in column `{}`",
                    column.path().string()
                )));
            }
        }
        Ok(())
    }
}

/// Takes levels that are preceded by their length.
fn sized<'page>(rest: &mut &'page [u8]) -> Result<&'page [u8]> {
    let cut = || general("a page ends before its levels do".to_owned());
    let (length, behind) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
    let (levels, behind) = behind.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(cut)?;
    *rest = behind;
    Ok(levels)
}

impl PageReader for BoundedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        if let Some(size) = self.pass_header()? {
            self.check_size(&size)?;
        }
        let page = self.inner.get_next_page()?;
        if let Some(page) = &page {
            self.check_page(page)?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.inner.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pass_header()?;
        self.inner.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.inner.at_record_boundary()
    }
}

impl Iterator for BoundedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

pub(crate) fn general(detail: String) -> ParquetError {
    ParquetError::General(detail)
}
