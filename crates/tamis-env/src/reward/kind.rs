//! A reward by its name, and the keys of `by_source`, which hold rewards of other kinds.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value as Json};
use tamis_core::setting::{Described, ModelPlace, Shape};

use super::RewardKind;
use super::by_source::{BySource, refuse_unrouted};
use super::function::RewardFunction;
use super::settings::{BuildError, Conflict, Nature, RewardContext, RewardFile, RewardSettings};

impl RewardKind {
    /// The kind of a name with its defaults; `None` if there is none of that name.
    ///
    /// ```
    /// use tamis_env::reward::RewardKind;
    /// assert!(RewardKind::of_name("gsm8k").is_some_and(|kind| kind.is_verifier()));
    /// assert!(RewardKind::of_name("length").is_some_and(|kind| !kind.is_verifier()));
    /// assert_eq!(RewardKind::of_name("gsm9k"), None);
    /// ```
    pub fn of_name(name: &str) -> Option<Self> {
        serde_json::from_value(serde_json::json!({ "kind": name })).ok()
    }
}

tamis_core::settings! {
    /// The verifiers of [`BySource`] that are named besides the table.
    pub struct BySourceSettings {
        /// Verifiers by data source, which override the built-in table:
        /// `my/source: {kind: gsm8k, method: last_number}`, or only the kind (`my/source: math`). `"*"` is
        /// for sources that neither names, and for rows without one.
        sources: SourceVerifiers = SourceVerifiers::default();
    }
}

/// Verifiers by data source, in the order in which they were named.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SourceVerifiers(pub Vec<(String, RewardKind)>);

impl Serialize for SourceVerifiers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(source, kind)| (source, kind)))
    }
}

impl<'de> Deserialize<'de> for SourceVerifiers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let sources = Map::<String, Json>::deserialize(deserializer)?;
        let read = |(source, kind)| Ok((source, serde_json::from_value(kind).map_err(D::Error::custom)?));
        sources.into_iter().map(read).collect::<Result<_, _>>().map(Self)
    }
}

impl Described for SourceVerifiers {
    fn shape() -> Shape {
        let mut shape = RewardKind::shape();
        if let Shape::Tagged { doc, variants, .. } = &mut shape {
            *doc = "A verifier.";
            // A table in a table would say nothing more.
            let is_verifier = |name: &str| RewardKind::of_name(name).is_some_and(|kind| kind.is_verifier());
            variants.retain(|variant| variant.name != "by_source" && is_verifier(variant.name));
        }
        Shape::Named(Box::new(shape))
    }
}

impl RewardSettings for BySourceSettings {
    fn build(&self, context: &RewardContext<'_>) -> Result<Box<dyn RewardFunction>, BuildError> {
        let mut own = Vec::with_capacity(self.sources.0.len());
        for (source, kind) in &self.sources.0 {
            let function = kind.build(&context.with_name(&format!("{}.{source}", context.name)))?;
            own.push((source.clone(), function));
        }
        let function = BySource::new(own);
        let unrouted = function.find_unrouted(context.prompts());
        if !unrouted.is_empty() {
            return Err(refuse_unrouted(context.name, &unrouted));
        }
        Ok(Box::new(function))
    }

    fn begin(&self, context: &RewardContext<'_>) {
        for (source, kind) in &self.sources.0 {
            kind.begin(&context.with_name(&format!("{}.{source}", context.name)));
        }
    }

    fn nature(&self) -> Nature {
        let is_external = self.sources.0.iter().any(|(_, kind)| kind.is_external());
        Nature { is_external, ..Nature::VERIFIER }
    }

    fn is_tried(&self) -> bool {
        self.sources.0.iter().all(|(_, kind)| kind.is_tried())
    }

    fn check(&self, context: &RewardContext<'_>) -> Result<(), BuildError> {
        self.sources.0.iter().try_for_each(|(source, kind)| {
            kind.check(&context.with_name(&format!("{}.{source}", context.name)))
        })
    }

    fn conflicts(&self, path: &str, limit: usize) -> Vec<Conflict> {
        let of = |(source, kind): &(String, RewardKind)| {
            kind.conflicts(&format!("{path}.sources.{source}"), limit)
        };
        self.sources.0.iter().flat_map(of).collect()
    }

    fn fill_lengths(&mut self, limit: usize) {
        for (_, kind) in &mut self.sources.0 {
            kind.fill_lengths(limit);
        }
    }

    fn files(&self) -> Vec<RewardFile> {
        let mut files = Vec::new();
        for (source, kind) in &self.sources.0 {
            let within =
                |file: RewardFile| RewardFile { key: format!("sources.{source}.{}", file.key), ..file };
            files.extend(kind.files().into_iter().map(within));
        }
        files
    }

    fn models(&mut self) -> Vec<(String, &mut ModelPlace)> {
        let mut models = Vec::new();
        for (source, kind) in &mut self.sources.0 {
            let within = |(key, place)| (format!("sources.{source}.{key}"), place);
            models.extend(kind.models().into_iter().map(within));
        }
        models
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [`RewardKind::of_name`] rests on it: a key that must be given has an empty default.
    #[test]
    fn every_key_of_every_kind_has_a_default() {
        for name in RewardKind::NAMES {
            let kind =
                RewardKind::of_name(name).unwrap_or_else(|| panic!("`{name}` has a key without a default"));
            assert_eq!(kind.as_str(), *name);
        }
    }

    /// The laws of rewards (`tests.rs`) compare what a kind of tamis declares with its scores.
    #[test]
    fn what_the_score_of_each_kind_says() {
        for name in RewardKind::NAMES {
            let nature = RewardKind::of_name(name).expect("a kind").nature();
            // The meaning of scores from outside is not known, so they count as outcomes.
            assert!(nature.is_verifier || !nature.is_external, "{name}");
            // A verifier of tamis answers `acc`.
            assert!(nature.gives_acc || nature.is_external || !nature.is_verifier, "{name}");
        }
        // With a bound, a judge's score also decides correctness.
        let judge = serde_json::json!({"kind": "judge", "pass_score": 0.5});
        let judge: RewardKind = serde_json::from_value(judge).expect("a judge");
        assert!(judge.nature().gives_acc && judge.is_external());
        // A table of verifiers is from outside if one of them is.
        let table = serde_json::json!({"kind": "by_source", "sources": {"a": {"kind": "math"}, "b": {"kind": "math_verify"}}});
        let table: RewardKind = serde_json::from_value(table).expect("a table");
        assert!(table.nature().gives_acc && table.is_external());
    }
}
