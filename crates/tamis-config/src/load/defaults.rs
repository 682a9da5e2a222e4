//! The lowest layer: every key with its default.

use std::sync::OnceLock;

use crate::source::{Origin, Source, SourceKind};
use crate::tree::Node;
use crate::yaml;

/// The defaults of every key, as commented YAML.
const DEFAULTS_YAML: &str = include_str!("../../defaults.yaml");

pub(super) fn default_tree() -> &'static Node {
    static TREE: OnceLock<Node> = OnceLock::new();
    TREE.get_or_init(|| {
        let source = Source::new(SourceKind::Default, DEFAULTS_YAML);
        yaml::parse(&source).unwrap_or_else(|_| Node::empty_map(Origin::start_of(&source)))
    })
}
