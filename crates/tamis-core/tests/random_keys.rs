//! Keyed random numbers, which generators in other languages reproduce.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use tamis_core::random::{Key, Purpose};

/// Numbers against which generators in other languages are tested.
#[test]
fn numbers_for_other_languages() {
    let keys = [
        Key::from_bits(0),
        Key::from_bits(u64::MAX),
        Key::new(0, Purpose::Rollout).with(0).with(0),
        Key::new(42, Purpose::Rollout).with(1).with(7).with(3),
        Key::new(u64::MAX, Purpose::Validation).with(1 << 40),
    ];
    let counters = [0, 1, 2, 511, u64::from(u32::MAX), 1 << 32, (1 << 53) + 1, i64::MAX as u64];
    let row = |key: Key, counter: u64| serde_json::json!({"key": key.to_string(), "counter": counter, "uniform": key.uniform(counter)});
    let rows: Vec<String> =
        keys.iter().flat_map(|&key| counters.map(|counter| row(key, counter).to_string())).collect();
    let expected = format!("[\n{}\n]\n", rows.join(",\n"));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/tests/random_keys.json");
    if std::env::var_os("TAMIS_REGENERATE").is_some() {
        std::fs::write(path, &expected).expect("written");
    }
    assert_eq!(std::fs::read_to_string(path).expect("read"), expected);
    assert!(keys.iter().all(|key| Key::from_bits(key.to_bits()) == *key));
}
