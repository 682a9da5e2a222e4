//! Compiles a chat template so that everything it builds is measured.
//!
//! The engine limits steps, but not memory: `{% set s = s ~ s %}` forty times over is a thousand steps and a
//! terabyte. So the parsed template is rewritten before it is compiled. An operator that builds a value
//! becomes a filter of [`limits`](super::limits), which measures before it builds. Other sources of values (a
//! literal, a call, a slice) go through a filter that measures the result. Values that are compared, searched
//! or indexed go through one that counts them. Plain text is written as an expression, so that the formatter
//! measures it too. Filters and tests measure themselves.

use std::collections::BTreeMap;

use minijinja::machinery::ast::{self, BinOpKind, Call, CallArg, Expr, Filter, Spanned, Stmt, UnaryOp};
use minijinja::machinery::{
    CodeGenerator, Instructions, Span, Token, eval, make_string_output, parse, tokenize,
};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};

use super::limits::{ADD, BUILT, CONCAT, CUT, GLANCED_AT, LOOKED_AT, MULTIPLY, REMAINDER, STORED};

/// Most tokens between `{{` and `}}`: the compiler recurses over the operators of an expression.
const MAX_TAG_TOKENS: usize = 2000;
/// Most bytes of a name: each lookup compares it.
const MAX_NAME: usize = 200;
/// Shorter literal texts are not counted.
const SHORT: usize = 256;
/// Most branches of all conditions together: the compiler recurses over `elif`.
const MAX_BRANCHES: usize = 500;

#[derive(Debug)]
pub(super) struct TemplateProgram {
    instructions: Instructions<'static>,
    blocks: BTreeMap<&'static str, Instructions<'static>>,
}

impl TemplateProgram {
    /// Compiles a template. Its text stays in memory until the process ends: a run has one template.
    pub(super) fn compile(source: String, syntax: &SyntaxConfig) -> Result<Self, Error> {
        check_tags(&source, syntax)?;
        let source: &'static str = source.leak();
        let tree = parse(source, "chat template", syntax.clone())?;
        let mut generator = CodeGenerator::new("chat template", source);
        generator.compile_stmt(&statement(&tree));
        let (instructions, blocks) = generator.finish();
        Ok(Self { instructions, blocks })
    }

    pub(super) fn render(&self, environment: &Environment<'static>, context: Value) -> Result<String, Error> {
        let mut text = String::new();
        let mut output = make_string_output(&mut text);
        eval(environment, &self.instructions, context, &self.blocks, &mut output, AutoEscape::None)?;
        Ok(text)
    }
}

/// Refuses templates whose syntax tree would be so deep that walking it overflows the stack.
fn check_tags(source: &str, syntax: &SyntaxConfig) -> Result<(), Error> {
    let (mut num_tokens, mut num_branches) = (0, 0);
    for token in tokenize(source, false, syntax.clone()) {
        // The parser reports invalid tokens, with their place.
        let Ok((token, span)) = token else { return Ok(()) };
        match token {
            Token::VariableStart | Token::BlockStart => num_tokens = 0,
            Token::Ident("elif") => num_branches += 1,
            Token::Ident(name) if name.len() > MAX_NAME => {
                let detail = format!("a name of more than {MAX_NAME} bytes (line {})", span.start_line);
                return Err(Error::new(ErrorKind::SyntaxError, detail));
            }
            _ => num_tokens += 1,
        }
        if num_tokens > MAX_TAG_TOKENS || num_branches > MAX_BRANCHES {
            let detail = if num_branches > MAX_BRANCHES {
                format!("more than {MAX_BRANCHES} `elif` (line {})", span.start_line)
            } else {
                format!("more than {MAX_TAG_TOKENS} tokens in one expression (line {})", span.start_line)
            };
            return Err(Error::new(ErrorKind::SyntaxError, detail));
        }
    }
    Ok(())
}

fn body<'s>(statements: &[Stmt<'s>]) -> Vec<Stmt<'s>> {
    statements.iter().map(statement).collect()
}

fn statement<'s>(node: &Stmt<'s>) -> Stmt<'s> {
    match node {
        Stmt::Template(template) => Stmt::Template(Spanned::new(
            ast::Template { children: body(&template.children) },
            template.span(),
        )),
        Stmt::EmitExpr(emit) => {
            Stmt::EmitExpr(Spanned::new(ast::EmitExpr { expr: expression(&emit.expr) }, emit.span()))
        }
        Stmt::EmitRaw(emit) => {
            let span = emit.span();
            let expr = Expr::Const(Spanned::new(ast::Const { value: Value::from(emit.raw) }, span));
            Stmt::EmitExpr(Spanned::new(ast::EmitExpr { expr }, span))
        }
        Stmt::ForLoop(each) => Stmt::ForLoop(Spanned::new(
            ast::ForLoop {
                target: target(&each.target),
                iter: mark_glanced_at(&each.iter),
                filter_expr: each.filter_expr.as_ref().map(expression),
                recursive: each.recursive,
                body: body(&each.body),
                else_body: body(&each.else_body),
            },
            each.span(),
        )),
        Stmt::IfCond(condition) => Stmt::IfCond(Spanned::new(
            ast::IfCond {
                expr: expression(&condition.expr),
                true_body: body(&condition.true_body),
                false_body: body(&condition.false_body),
            },
            condition.span(),
        )),
        Stmt::WithBlock(block) => {
            let assignments =
                block.assignments.iter().map(|(name, value)| (target(name), expression(value))).collect();
            Stmt::WithBlock(Spanned::new(
                ast::WithBlock { assignments, body: body(&block.body) },
                block.span(),
            ))
        }
        Stmt::Set(set) => {
            let mut expr = expression(&set.expr);
            if matches!(set.target, Expr::GetAttr(_)) {
                expr = apply_filter(expr, STORED, Vec::new());
            }
            Stmt::Set(Spanned::new(ast::Set { target: target(&set.target), expr }, set.span()))
        }
        Stmt::SetBlock(set) => Stmt::SetBlock(Spanned::new(
            ast::SetBlock {
                target: target(&set.target),
                filter: set.filter.as_ref().map(expression),
                body: body(&set.body),
            },
            set.span(),
        )),
        Stmt::AutoEscape(escape) => Stmt::AutoEscape(Spanned::new(
            ast::AutoEscape { enabled: expression(&escape.enabled), body: body(&escape.body) },
            escape.span(),
        )),
        Stmt::FilterBlock(block) => Stmt::FilterBlock(Spanned::new(
            ast::FilterBlock { filter: expression(&block.filter), body: body(&block.body) },
            block.span(),
        )),
        Stmt::Block(block) => Stmt::Block(Spanned::new(
            ast::Block { name: block.name, required: block.required, body: body(&block.body) },
            block.span(),
        )),
        // There are no other templates. These statements fail when they are reached, as in `transformers`.
        Stmt::Import(import) => Stmt::Import(Spanned::new(
            ast::Import { expr: expression(&import.expr), name: target(&import.name) },
            import.span(),
        )),
        Stmt::FromImport(import) => {
            let names =
                import.names.iter().map(|(name, alias)| (target(name), alias.as_ref().map(target))).collect();
            Stmt::FromImport(Spanned::new(
                ast::FromImport { expr: expression(&import.expr), names },
                import.span(),
            ))
        }
        Stmt::Extends(extends) => {
            Stmt::Extends(Spanned::new(ast::Extends { name: expression(&extends.name) }, extends.span()))
        }
        Stmt::Include(include) => Stmt::Include(Spanned::new(
            ast::Include { name: expression(&include.name), ignore_missing: include.ignore_missing },
            include.span(),
        )),
        Stmt::Macro(declaration) => Stmt::Macro(macro_declaration(declaration)),
        Stmt::CallBlock(block) => Stmt::CallBlock(Spanned::new(
            ast::CallBlock { call: call(&block.call), macro_decl: macro_declaration(&block.macro_decl) },
            block.span(),
        )),
        Stmt::Continue(node) => Stmt::Continue(Spanned::new(ast::Continue, node.span())),
        Stmt::Break(node) => Stmt::Break(Spanned::new(ast::Break, node.span())),
        Stmt::Do(node) => Stmt::Do(Spanned::new(ast::Do { call: call(&node.call) }, node.span())),
    }
}

fn macro_declaration<'s>(node: &Spanned<ast::Macro<'s>>) -> Spanned<ast::Macro<'s>> {
    let declaration = ast::Macro {
        name: node.name,
        args: node.args.iter().map(target).collect(),
        defaults: node.defaults.iter().map(expression).collect(),
        body: body(&node.body),
    };
    Spanned::new(declaration, node.span())
}

fn target<'s>(node: &Expr<'s>) -> Expr<'s> {
    match node {
        Expr::List(list) => {
            let items = list.items.iter().map(target).collect();
            Expr::List(Spanned::new(ast::List { items }, list.span()))
        }
        Expr::Tuple(tuple) => {
            let items = tuple.items.iter().map(target).collect();
            Expr::Tuple(Spanned::new(ast::Tuple { items }, tuple.span()))
        }
        other => expression(other),
    }
}

fn apply_filter<'s>(value: Expr<'s>, name: &'static str, arguments: Vec<Expr<'s>>) -> Expr<'s> {
    let span: Span = value.span();
    let args = arguments.into_iter().map(CallArg::Pos).collect();
    Expr::Filter(Spanned::new(Filter { name, expr: Some(value), args }, span))
}

fn mark_built(value: Expr<'_>) -> Expr<'_> {
    apply_filter(value, BUILT, Vec::new())
}

/// Marks a value that is about to be read completely, so that long reads are counted.
fn mark_looked_at<'s>(node: &Expr<'s>) -> Expr<'s> {
    if is_short(node) { expression(node) } else { apply_filter(expression(node), LOOKED_AT, Vec::new()) }
}

/// Marks a value that is only used in part, or is passed to a function.
fn mark_glanced_at<'s>(node: &Expr<'s>) -> Expr<'s> {
    match node {
        // `self.name()` is a block, and `loop` is not a value.
        Expr::Var(name) if matches!(name.id, "self" | "loop") => expression(node),
        _ if is_short(node) => expression(node),
        _ => apply_filter(expression(node), GLANCED_AT, Vec::new()),
    }
}

/// Whether it is a literal that is cheap to read.
fn is_short(node: &Expr<'_>) -> bool {
    matches!(node, Expr::Const(constant) if constant.value.as_str().is_none_or(|text| text.len() <= SHORT))
}

fn expression<'s>(node: &Expr<'s>) -> Expr<'s> {
    match node {
        Expr::Var(name) => Expr::Var(Spanned::new(ast::Var { id: name.id }, name.span())),
        Expr::Const(constant) => {
            Expr::Const(Spanned::new(ast::Const { value: constant.value.clone() }, constant.span()))
        }
        Expr::Slice(slice) => {
            let part = |bound: &Option<Expr<'s>>| bound.as_ref().map(expression);
            let cut = Expr::Slice(Spanned::new(
                ast::Slice {
                    expr: mark_glanced_at(&slice.expr),
                    start: part(&slice.start),
                    stop: part(&slice.stop),
                    step: part(&slice.step),
                },
                slice.span(),
            ));
            apply_filter(cut, CUT, Vec::new())
        }
        Expr::UnaryOp(operation) => {
            let is_not = matches!(operation.op, ast::UnaryOpKind::Not);
            let op = if is_not { ast::UnaryOpKind::Not } else { ast::UnaryOpKind::Neg };
            Expr::UnaryOp(Spanned::new(UnaryOp { op, expr: expression(&operation.expr) }, operation.span()))
        }
        Expr::BinOp(operation) => {
            let builder = match operation.op {
                BinOpKind::Add => Some(ADD),
                BinOpKind::Concat => Some(CONCAT),
                BinOpKind::Mul => Some(MULTIPLY),
                BinOpKind::Rem => Some(REMAINDER),
                _ => None,
            };
            if let Some(name) = builder {
                let filter = Filter {
                    name,
                    expr: Some(expression(&operation.left)),
                    args: vec![CallArg::Pos(expression(&operation.right))],
                };
                return Expr::Filter(Spanned::new(filter, operation.span()));
            }
            let side = match operation.op {
                BinOpKind::ScAnd | BinOpKind::ScOr => expression,
                _ => mark_looked_at,
            };
            Expr::BinOp(Spanned::new(
                ast::BinOp { op: operation.op, left: side(&operation.left), right: side(&operation.right) },
                operation.span(),
            ))
        }
        Expr::Compare(compare) => {
            let ops = compare
                .ops
                .iter()
                .map(|next| ast::CompareOp { op: next.op, expr: mark_looked_at(&next.expr) })
                .collect();
            Expr::Compare(Spanned::new(
                ast::Compare { expr: mark_looked_at(&compare.expr), ops },
                compare.span(),
            ))
        }
        Expr::IfExpr(choice) => Expr::IfExpr(Spanned::new(
            ast::IfExpr {
                test_expr: expression(&choice.test_expr),
                true_expr: expression(&choice.true_expr),
                false_expr: choice.false_expr.as_ref().map(expression),
            },
            choice.span(),
        )),
        Expr::Filter(filter) => Expr::Filter(Spanned::new(
            Filter {
                name: filter.name,
                expr: filter.expr.as_ref().map(expression),
                args: arguments(&filter.args, expression),
            },
            filter.span(),
        )),
        Expr::Test(test) => Expr::Test(Spanned::new(
            ast::Test {
                name: test.name,
                expr: expression(&test.expr),
                args: arguments(&test.args, expression),
            },
            test.span(),
        )),
        Expr::GetAttr(attribute) => Expr::GetAttr(Spanned::new(
            ast::GetAttr { expr: expression(&attribute.expr), name: attribute.name },
            attribute.span(),
        )),
        Expr::GetItem(item) => {
            // Only mappings have short texts as keys, and they find them at once.
            let is_key = is_short(&item.subscript_expr)
                && matches!(&item.subscript_expr, Expr::Const(key) if key.value.as_str().is_some());
            let expr = if is_key { expression(&item.expr) } else { mark_glanced_at(&item.expr) };
            Expr::GetItem(Spanned::new(
                ast::GetItem { expr, subscript_expr: mark_looked_at(&item.subscript_expr) },
                item.span(),
            ))
        }
        Expr::Call(node) => mark_built(Expr::Call(call(node))),
        Expr::List(list) => {
            let items = list.items.iter().map(expression).collect();
            mark_built(Expr::List(Spanned::new(ast::List { items }, list.span())))
        }
        Expr::Tuple(tuple) => {
            let items = tuple.items.iter().map(expression).collect();
            mark_built(Expr::Tuple(Spanned::new(ast::Tuple { items }, tuple.span())))
        }
        Expr::Map(map) => mark_built(Expr::Map(Spanned::new(
            ast::Map {
                keys: map.keys.iter().map(mark_looked_at).collect(),
                values: map.values.iter().map(expression).collect(),
            },
            map.span(),
        ))),
    }
}

/// A call keeps its shape: the compiler needs it to distinguish methods from functions.
fn call<'s>(node: &Spanned<Call<'s>>) -> Spanned<Call<'s>> {
    let (expr, argument): (_, fn(&Expr<'s>) -> Expr<'s>) = match &node.expr {
        // `loop.changed` compares its arguments; other methods charge for themselves.
        Expr::GetAttr(method) => {
            let expr = expression(&method.expr);
            (
                Expr::GetAttr(Spanned::new(ast::GetAttr { expr, name: method.name }, method.span())),
                mark_looked_at,
            )
        }
        // A macro takes a list unchanged; a function may read a text.
        other => (expression(other), mark_glanced_at),
    };
    Spanned::new(Call { expr, args: arguments(&node.args, argument) }, node.span())
}

fn arguments<'s>(arguments: &[CallArg<'s>], counted: fn(&Expr<'s>) -> Expr<'s>) -> Vec<CallArg<'s>> {
    arguments
        .iter()
        .map(|argument| match argument {
            CallArg::Pos(value) => CallArg::Pos(counted(value)),
            CallArg::Kwarg(name, value) => CallArg::Kwarg(name, counted(value)),
            CallArg::PosSplat(value) => CallArg::PosSplat(counted(value)),
            CallArg::KwargSplat(value) => CallArg::KwargSplat(counted(value)),
        })
        .collect()
}
