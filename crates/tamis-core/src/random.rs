//! Keyed randomness: every draw is a pure function of its purpose and coordinates.
//!
//! A [`Key`] is folded from a seed, a purpose and the coordinates of the draw; [`Key::block`] is
//! Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) at a counter.
//! Nothing depends on the order in which draws are made.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Purpose of a draw; two purposes never share numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Purpose {
    /// Initial weights.
    Init = 1,
    /// Order of prompts in an epoch.
    Shuffle = 2,
    /// Tokens of a training trajectory.
    Rollout = 3,
    /// Tokens of a validation completion.
    Validation = 4,
    /// Instances of a procedural task.
    Task = 5,
    /// Order of supervised examples.
    Sft = 6,
    /// Order of trajectories in a mini-batch.
    MiniBatch = 7,
    /// Resampling in statistics.
    Bootstrap = 8,
    /// Choices of an objective: tokens that a loss leaves out, trajectories that a shaping drops.
    Objective = 9,
    /// Order of groups before they are cut into the critic's mini-batches.
    Critic = 10,
    /// Tokens of a completion that a client requests from a server.
    Served = 11,
    /// Levels of an environment.
    Environment = 12,
    /// Choice of the prompts that are generated from.
    Selection = 13,
    /// Choice of the kept groups that are copied if too few were kept.
    Copies = 14,
    /// Choice of the training prompts that are held out.
    HoldOut = 15,
}

/// A 64-bit Philox key folded from a seed and coordinates.
///
/// ```
/// use tamis_core::random::{Key, Purpose};
/// let key = Key::new(42, Purpose::Rollout).with(3).with(7);
/// assert_eq!(key.uniform(0), Key::new(42, Purpose::Rollout).with(3).with(7).uniform(0));
/// assert_ne!(key.uniform(0), key.uniform(1));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Key(u64);

/// Sixteen hexadecimal digits; [`Key::from_str`] reads them back.
impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

/// The text is not a key.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("a key is sixteen hexadecimal digits")]
pub struct KeyError;

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        if text.len() != 16 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(KeyError);
        }
        u64::from_str_radix(text, 16).map(Self).map_err(|_| KeyError)
    }
}

/// Finaliser of `SplitMix64`: a bijection of 64 bits in which every input bit moves every output bit.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Key {
    /// The key of a run seed and a purpose.
    pub fn new(seed: u64, purpose: Purpose) -> Self {
        Self(mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15))).with(purpose as u64)
    }

    /// The key of these 64 bits, as [`Key::to_bits`] gives them.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Its 64 bits, for a generator of random numbers in another language.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The key narrowed by one more coordinate (epoch, prompt id, sample index, ...). The order of
    /// coordinates matters.
    #[must_use]
    pub fn with(self, coordinate: u64) -> Self {
        Self(mix(self.0.rotate_left(23) ^ mix(coordinate.wrapping_add(0x9e37_79b9_7f4a_7c15))))
    }

    /// Four 32-bit words at a counter.
    pub fn block(self, counter: u64) -> [u32; 4] {
        philox4x32([counter as u32, (counter >> 32) as u32, 0, 0], [self.0 as u32, (self.0 >> 32) as u32])
    }

    /// 64 bits at a counter.
    pub fn bits(self, counter: u64) -> u64 {
        let [low, high, ..] = self.block(counter);
        u64::from(low) | (u64::from(high) << 32)
    }

    /// Uniform in `[0, 1)` with 53 bits.
    pub fn uniform(self, counter: u64) -> f64 {
        (self.bits(counter) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform in `0..bound` by multiplication (bias below `bound / 2^64`); 0 if `bound` is 0 or 1.
    pub fn below(self, counter: u64, bound: u64) -> u64 {
        ((u128::from(self.bits(counter)) * u128::from(bound)) >> 64) as u64
    }

    /// A draw from Gamma(shape, 1) for a finite shape above 0 (Marsaglia and Tsang, "A simple method for
    /// generating gamma variables", 2000). It uses this key and those below it, and has no counter.
    pub fn gamma(self, shape: f64) -> f64 {
        if shape < 1.0 {
            return self.with(1).gamma(shape + 1.0) * (1.0 - self.uniform(0)).powf(1.0 / shape);
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        for turn in 0.. {
            let x = self.with(2).normal(turn);
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && (1.0 - self.with(3).uniform(turn)).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return d * v;
            }
        }
        d
    }

    /// Standard normal (Box-Muller).
    pub fn normal(self, counter: u64) -> f64 {
        let [a, b, c, d] = self.block(counter);
        let unit = |low: u32, high: u32| {
            ((u64::from(low) | (u64::from(high) << 32)) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
        };
        (-2.0 * (1.0 - unit(a, b)).ln()).sqrt() * (std::f64::consts::TAU * unit(c, d)).cos()
    }

    /// A permutation of `0..n` (Fisher-Yates).
    pub fn permutation(self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i as u64, i as u64 + 1) as usize);
        }
        order
    }
}

fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let first = u64::from(counter[0]) * 0xd251_1f53;
        let second = u64::from(counter[2]) * 0xcd9e_8d57;
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers published with Random123 (`kat_vectors`, philox4x32 10).
    #[test]
    fn philox_known_answers() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn keys_are_read_as_they_are_written() {
        for key in [Key(0), Key(u64::MAX), Key::new(7, Purpose::Served).with(3)] {
            assert_eq!(key.to_string().parse(), Ok(key));
        }
        assert_eq!(Key(0xab).to_string(), "00000000000000ab");
        for wrong in ["", "0", "+0000000000000ab", "00000000000000abc", "zz000000000000ab"] {
            assert_eq!(wrong.parse::<Key>(), Err(KeyError), "{wrong}");
        }
    }

    #[test]
    fn moments() {
        let key = Key::new(7, Purpose::Task);
        let n = 20_000;
        let uniforms: Vec<f64> = (0..n).map(|i| key.uniform(i)).collect();
        let mean = uniforms.iter().sum::<f64>() / n as f64;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        let normals: Vec<f64> = (0..n).map(|i| key.with(1).normal(i)).collect();
        let variance = normals.iter().map(|x| x * x).sum::<f64>() / n as f64;
        assert!((variance - 1.0).abs() < 0.05, "{variance}");
        assert!((0..n).all(|i| key.below(i, 10) < 10));
    }

    /// Mean and variance of Gamma(shape, 1) are its shape.
    #[test]
    fn gamma_draws_have_their_moments() {
        let n = 20_000;
        for shape in [0.3, 1.0, 4.5] {
            let key = Key::new(5, Purpose::Bootstrap);
            let draws: Vec<f64> = (0..n).map(|draw| key.with(draw).gamma(shape)).collect();
            let mean = draws.iter().sum::<f64>() / n as f64;
            let variance = draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>() / n as f64;
            assert!(draws.iter().all(|&draw| draw >= 0.0));
            assert!((mean / shape - 1.0).abs() < 0.05, "{shape}: {mean}");
            assert!((variance / shape - 1.0).abs() < 0.1, "{shape}: {variance}");
        }
    }

    #[test]
    fn permutations_are_permutations_and_differ_by_key() {
        let key = Key::new(1, Purpose::Shuffle);
        let mut order = key.with(0).permutation(100);
        assert_ne!(order, key.with(1).permutation(100));
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
    }
}
