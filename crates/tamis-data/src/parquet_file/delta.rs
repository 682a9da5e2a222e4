//! Pages in Parquet's delta encodings, checked before they are decoded.
//!
//! The library allocates as many lengths as such a page claims, and copies the beginning of each text from
//! the previous one. A text that all others continue is written once and decoded as often as there are
//! values.

use parquet::basic::Encoding;
use parquet::errors::Result;

use super::pages::{Decoded, general};

/// Refuses a page whose values would not fit.
pub(super) fn check(encoding: Encoding, values: &[u8], num_values: u64, decoded: &Decoded) -> Result<()> {
    match encoding {
        Encoding::DELTA_BINARY_PACKED => Block::new(values, num_values).map(drop),
        Encoding::DELTA_LENGTH_BYTE_ARRAY => lengths(values, num_values, &mut |_| Ok(())).map(drop),
        Encoding::DELTA_BYTE_ARRAY => {
            // A prefix is at most as long as the previous text; the library checks that.
            let behind = lengths(values, num_values, &mut |prefix| decoded.page(prefix))?;
            lengths(behind, num_values, &mut |_| Ok(())).map(drop)
        }
        _ => Ok(()),
    }
}

/// The header of numbers that are packed as differences.
struct Block<'page> {
    rest: &'page [u8],
    num_miniblocks: usize,
    miniblock_size: u64,
    num_values: u64,
    first: i64,
}

impl<'page> Block<'page> {
    fn new(mut rest: &'page [u8], most: u64) -> Result<Self> {
        let broken = || general("a page in a delta encoding has no valid head".to_owned());
        let mut next = || varint(&mut rest).ok_or_else(broken);
        let (size, num_miniblocks, num_values, first) = (next()?, next()?, next()?, next()?);
        if !(1..=1 << 20).contains(&size) || !(1..=1 << 12).contains(&num_miniblocks) {
            return Err(broken());
        }
        if num_values > most {
            return Err(general(format!("a page of {most} values claims {num_values} of them")));
        }
        let first = (first >> 1) as i64 ^ -((first & 1) as i64);
        let miniblock_size = size / num_miniblocks;
        Ok(Self { rest, num_miniblocks: num_miniblocks as usize, miniblock_size, num_values, first })
    }
}

/// Passes packed lengths to a callback one by one. Returns the bytes after them.
fn lengths<'page>(
    values: &'page [u8],
    most: u64,
    each: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<&'page [u8]> {
    let Block { mut rest, num_miniblocks, miniblock_size, num_values, first } = Block::new(values, most)?;
    let cut = || general("a page in a delta encoding ends too early".to_owned());
    let mut value = first;
    let mut left = num_values;
    let mut take = |value: i64, left: &mut u64| {
        *left -= 1;
        each(u64::try_from(value).map_err(|_| general("a length is below 0".to_owned()))?)
    };
    if left > 0 {
        take(value, &mut left)?;
    }
    while left > 0 {
        let smallest = varint(&mut rest).ok_or_else(cut)?;
        let smallest = (smallest >> 1) as i64 ^ -((smallest & 1) as i64);
        let (widths, behind) = rest.split_at_checked(num_miniblocks).ok_or_else(cut)?;
        rest = behind;
        for &width in widths {
            if left == 0 {
                break;
            }
            let width = u32::from(width.min(64));
            let length = usize::try_from(miniblock_size * u64::from(width)).unwrap_or(usize::MAX).div_ceil(8);
            // The last block may end right after its values.
            let (packed, behind) = rest.split_at_checked(length).unwrap_or((rest, &[]));
            rest = behind;
            for place in 0..miniblock_size.min(left) {
                let difference = bits(packed, place * u64::from(width), width) as i64;
                // Lengths have 32 bits, and so do their differences.
                value = i64::from(value.wrapping_add(smallest).wrapping_add(difference) as i32);
                take(value, &mut left)?;
            }
        }
    }
    Ok(rest)
}

/// Reads a variable-length number and removes it from the front.
pub(super) fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, behind) = rest.split_first()?;
        *rest = behind;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The `width` bits from bit `from` on, the lowest first. Bits beyond the end are 0.
pub(super) fn bits(bytes: &[u8], from: u64, width: u32) -> u64 {
    (0..u64::from(width)).fold(0, |value, bit| {
        let at = from + bit;
        let byte = usize::try_from(at / 8).ok().and_then(|at| bytes.get(at)).copied().unwrap_or(0);
        value | u64::from(byte >> (at % 8) & 1) << bit
    })
}
