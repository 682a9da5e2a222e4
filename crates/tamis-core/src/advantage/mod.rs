//! Advantages: how much better than its group a trajectory did.
