//! Cyclic redundancy checks of the two polynomials that our files use.
//!
//! [`crc32`] (IEEE 802.3, as in zip and PNG) guards the journal and checkpoints; [`crc32c`]
//! (Castagnoli) is the one of TFRecord framing.

/// CRC-32 (IEEE 802.3, reflected polynomial `0xEDB8_8320`) of some bytes.
///
/// ```
/// assert_eq!(tamis_run::checksum::crc32(b"123456789"), 0xCBF4_3926);
/// ```
pub fn crc32(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// CRC-32C (Castagnoli, reflected polynomial `0x82F6_3B78`) of some bytes.
///
/// ```
/// assert_eq!(tamis_run::checksum::crc32c(b"123456789"), 0xE306_9283);
/// ```
pub fn crc32c(bytes: &[u8]) -> u32 {
    let next = |state: u32, &byte: &u8| (state >> 8) ^ CASTAGNOLI[usize::from(state as u8 ^ byte)];
    !bytes.iter().fold(u32::MAX, next)
}

const CASTAGNOLI: [u32; 256] = table(0x82F6_3B78);

const fn table(polynomial: u32) -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ polynomial } else { value >> 1 };
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published check values; those of CRC-32C are of RFC 3720, appendix B.4.
    #[test]
    fn published_vectors() {
        assert_eq!(crc32(b""), 0);
        assert_eq!(crc32(b"The quick brown fox jumps over the lazy dog"), 0x414F_A339);
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
        assert_eq!(crc32c(&(0..32).collect::<Vec<u8>>()), 0x46DD_794E);
        assert_eq!(crc32c(&(0..32).rev().collect::<Vec<u8>>()), 0x113F_DB5C);
    }
}
