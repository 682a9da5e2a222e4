//! Tokens beside those of a sequence: the likeliest at each place, and candidates with their gradient.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, and compares what must be exact")]

use tamis_core::random::{Key, Purpose};
use tamis_model::{
    Architecture, Candidates, Coefficients, Gradients, Model, PassOptions, Sequence, Threads,
    TransformerConfig, Workspace, backward, backward_beside, forward_hold, forward_hold_beside, logits,
    score, score_with_top,
};

mod support;

use support::{assert_near, check_slopes, sequences};

const VOCAB: usize = 23;
const PER_TOKEN: usize = 3;

fn model(architecture: Architecture, tied: bool) -> Model {
    let mut config = TransformerConfig::new(architecture, VOCAB, 12, 20, 2, 2, 32);
    config.tie_word_embeddings = tied;
    config.initializer_range = 0.4;
    Model::init(config, Key::new(5, Purpose::Init)).unwrap()
}

fn draw(salt: u64, len: usize) -> Vec<u32> {
    let key = Key::new(3, Purpose::Task).with(salt);
    (0..len as u64).map(|t| key.below(t, VOCAB as u64) as u32).collect()
}

/// One alone, and a group of three with one prompt.
fn rows() -> Vec<(Vec<u32>, usize)> {
    let member = |salt, len| ([draw(1, 5), draw(salt, len)].concat(), 5);
    vec![(draw(0, 9), 4), member(2, 3), member(3, 1), member(4, 4)]
}

fn candidates(rows: &[(Vec<u32>, usize)]) -> Vec<u32> {
    let scored: usize = rows.iter().map(|(tokens, start)| tokens.len() - start).sum();
    draw(9, scored * PER_TOKEN)
}

fn derivatives(salt: u64, len: usize) -> Vec<f32> {
    let key = Key::new(6, Purpose::Bootstrap).with(salt);
    (0..len as u64).map(|place| key.normal(place) as f32).collect()
}

/// `log_softmax(logits / temperature)` at the place before every scored token.
fn distributions(model: &Model, rows: &[(Vec<u32>, usize)], temperature: f64) -> Vec<Vec<f64>> {
    let (threads, workspace) = (Threads::serial(), &mut Workspace::default());
    let mut found = Vec::new();
    for (tokens, start) in rows {
        let all = logits(&threads, model, workspace, tokens).unwrap();
        for row in all.chunks(VOCAB).take(tokens.len() - 1).skip(start - 1) {
            let z: Vec<f64> = row.iter().map(|&logit| f64::from(logit) / temperature).collect();
            let sum = z.iter().map(|z| z.exp()).sum::<f64>().ln();
            found.push(z.iter().map(|z| z - sum).collect());
        }
    }
    found
}

#[test]
fn the_likeliest_tokens_are_those_of_the_logits() {
    let (threads, workspace) = (Threads::new(2), &mut Workspace::default());
    for (architecture, tied) in [(Architecture::Qwen3, true), (Architecture::Llama, false)] {
        let model = model(architecture, tied);
        let rows = rows();
        for number in [1, 4, VOCAB] {
            let (scores, top) =
                score_with_top(&threads, &model, workspace, &sequences(&rows), 0.8, number).unwrap();
            assert_eq!(scores, score(&threads, &model, workspace, &sequences(&rows), 0.8).unwrap());
            let expected = distributions(&model, &rows, 0.8);
            assert_eq!(top.tokens.len(), expected.len() * number);
            let targets = rows.iter().flat_map(|row| &row.0[row.1..]);
            for ((&rank, &token), row) in top.ranks.iter().zip(targets).zip(&expected) {
                let likelier = row.iter().filter(|&&logprob| logprob > row[token as usize]).count();
                assert_eq!(rank as usize, 1 + likelier);
            }
            let found = top.tokens.chunks(number).zip(top.logprobs.chunks(number));
            for ((tokens, logprobs), row) in found.zip(&expected) {
                let mut sorted = row.clone();
                sorted.sort_by(|one, other| other.total_cmp(one));
                for ((&token, &logprob), wanted) in tokens.iter().zip(logprobs).zip(sorted) {
                    assert!((f64::from(logprob) - wanted).abs() < 1e-5, "{logprob} {wanted}");
                    assert!((row[token as usize] - wanted).abs() < 1e-5);
                }
            }
        }
        for number in [0, VOCAB + 1] {
            let refused = score_with_top(&threads, &model, workspace, &sequences(&rows), 1.0, number);
            assert!(refused.unwrap_err().to_string().contains("likeliest of 23 tokens"));
        }
    }
}

/// Gradient of random derivatives by log-probabilities, entropies and candidates.
fn gradient(model: &Model, threads: &Threads, options: PassOptions) -> (Vec<f32>, Gradients) {
    let (rows, workspace) = (rows(), &mut Workspace::default());
    let others = candidates(&rows);
    let beside = Candidates { per_token: PER_TOKEN, tokens: &others };
    let (scores, found, held) =
        forward_hold_beside(threads, model, workspace, &sequences(&rows), beside, options).unwrap();
    let plain =
        forward_hold(threads, model, &mut Workspace::default(), &sequences(&rows), options).unwrap().0;
    assert_eq!(scores, plain);
    let num_tokens = scores.logprobs.num_values();
    let coefficients =
        Coefficients { logprob: derivatives(0, num_tokens), entropy: Some(derivatives(1, num_tokens)) };
    let mut gradients = Gradients::new(model);
    let by_candidates = derivatives(2, num_tokens * PER_TOKEN);
    backward_beside(threads, model, workspace, held, coefficients, &by_candidates, &mut gradients).unwrap();
    (found, gradients)
}

#[test]
fn candidates_have_their_log_probabilities_and_central_differences() {
    let temperature = 0.9;
    for (architecture, tied) in [(Architecture::Qwen2, true), (Architecture::Qwen3, false)] {
        let model = model(architecture, tied);
        let options = PassOptions { temperature, ..PassOptions::default() };
        let (found, analytic) = gradient(&model, &Threads::serial(), options);
        let rows = rows();
        let others = candidates(&rows);
        let expected = distributions(&model, &rows, f64::from(temperature));
        for (place, (&token, &logprob)) in others.iter().zip(&found).enumerate() {
            let wanted = expected[place / PER_TOKEN][token as usize];
            assert!((f64::from(logprob) - wanted).abs() < 1e-5, "{logprob} {wanted}");
        }
        let targets: Vec<u32> = rows.iter().flat_map(|(tokens, start)| &tokens[*start..]).copied().collect();
        let by_token = (derivatives(0, targets.len()), derivatives(1, targets.len()));
        let by_candidate = derivatives(2, others.len());
        check_slopes(&model, &analytic, |model| {
            let mut sum = 0.0;
            for (t, row) in distributions(model, &rows, f64::from(temperature)).iter().enumerate() {
                sum += f64::from(by_token.0[t]) * row[targets[t] as usize];
                sum -= f64::from(by_token.1[t]) * row.iter().map(|log| log.exp() * log).sum::<f64>();
                for place in t * PER_TOKEN..(t + 1) * PER_TOKEN {
                    sum += f64::from(by_candidate[place]) * row[others[place] as usize];
                }
            }
            sum
        });
        // Neither threads nor what is kept changes a bit.
        let frugal = PassOptions { recompute: true, keep_logits_bytes: 0, ..options };
        for (threads, options) in [(Threads::new(2), options), (Threads::serial(), frugal)] {
            let (other, gradients) = gradient(&model, &threads, options);
            assert_eq!(found, other);
            assert!(gradients.same_bits(&analytic));
        }
    }
}

#[test]
fn a_candidate_that_is_the_token_itself_has_its_gradient() {
    let (threads, workspace) = (Threads::serial(), &mut Workspace::default());
    let (model, rows) = (model(Architecture::Llama, true), rows());
    let options = PassOptions::default();
    let targets: Vec<u32> = rows.iter().flat_map(|(tokens, start)| &tokens[*start..]).copied().collect();
    let beside = Candidates { per_token: 1, tokens: &targets };
    let (scores, found, held) =
        forward_hold_beside(&threads, &model, workspace, &sequences(&rows), beside, options).unwrap();
    assert_eq!(scores.logprobs.values(), found);
    let own = derivatives(4, targets.len());
    let zeros = Coefficients { logprob: vec![0.0; own.len()], entropy: None };
    let (mut as_candidates, mut as_tokens) = (Gradients::new(&model), Gradients::new(&model));
    backward_beside(&threads, &model, workspace, held, zeros, &own, &mut as_candidates).unwrap();
    let (_, held) = forward_hold(&threads, &model, workspace, &sequences(&rows), options).unwrap();
    let coefficients = Coefficients { logprob: own, entropy: None };
    backward(&threads, &model, workspace, held, coefficients, &mut as_tokens).unwrap();
    assert_near(&as_candidates, &as_tokens, 1e-5);
}

#[test]
fn what_does_not_fit_is_refused() {
    let (threads, workspace) = (Threads::serial(), &mut Workspace::default());
    let model = model(Architecture::Llama, true);
    let rows = [Sequence { tokens: &[1, 2, 3], start: 1 }];
    let mut message = |per_token, tokens: &[u32]| {
        let beside = Candidates { per_token, tokens };
        let options = PassOptions::default();
        let passed = forward_hold_beside(&threads, &model, workspace, &rows, beside, options);
        passed.map(|_| ()).unwrap_err().to_string()
    };
    insta::assert_snapshot!(message(2, &[1, 2, 3]), @"3 candidates for 2 scored tokens, 2 each");
    insta::assert_snapshot!(message(1, &[1, 23]), @"the candidate 23 is not one of 23 tokens");
    let beside = Candidates { per_token: 1, tokens: &[1, 2] };
    let options = PassOptions::default();
    let (_, _, held) = forward_hold_beside(&threads, &model, workspace, &rows, beside, options).unwrap();
    let coefficients = Coefficients { logprob: vec![0.0; 2], entropy: None };
    let mut gradients = Gradients::new(&model);
    let refused = backward_beside(&threads, &model, workspace, held, coefficients, &[0.0], &mut gradients);
    insta::assert_snapshot!(refused.unwrap_err(), @"expected 2 coefficients of candidates, 1 per scored token, got 1");
}
