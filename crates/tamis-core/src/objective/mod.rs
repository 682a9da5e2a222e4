//! The objective: policy loss, KL and entropy as one value and one derivative per token.
