//! Rotary position embedding (Su et al. 2021), halves rotated as Hugging Face does, with Llama 3's frequency
//! scaling.

use crate::config::TransformerConfig;
use crate::simd::multiversion;

/// Cosines and sines for positions from zero, grown on demand.
#[derive(Debug, Clone)]
pub(crate) struct Rotary {
    frequencies: Vec<f32>,
    /// `[position][cos: head_dim / 2, sin: head_dim / 2]`.
    table: Vec<f32>,
}

/// Cosines and sines of a position, each half as long as a head.
#[derive(Clone, Copy)]
pub(crate) struct Angles<'a> {
    cosines: &'a [f32],
    sines: &'a [f32],
}

impl Rotary {
    pub(crate) fn new(config: &TransformerConfig) -> Self {
        let theta = config.rope_theta as f32;
        let frequencies = (0..config.head_dim / 2)
            .map(|i| {
                let frequency = 1.0 / theta.powf(2.0 * i as f32 / config.head_dim as f32);
                let Some(scaling) = config.rope_scaling else { return frequency };
                let wavelength = std::f64::consts::TAU / f64::from(frequency);
                let context = scaling.original_max_position_embeddings as f64;
                let slow = f64::from(frequency) / scaling.factor;
                let scaled = if wavelength < context / scaling.high_freq_factor {
                    f64::from(frequency)
                } else if wavelength > context / scaling.low_freq_factor {
                    slow
                } else {
                    let smooth = (context / wavelength - scaling.low_freq_factor)
                        / (scaling.high_freq_factor - scaling.low_freq_factor);
                    (1.0 - smooth) * slow + smooth * f64::from(frequency)
                };
                scaled as f32
            })
            .collect();
        Self { frequencies, table: Vec::new() }
    }

    pub(crate) fn reach(&mut self, count: usize) {
        let width = 2 * self.frequencies.len();
        for position in self.table.len() / width..count {
            let angles = self.frequencies.iter().map(|&frequency| position as f32 * frequency);
            self.table.extend(angles.clone().map(|angle| f64::from(angle).cos() as f32));
            self.table.extend(angles.map(|angle| f64::from(angle).sin() as f32));
        }
    }

    /// Angles of a position. [`Self::reach`] must have been called for it.
    pub(crate) fn at(&self, position: usize) -> Angles<'_> {
        let half = self.frequencies.len();
        let (cosines, sines) = self.table[position * 2 * half..][..2 * half].split_at(half);
        Angles { cosines, sines }
    }
}

multiversion! {
    /// Rotates one head in place by the angles of a position.
    fn rotate<F>(head: &mut [f32], angles: Angles) {
        let Angles { cosines, sines } = angles;
        let (first, second) = head.split_at_mut(cosines.len());
        for (((a, b), &cos), &sin) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
            let (x, y) = (*a, *b);
            *a = F::fma(x, cos, -(y * sin));
            *b = F::fma(y, cos, x * sin);
        }
    }
}

multiversion! {
    /// One head, rotated by the angles of a position as [`rotate`] does, into `out`.
    fn rotate_into<F>(head: &[f32], angles: Angles, out: &mut [f32]) {
        let Angles { cosines, sines } = angles;
        let half = cosines.len();
        let ((first, second), (low, high)) = (head.split_at(half), out.split_at_mut(half));
        let angles = cosines.iter().zip(sines);
        for (((&x, &y), (a, b)), (&cos, &sin)) in first.iter().zip(second).zip(low.iter_mut().zip(high)).zip(angles) {
            *a = F::fma(x, cos, -(y * sin));
            *b = F::fma(y, cos, x * sin);
        }
    }
}

multiversion! {
    /// One head, rotated back, into `out`.
    fn rotate_back<F>(head: &[f32], angles: Angles, out: &mut [f32]) {
        let Angles { cosines, sines } = angles;
        let half = cosines.len();
        let ((first, second), (low, high)) = (head.split_at(half), out.split_at_mut(half));
        let angles = cosines.iter().zip(sines);
        for (((&x, &y), (a, b)), (&cos, &sin)) in first.iter().zip(second).zip(low.iter_mut().zip(high)).zip(angles) {
            *a = F::fma(x, cos, y * sin);
            *b = F::fma(y, cos, -(x * sin));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Architecture;
    use crate::simd::SimdLevel;

    #[test]
    fn rotation_by_hand_and_back() {
        let mut config = TransformerConfig::new(Architecture::Llama, 8, 8, 8, 1, 2, 16);
        config.rope_theta = 100.0;
        let mut rotary = Rotary::new(&config);
        rotary.reach(4);
        let angles = rotary.at(3);
        let Angles { cosines, sines } = angles;
        // head_dim 4: frequencies 1 and 1/10.
        assert!((cosines[1] - 0.3f32.cos()).abs() < 1e-7 && (sines[0] - 3.0f32.sin()).abs() < 1e-7);
        let mut head = [1.0, 2.0, 3.0, 4.0];
        rotate(SimdLevel::detect(), &mut head, angles);
        assert!((head[0] - (3.0f32.cos() - 3.0 * 3.0f32.sin())).abs() < 1e-6);
        assert!((head[3] - (4.0 * 0.3f32.cos() + 2.0 * 0.3f32.sin())).abs() < 1e-6);
        let mut again = [0.0; 4];
        rotate_into(SimdLevel::detect(), &[1.0, 2.0, 3.0, 4.0], angles, &mut again);
        assert_eq!(head.map(f32::to_bits), again.map(f32::to_bits));
        rotate_back(SimdLevel::detect(), &again, angles, &mut head);
        assert!(head.iter().zip([1.0, 2.0, 3.0, 4.0]).all(|(a, b)| (a - b).abs() < 1e-6), "{head:?}");
    }
}
