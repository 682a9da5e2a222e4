//! verl's balancing of sequence lengths over ranks and micro-batches.

use serde_json::Value;
use tamis_core::balance::karmarkar_karp;
use tamis_golden::numbers;

use crate::{cases, lengths, name, number};

fn integers(value: &Value) -> Vec<usize> {
    numbers(value).iter().map(|&number| number as usize).collect()
}

fn parts(value: &Value) -> Vec<Vec<usize>> {
    value.as_array().unwrap().iter().map(integers).collect()
}

fn ascending(mut parts: Vec<Vec<usize>>) -> Vec<Vec<usize>> {
    for part in &mut parts {
        part.sort_unstable();
    }
    parts
}

#[test]
fn verl_seqlen_balance() {
    for case in cases("verl_seqlen_balance") {
        let (params, outputs) = (&case["params"], &case["outputs"]);
        if params["function"] == "rearrange_micro_batches" {
            // verl's micro-batches are the parts by verl's cost, in another order.
            let workload = |&length: &usize| (24_576 + length as u64) * length as u64;
            let costs: Vec<u64> = lengths(&case).iter().map(workload).collect();
            let mut expected = parts(&outputs["micro_batch_indices"]);
            let mut found = karmarkar_karp(&costs, expected.len(), false).unwrap();
            found.sort();
            expected.sort();
            assert_eq!(found, expected, "{}", name(&case));
            continue;
        }
        let costs: Vec<u64> =
            outputs["values"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap()).collect();
        let (k, equal_size) = (number(&params["k"]) as usize, params["equal_size"].as_bool().unwrap());
        let found = karmarkar_karp(&costs, k, equal_size).unwrap();
        // Parts and their order; within a part indices are ascending here, as in verl's second function.
        assert_eq!(found, ascending(parts(&outputs["karmarkar_karp"]["partitions"])), "{}", name(&case));
        assert_eq!(found, parts(&outputs["get_seqlen_balanced_partitions"]["partitions"]), "{}", name(&case));
    }
}
