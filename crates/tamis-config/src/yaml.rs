//! Turns YAML into the raw value tree.
//!
//! Each value keeps its line, column and length, so that every later message can show it. Repeated keys, tags
//! and documents with too many nodes are refused here.

use std::collections::HashMap;
use std::sync::Arc;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, Span, options};

use crate::diagnostic::{Diagnostic, Problem};
use crate::source::{Origin, Source};
use crate::tree::{MapEntry, Node, Value};

/// Aliases can expand a small text into a huge tree ("billion laughs"); no configuration has this many
/// values.
const MAX_NODES: usize = 100_000;

/// Parses a text that holds one YAML document. An empty text is an empty mapping.
///
/// # Errors
/// All faults: a syntax error, keys given twice, more than one document, an explosion of aliases.
pub fn parse(source: &Arc<Source>) -> Result<Node, Vec<Diagnostic>> {
    let (tree, diagnostics) = parse_on(source);
    match tree {
        Some(tree) if diagnostics.is_empty() => Ok(tree),
        _ => Err(diagnostics),
    }
}

/// As [`parse`], with everything that can be read despite faults; of a key that is given twice, the later
/// value. `None` if the text cannot be parsed.
pub fn parse_on(source: &Arc<Source>) -> (Option<Node>, Vec<Diagnostic>) {
    let mut builder = Builder {
        source,
        anchors: HashMap::new(),
        num_nodes: 0,
        diagnostics: Vec::new(),
        stack: Vec::new(),
        root: None,
    };
    builder.run();
    let Builder { diagnostics, root, .. } = builder;
    let is_understood = diagnostics
        .iter()
        .all(|found| matches!(*found.problem, Problem::DuplicateKey { .. } | Problem::Tag { .. }));
    let tree = is_understood.then(|| root.unwrap_or_else(|| Node::empty_map(Origin::start_of(source))));
    (tree, diagnostics)
}

/// A collection that is not finished yet.
enum Open {
    List { items: Vec<Node>, origin: Origin, anchor: usize },
    Map { entries: Vec<MapEntry>, key: Option<(String, Origin)>, origin: Origin, anchor: usize },
}

struct Builder<'s> {
    source: &'s Arc<Source>,
    anchors: HashMap<usize, (Node, usize)>,
    num_nodes: usize,
    diagnostics: Vec<Diagnostic>,
    stack: Vec<Open>,
    root: Option<Node>,
}

/// The fix of a line that a tab indents.
const TABS: &str = "YAML is indented with spaces: replace the tab before the text with spaces";

/// Whether a tab is in the indentation of a line (from 1) or of the one before it. The parser may take such a
/// line for a continuation of the value above, and then reports something else.
fn is_indented_with_tab(text: &str, line: usize) -> bool {
    let is_in_indentation =
        |line: &str| line.find(|c: char| !c.is_whitespace()).is_some_and(|text| line[..text].contains('\t'));
    text.lines().skip(line.saturating_sub(2)).take(line.min(2)).any(is_in_indentation)
}

fn hint(kind: &ErrorKind) -> Option<&'static str> {
    match kind {
        ErrorKind::TabNotAllowed
        | ErrorKind::TabInBlockIndentation
        | ErrorKind::TabAtBlockScalarStart
        | ErrorKind::TabInIndentation
        | ErrorKind::TabInPlainScalar => Some(TABS),
        ErrorKind::UnknownQuotedScalarEscape
        | ErrorKind::InvalidQuotedScalarHexEscape
        | ErrorKind::InvalidLowSurrogateHexEscape => {
            Some("in single quotes a backslash stands for itself, such as '\\d+'")
        }
        _ => None,
    }
}

impl Builder<'_> {
    fn run(&mut self) {
        let source = Arc::clone(self.source);
        let parser = Parser::new_from_str_with_options(&source.text, options! { emit_comments: false });
        let mut num_documents = 0;
        for next in parser {
            let (event, span) = match next {
                Ok(next) => next,
                Err(error) => {
                    let marker = error.marker();
                    let origin = self.origin_at(marker.line(), marker.col(), 1);
                    let of_tab = || is_indented_with_tab(&source.text, marker.line()).then_some(TABS);
                    let hint = hint(error.kind()).or_else(of_tab);
                    let problem = Problem::Syntax { message: error.info(), hint };
                    self.diagnostics.push(Diagnostic::error(problem, Some(origin)));
                    return;
                }
            };
            if let Some(tag) = event.tag() {
                let tag = match tag.handle() {
                    "tag:yaml.org,2002:" => format!("!!{}", tag.suffix()),
                    handle => format!("{handle}{}", tag.suffix()),
                };
                let origin = self.origin(span);
                self.diagnostics.push(Diagnostic::error(Problem::Tag { tag }, Some(origin)));
            }
            match event {
                Event::DocumentStart(..) => {
                    num_documents += 1;
                    if num_documents > 1 {
                        self.syntax("a configuration is one document, and a second one starts here", span);
                        return;
                    }
                }
                Event::Scalar(text, style, anchor, _) => {
                    let plain = style == ScalarStyle::Plain;
                    let node = Node {
                        value: Value::Scalar { text: text.into_owned(), plain },
                        origin: self.origin(span),
                    };
                    self.finish(node, anchor, 1);
                }
                Event::SequenceStart(_, anchor, _) => {
                    let origin = self.origin(span);
                    self.stack.push(Open::List { items: Vec::new(), origin, anchor });
                }
                Event::MappingStart(_, anchor, _) => {
                    let origin = self.origin(span);
                    self.stack.push(Open::Map { entries: Vec::new(), key: None, origin, anchor });
                }
                Event::SequenceEnd | Event::MappingEnd => match self.stack.pop() {
                    Some(Open::List { items, mut origin, anchor }) => {
                        widen(&mut origin, span, None);
                        self.finish(Node { value: Value::List(items), origin }, anchor, 1);
                    }
                    Some(Open::Map { entries, mut origin, anchor, .. }) => {
                        widen(&mut origin, span, entries.first());
                        self.finish(Node { value: Value::Map(entries), origin }, anchor, 1);
                    }
                    None => {}
                },
                Event::Alias(id) => {
                    if let Some((node, size)) = self.anchors.get(&id).cloned() {
                        self.finish(node, 0, size);
                    } else {
                        self.syntax("an alias refers to a value that contains it", span);
                        return;
                    }
                }
                _ => {}
            }
            if self.num_nodes > MAX_NODES {
                self.syntax("more than 100,000 values: aliases that multiply?", span);
                return;
            }
        }
    }

    fn finish(&mut self, node: Node, anchor: usize, size: usize) {
        self.num_nodes += size;
        if anchor > 0 {
            let size = count(&node);
            self.anchors.insert(anchor, (node.clone(), size));
        }
        match self.stack.last_mut() {
            None => self.root = Some(node),
            Some(Open::List { items, .. }) => items.push(node),
            Some(Open::Map { entries, key, .. }) => match key.take() {
                None => match node.value {
                    Value::Scalar { text, .. } => {
                        if let Some(first) = entries.iter().find(|entry| entry.key == text) {
                            let problem =
                                Problem::DuplicateKey { key: text.clone(), first_line: first.origin.line };
                            self.diagnostics.push(Diagnostic::error(problem, Some(node.origin.clone())));
                        }
                        *key = Some((text, node.origin));
                    }
                    Value::List(_) | Value::Map(_) => {
                        let message = "a key is a text, not a list or a mapping".to_owned();
                        let problem = Problem::Syntax { message, hint: None };
                        self.diagnostics.push(Diagnostic::error(problem, Some(node.origin.clone())));
                        *key = Some((String::new(), node.origin));
                    }
                },
                Some((key, origin)) => match entries.iter_mut().find(|entry| entry.key == key) {
                    // Given twice: the later value counts, for further checks. The error for a third names
                    // the first.
                    Some(entry) => entry.node = node,
                    None => entries.push(MapEntry { key, origin, node }),
                },
            },
        }
    }

    fn syntax(&mut self, message: &str, span: Span) {
        let origin = self.origin(span);
        let problem = Problem::Syntax { message: message.to_owned(), hint: None };
        self.diagnostics.push(Diagnostic::error(problem, Some(origin)));
    }

    fn origin(&self, span: Span) -> Origin {
        let length = if span.end.line() == span.start.line() {
            span.end.col().saturating_sub(span.start.col())
        } else {
            1
        };
        self.origin_at(span.start.line(), span.start.col(), length)
    }

    /// `line` from 1 and `column` from 0, as the parser counts.
    fn origin_at(&self, line: usize, column: usize, length: usize) -> Origin {
        Origin {
            source: Arc::clone(self.source),
            line: line.max(1),
            column: column + 1,
            length: length.max(1),
        }
    }
}

/// Widens the position of a collection for messages: in flow style to everything between its brackets (on the
/// first line), in block style to the first key.
fn widen(origin: &mut Origin, end: Span, first: Option<&MapEntry>) {
    let line = origin.excerpt().unwrap_or_default();
    let is_flow = matches!(line.chars().nth(origin.column - 1), Some('{' | '['));
    let end_column = match (is_flow, first) {
        (true, _) if end.end.line() == origin.line => end.end.col() + 1,
        (true, _) => line.trim_end().chars().count() + 1,
        (false, Some(first)) if (first.origin.line, first.origin.column) == (origin.line, origin.column) => {
            first.origin.column + first.origin.length
        }
        (false, _) => return,
    };
    origin.length = end_column.saturating_sub(origin.column).max(1);
}

fn count(node: &Node) -> usize {
    match &node.value {
        Value::Scalar { .. } => 1,
        Value::List(items) => 1 + items.iter().map(count).sum::<usize>(),
        Value::Map(entries) => 1 + entries.iter().map(|entry| count(&entry.node)).sum::<usize>(),
    }
}
