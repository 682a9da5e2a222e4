//! TRL's `RepeatSampler` against the sampler. TRL's yields the order of an epoch, cut into batches, each
//! trained on several times.
//!
//! The order itself comes from torch's generator and is taken from the vectors. TRL drops an incomplete last
//! batch. Here the caller decides; this test drops it, to compare.

use serde_json::Value;
use tamis_core::group::PromptId;
use tamis_data::sampler::{PromptOrder, PromptSampler};
use tamis_golden::{cases, numbers};

fn integers(value: &Value) -> Vec<u64> {
    numbers(value).iter().map(|&number| number as u64).collect()
}

#[test]
fn trl_repeat_sampler() {
    let mut compared = 0;
    for case in cases("trl_repeat_sampler") {
        let number = |field: &str| case["params"][field].as_u64().unwrap() as usize;
        let (members, batch_size, repeats) =
            (number("mini_repeat_count"), number("batch_size"), number("repeat_count"));
        let in_order: Vec<u64> = (0..number("num_samples") as u64).collect();
        for (epoch, expected) in case["outputs"]["epochs"].as_array().unwrap().iter().enumerate() {
            let permutation = &case["outputs"]["permutation"][epoch];
            let ids = if permutation.is_array() { integers(permutation) } else { in_order.clone() };
            let mut sorted = ids.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, in_order, "{}: an epoch holds every prompt once", case["name"]);
            let mut sampler =
                PromptSampler::new(ids.into_iter().map(PromptId).collect(), PromptOrder::Sequential);
            let mut yielded = Vec::new();
            loop {
                let drawn = sampler.draw(batch_size);
                if drawn.prompts.len() == batch_size {
                    for _ in 0..repeats {
                        yielded.extend(drawn.prompts.iter().flat_map(|id| vec![id.0; members]));
                    }
                }
                if drawn.exhausted {
                    break;
                }
            }
            assert_eq!(yielded, integers(expected), "{} epoch {epoch}", case["name"]);
            assert_eq!(yielded.len() as u64, case["outputs"]["len"].as_u64().unwrap(), "{}", case["name"]);
            compared += 1;
        }
    }
    println!("trl_repeat_sampler: {compared} epochs compared");
    assert!(compared > 0);
}
