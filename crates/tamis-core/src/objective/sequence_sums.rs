//! The sums of one trajectory, from which loss and metrics are computed.

/// Contributions of one trajectory, each a sum over its unmasked tokens in token order.
///
/// A pure function of the trajectory's own columns and the normalisers: it has the same bits in any
/// micro-batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SequenceSums {
    /// Unmasked tokens.
    pub tokens: u32,
    /// Bounded by the loss's bound: clipped branch active; left out or chosen by covariance; outside the
    /// trust region; GMPO: outside with positive advantage.
    pub clipped: u32,
    /// Bounded by the loss's second bound: dual clip, cap of the ratio; GMPO: outside with negative
    /// advantage.
    pub dual: u32,
    /// Below the low bound with negative advantage.
    pub low: u32,
    /// Above the high bound with positive advantage.
    pub high: u32,
    /// Weighted policy loss: the trajectory's share of the batch's.
    pub policy_loss: f64,
    /// Weighted divergence from the reference, before the coefficient.
    pub kl_loss: f64,
    /// Weighted entropy, before the coefficient.
    pub entropy_loss: f64,
    /// Weighted divergence from the teacher, before the coefficient.
    pub distillation_loss: f64,
    /// Divergence from the reference.
    pub kl: f64,
    /// Entropy in nats; NaN if its column was not given.
    pub entropy: f64,
    /// Divergence from the teacher.
    pub distillation: f64,
    /// Probability of the teacher's candidates under the policy.
    pub policy_mass: f64,
    /// The same under the teacher.
    pub teacher_mass: f64,
    /// `old - logprob`, limited like the ratio.
    pub old_kl: f64,
    /// `ratio - 1 - ln(ratio)`.
    pub old_kl_k3: f64,
    /// Ratio; the trajectory's ratio, once for each token, if the loss has one for all.
    pub ratio: f64,
    /// Largest ratio; -inf without tokens.
    pub ratio_max: f64,
    /// Smallest ratio; +inf without tokens.
    pub ratio_min: f64,
    /// `behaviour - old`; NaN if its column was not given.
    pub behaviour_kl: f64,
    /// `exp(old - behaviour) - 1 - (old - behaviour)`.
    pub behaviour_kl_k3: f64,
    /// The loss's own metric: `Σ|logprob - old|` of `kl_cov`, the mean weight phi of `vespo`.
    pub own: f64,
}

impl SequenceSums {
    pub(crate) const EMPTY: Self = Self {
        tokens: 0,
        clipped: 0,
        dual: 0,
        low: 0,
        high: 0,
        policy_loss: 0.0,
        kl_loss: 0.0,
        entropy_loss: 0.0,
        distillation_loss: 0.0,
        kl: 0.0,
        entropy: 0.0,
        distillation: 0.0,
        policy_mass: 0.0,
        teacher_mass: 0.0,
        old_kl: 0.0,
        old_kl_k3: 0.0,
        ratio: 0.0,
        ratio_max: f64::NEG_INFINITY,
        ratio_min: f64::INFINITY,
        behaviour_kl: 0.0,
        behaviour_kl_k3: 0.0,
        own: 0.0,
    };
}
