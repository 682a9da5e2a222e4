//! Values of enumerated keys that their own system does not know.

use std::fmt::Write as _;
use std::path::Path;

use tamis_config::NoteOutcome;
use tamis_config::table::{Place, place};
use tamis_core::setting::Shape;
use tamis_import::{Becomes, Owner, import};

/// What a command cannot lack, so that it belongs to a system.
fn base(owner: Owner) -> &'static [&'static str] {
    match owner {
        Owner::Trl => &["model_name_or_path=m", "learning_rate=1e-6"],
        Owner::EasyR1 => &["worker.actor.model.model_path=m", "data.train_files=t.jsonl"],
        Owner::Ragen => &["model_path=m", "actor_rollout_ref.rollout.rollout_filter_value=0.5"],
        Owner::Verl => &["actor_rollout_ref.model.path=m", "data.train_files=t.jsonl", "trainer.nnodes=1"],
        Owner::VerlSft | Owner::TrlSft => &[],
    }
}

fn names_of(shape: Shape) -> Vec<&'static str> {
    match shape {
        Shape::Choice(values) => values.into_iter().map(|(name, _)| name).collect(),
        Shape::Tagged { variants, .. } => variants.into_iter().map(|variant| variant.name).collect(),
        Shape::Nullable(inner) | Shape::OrName(inner) | Shape::List(inner) | Shape::OneOrMany(inner) => {
            names_of(*inner)
        }
        _ => Vec::new(),
    }
}

/// The values or kinds that one of our keys can have; empty if they are not enumerated.
fn choices(ours: &str) -> Vec<&'static str> {
    let ours = ours.strip_suffix(".kind").unwrap_or(ours);
    // Kinds that no value of another system is: it names a function or a path.
    if matches!(ours, "reward" | "filter") {
        return Vec::new();
    }
    match place(ours) {
        Ok(Place::Key(spec)) => names_of((spec.shape)()),
        _ => Vec::new(),
    }
}

/// The enumerated values that a key of another system can become, by our key.
fn enumerated() -> Vec<(Owner, &'static str, Vec<&'static str>)> {
    let mut found = Vec::new();
    for owner in Owner::ALL {
        // A teacher is a path, beside the advantage that it leads to.
        let keys = owner.keys().iter().filter(|row| row.key != "teacher_model_name_or_path");
        for row in keys.filter(|row| !row.key.ends_with('*')) {
            let (Becomes::Key(targets) | Becomes::By(_, targets)) = row.becomes else { continue };
            let mut names: Vec<&'static str> = targets.split(' ').flat_map(choices).collect();
            names.sort_unstable();
            names.dedup();
            if !names.is_empty() {
                found.push((owner, row.key, names));
            }
        }
    }
    assert!(found.len() > 30, "{}", found.len());
    found
}

/// `None` if it is refused; otherwise whether it has an effect.
fn effect(owner: Owner, key: &str, value: &str) -> Option<bool> {
    let words = base(owner).iter().map(|&word| word.to_owned());
    let words: Vec<String> = words.chain([format!("{key}={value}")]).collect();
    let imported = import(&words, Path::new("")).ok()?;
    let note = imported.notes.iter().find(|note| note.key == key);
    Some(note.is_some_and(|note| !matches!(note.outcome, NoteOutcome::NoEffect(_) | NoteOutcome::Ignored(_))))
}

#[test]
fn a_value_that_nobody_knows_is_refused() {
    let mut wrong = Vec::new();
    for (owner, key, ..) in enumerated() {
        if effect(owner, key, "nonesuch") == Some(true) {
            wrong.push(format!("{owner}: {key}=nonesuch"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The snapshot lists what an import takes of the values that tamis has too. Each is a value of that system.
#[test]
fn only_values_that_both_systems_have_are_taken() {
    let mut text = String::new();
    for (owner, key, names) in enumerated() {
        let taken: Vec<&str> =
            names.into_iter().filter(|value| effect(owner, key, value) == Some(true)).collect();
        if !taken.is_empty() {
            let _ = writeln!(text, "{owner}: {key} = {}", taken.join("|"));
        }
    }
    insta::assert_snapshot!("taken", text);
}

#[test]
fn the_nearest_value_and_all_others_are_named() {
    let refused = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        import(&words, Path::new("")).expect_err("a value is unknown").to_string()
    };
    insta::assert_snapshot!(refused(&[
        "algorithm.adv_estimator=batch_mean",
        "actor_rollout_ref.model.path=m"
    ]));
    insta::assert_snapshot!(refused(&[
        "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sums",
        "actor_rollout_ref.model.path=m"
    ]));
    insta::assert_snapshot!(refused(&["importance_sampling_level=sequence_token", "model_name_or_path=m"]));
    insta::assert_snapshot!(refused(&[
        "algorithm.rollout_correction.rollout_rs=seq_mean_k1,token_tv",
        "algorithm.rollout_correction.rollout_rs_threshold=1"
    ]));
}
