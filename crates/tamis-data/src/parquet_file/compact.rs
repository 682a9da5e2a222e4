//! The compact protocol of Thrift, only as far as needed to check a header before the Parquet library trusts
//! it.

use std::io::{Error, ErrorKind, Read, Result};

/// Most levels of nested structs. Parquet's own have fewer than ten.
const MAX_DEPTH: usize = 32;

/// A reader of one Thrift struct. It counts the bytes that it reads.
pub(super) struct Compact<R> {
    input: R,
    pub(super) num_read: u64,
    /// Most bytes that there can be.
    length: u64,
}

impl<R: Read> Compact<R> {
    pub(super) fn new(input: R, length: u64) -> Self {
        Self { input, num_read: 0, length }
    }

    /// Reads a struct to its end. Returns the integers and booleans among its own fields (`[0, number]`) and
    /// those of the structs in it (`[number, number in it]`).
    pub(super) fn integers(&mut self) -> Result<Vec<([i16; 2], i64)>> {
        let mut found = Vec::new();
        self.fields(MAX_DEPTH, 0, &mut |field, value| found.push((field, value)))?;
        Ok(found)
    }

    fn fields(&mut self, depth: usize, within: i16, integer: &mut dyn FnMut([i16; 2], i64)) -> Result<()> {
        let depth = depth.checked_sub(1).ok_or_else(|| broken("it is nested too deeply"))?;
        let mut field = 0_i16;
        loop {
            let byte = self.byte()?;
            let kind = byte & 0x0f;
            if kind == 0 {
                return Ok(());
            }
            field = match byte >> 4 {
                0 => i16::try_from(self.zigzag()?).map_err(|_| broken("a field has no valid number"))?,
                delta => field.wrapping_add(i16::from(delta)),
            };
            match kind {
                4..=6 => {
                    let value = self.zigzag()?;
                    integer([within, field], value);
                }
                // The kind holds the boolean's value.
                1 | 2 => integer([within, field], i64::from(kind == 1)),
                12 if within == 0 => self.fields(depth, field, integer)?,
                other => self.skip(other, depth)?,
            }
        }
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Result<()> {
        let inside = depth.checked_sub(1).ok_or_else(|| broken("it is nested too deeply"))?;
        match kind {
            1..=3 => self.byte().map(drop),
            4..=6 => self.varint().map(drop),
            7 => self.skip_bytes(8),
            8 => {
                let length = self.varint()?;
                self.skip_bytes(length)
            }
            9 | 10 => {
                let header = self.byte()?;
                let count = if header >> 4 == 15 { self.varint()? } else { u64::from(header >> 4) };
                self.check_count(count)?;
                (0..count).try_for_each(|_| self.skip(header & 0x0f, inside))
            }
            11 => {
                let count = self.varint()?;
                self.check_count(count)?;
                let kinds = if count > 0 { self.byte()? } else { 0 };
                (0..count).try_for_each(|_| {
                    self.skip(kinds >> 4, inside)?;
                    self.skip(kinds & 0x0f, inside)
                })
            }
            12 => self.fields(depth, 0, &mut |_, _| ()),
            _ => Err(broken("a field has no valid type")),
        }
    }

    /// Every member of a list takes at least a byte, so there cannot be more members than bytes left.
    fn check_count(&self, count: u64) -> Result<()> {
        if count > self.length.saturating_sub(self.num_read) {
            return Err(broken("a list has more members than there are bytes"));
        }
        Ok(())
    }

    fn byte(&mut self) -> Result<u8> {
        let mut byte = [0];
        self.input.read_exact(&mut byte)?;
        self.num_read += 1;
        Ok(byte[0])
    }

    fn skip_bytes(&mut self, count: u64) -> Result<()> {
        let skipped = std::io::copy(&mut self.input.by_ref().take(count), &mut std::io::sink())?;
        self.num_read += skipped;
        if skipped < count { Err(broken("it is cut")) } else { Ok(()) }
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(broken("a number is too long"))
    }

    fn zigzag(&mut self) -> Result<i64> {
        self.varint().map(|value| (value >> 1) as i64 ^ -((value & 1) as i64))
    }
}

fn broken(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields by number, and bytes read.
    type Found = (Vec<([i16; 2], i64)>, u64);

    fn integers(bytes: &[u8]) -> std::result::Result<Found, String> {
        let mut compact = Compact::new(bytes, bytes.len() as u64);
        let found = compact.integers().map_err(|error| error.to_string())?;
        Ok((found, compact.num_read))
    }

    #[test]
    fn integers_are_found_between_other_fields() {
        // 1: i32 3; 2: i32 -1; 3: binary of 2; 5: struct { 1: i32 9; 2: list of two i32; 3: true }; 6:
        // i64 150.
        let bytes =
            [0x15, 6, 0x15, 1, 0x18, 2, 7, 7, 0x2c, 0x15, 18, 0x19, 0x25, 2, 4, 0x11, 0, 0x16, 0xac, 2, 0];
        let found = vec![([0, 1], 3), ([0, 2], -1), ([5, 1], 9), ([5, 3], 1), ([0, 6], 150)];
        assert_eq!(integers(&bytes), Ok((found, bytes.len() as u64)));
    }

    #[test]
    fn what_is_not_there_is_not_believed() {
        let printed = |bytes: &[u8]| integers(bytes).unwrap_err();
        assert_eq!(printed(&[0x19, 0xf5, 0xff, 0xff, 3, 2]), "a list has more members than there are bytes");
        assert_eq!(printed(&[0x18, 100, 1]), "it is cut");
        // Structs in structs, and lists in lists.
        assert_eq!(printed(&[0x1c; 100]), "it is nested too deeply");
        assert_eq!(printed(&[0x19; 100]), "it is nested too deeply");
        assert_eq!(
            printed(&[0x15, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
            "a number is too long"
        );
        assert_eq!(printed(&[0x1f]), "a field has no valid type");
    }
}
