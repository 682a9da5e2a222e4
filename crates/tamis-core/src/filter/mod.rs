//! Filters: which groups carry signal.
