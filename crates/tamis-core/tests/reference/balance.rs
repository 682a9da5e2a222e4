//! verl's balancing of sequence lengths over ranks and micro-batches.

use serde_json::Value;
use tamis_core::balance::{Arrangement, Cost, Imbalance, Order, greedy, karmarkar_karp, micro_batches};
use tamis_golden::{cases, numbers};

use crate::{Tally, close, lengths, name, number, tolerance};

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
    let mut tally = Tally::new("verl_seqlen_balance");
    for case in cases("verl_seqlen_balance") {
        let (params, outputs, lengths) = (&case["params"], &case["outputs"], lengths(&case));
        if params["function"] == "rearrange_micro_batches" {
            let arrangement = if params["use_dynamic_bsz_balance"].as_bool().unwrap() {
                Arrangement::SmallAtEnds
            } else {
                Arrangement::AsFound
            };
            let limit = number(&params["max_token_len"]) as usize;
            let found = micro_batches(&lengths, limit, 1, Cost::VERL, arrangement).unwrap();
            assert_eq!(found, parts(&outputs["micro_batch_indices"]), "{}", name(&case));
            let sums: Vec<usize> =
                found.iter().map(|part| part.iter().map(|&item| lengths[item]).sum()).collect();
            assert_eq!(sums, integers(&outputs["sums"]), "{}", name(&case));
            tally.ran += 1;
            continue;
        }
        let cost = match params["values_are"].as_str().unwrap() {
            "lengths" => Cost::Tokens,
            "24576*L+L^2" => Cost::VERL,
            other => panic!("values {other}"),
        };
        let costs: Vec<u64> = lengths.iter().map(|&length| cost.of(length)).collect();
        let values: Vec<u64> =
            outputs["values"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap()).collect();
        assert_eq!(costs, values, "{}", name(&case));
        let (k, equal_size) = (number(&params["k"]) as usize, params["equal_size"].as_bool().unwrap());
        let found = karmarkar_karp(&costs, k, equal_size).unwrap();
        // Parts and their order; within a part indices are ascending here, as verl's second function has
        // them.
        assert_eq!(found, ascending(parts(&outputs["karmarkar_karp"]["partitions"])), "{}", name(&case));
        assert_eq!(found, parts(&outputs["get_seqlen_balanced_partitions"]["partitions"]), "{}", name(&case));
        assert_eq!(
            greedy(&costs, k, equal_size, Order::Given).unwrap(),
            parts(&outputs["greedy_partition"]["partitions"]),
            "{}",
            name(&case)
        );
        for (metric, actual) in Imbalance::of(&lengths, &found).named() {
            close(&case, metric, &[actual], &[number(&outputs["unbalance"][metric])], tolerance(&case));
        }
        tally.ran += 1;
    }
    tally.finish();
}
