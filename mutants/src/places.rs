//! Finds what can be broken: comparisons, connectives, arithmetic, conditions, arms, and whole functions.
//! Tests, constants and the arguments of macros are left alone.

use std::ops::Range;

use anyhow::Result;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Arm, Attribute, BinOp, Block, Expr, ExprBinary, ExprIf, ExprMatch, ExprUnary, ExprWhile,
    ImplItemFn, ItemConst, ItemFn, ItemImpl, ItemMod, ItemStatic, Pat, Signature, TraitItemFn,
    UnOp,
};

use crate::values;

/// How a place is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Another expression is evaluated.
    Expression,
    /// The function returns at once. The place is the byte after its opening brace.
    Body,
    /// The arm never matches. The place is the byte after its pattern.
    Arm,
}

/// One thing that is done at a place.
#[derive(Debug)]
pub(crate) struct Change {
    pub number: u32,
    /// The expression that is evaluated instead, or returned.
    pub instead: String,
    /// What is done, in words for people.
    pub what: String,
}

/// Where something can be broken, in bytes of the file.
#[derive(Debug)]
pub(crate) struct Place {
    pub start: usize,
    pub end: usize,
    pub form: Form,
    pub changes: Vec<Change>,
}

/// Every place of a file in the order of its nesting; numbers begin at `first`.
pub(crate) fn of(text: &str, first: u32) -> Result<Vec<Place>> {
    let mut finder = Finder { text, next: first, places: Vec::new(), owner: String::new() };
    finder.visit_file(&syn::parse_file(text)?);
    Ok(finder.places)
}

struct Finder<'a> {
    text: &'a str,
    next: u32,
    places: Vec<Place>,
    /// The type that the functions belong to.
    owner: String,
}

impl Finder<'_> {
    fn text_of(&self, range: Range<usize>) -> &str {
        &self.text[range]
    }

    fn add(&mut self, range: Range<usize>, form: Form, changes: Vec<(String, String)>) {
        let mut numbered = Vec::new();
        for (instead, what) in changes {
            numbered.push(Change { number: self.next, instead, what });
            self.next += 1;
        }
        if !numbered.is_empty() {
            self.places.push(Place { start: range.start, end: range.end, form, changes: numbered });
        }
    }

    /// The condition of a branch or a loop never holds.
    fn condition(&mut self, condition: &Expr, also_true: bool) {
        let is_alone = !matches!(condition, Expr::Lit(_) | Expr::Let(_)) && !has_let(condition);
        if is_alone {
            let range = condition.span().byte_range();
            let words = in_one_line(self.text_of(range.clone()));
            let mut changes = vec![("false".to_owned(), format!("`{words}` is false"))];
            if also_true {
                changes.push(("true".to_owned(), format!("`{words}` is true")));
            }
            self.add(range, Form::Expression, changes);
        }
    }

    fn body(&mut self, signature: &Signature, block: &Block) {
        if block.stmts.is_empty() || signature.constness.is_some() {
            return;
        }
        let name = match self.owner.as_str() {
            "" => signature.ident.to_string(),
            owner => format!("{owner}::{}", signature.ident),
        };
        let values = values::of_return(&signature.output);
        let written = in_one_line(self.text_of(block.span().byte_range()));
        let changes = values
            .into_iter()
            .filter(|value| written != format!("{{ {value} }}"))
            .map(|value| (value.clone(), format!("`{name}` returns `{value}` at once")))
            .collect();
        let at = block.brace_token.span.open().byte_range().end;
        self.add(at..at, Form::Body, changes);
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_const(&mut self, _: &'ast ItemConst) {}

    fn visit_item_static(&mut self, _: &'ast ItemStatic) {}

    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_type(&mut self, _: &'ast syn::Type) {}

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        let is_default = item.trait_.as_ref().is_some_and(|(_, path, _)| path.is_ident("Default"));
        // Returning `Default::default()` from there would call itself for ever.
        if is_test(&item.attrs) || is_default {
            return;
        }
        let named = in_one_line(self.text_of(item.self_ty.span().byte_range()));
        let before = std::mem::replace(&mut self.owner, named);
        visit::visit_item_impl(self, item);
        self.owner = before;
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if !is_test(&item.attrs) && item.sig.constness.is_none() {
            self.body(&item.sig, &item.block);
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        if !is_test(&item.attrs) && item.sig.constness.is_none() {
            self.body(&item.sig, &item.block);
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        if let (Some(block), false) = (&item.default, is_test(&item.attrs)) {
            self.body(&item.sig, block);
            visit::visit_trait_item_fn(self, item);
        }
    }

    fn visit_expr_if(&mut self, branch: &'ast ExprIf) {
        // The opposite of a comparison is already a change of its operator.
        self.condition(&branch.cond, !matches!(&*branch.cond, Expr::Binary(_) | Expr::Unary(_)));
        visit::visit_expr_if(self, branch);
    }

    fn visit_expr_while(&mut self, repeated: &'ast ExprWhile) {
        self.condition(&repeated.cond, false);
        visit::visit_expr_while(self, repeated);
    }

    fn visit_expr_match(&mut self, chosen: &'ast ExprMatch) {
        let last = chosen.arms.last();
        let is_total = last.is_some_and(|arm| arm.guard.is_none() && takes_all(&arm.pat));
        for arm in &chosen.arms {
            let is_last = last.is_some_and(|last| std::ptr::eq(last, arm));
            if let (true, false, None) = (is_total, is_last, &arm.guard) {
                let at = arm.pat.span().byte_range().end;
                let words = in_one_line(self.text_of(arm.pat.span().byte_range()));
                self.add(
                    at..at,
                    Form::Arm,
                    vec![(String::new(), format!("the arm `{words}` never matches"))],
                );
            }
        }
        visit::visit_expr_match(self, chosen);
    }

    fn visit_arm(&mut self, arm: &'ast Arm) {
        if let Some((_, guard)) = &arm.guard {
            self.condition(guard, true);
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr_binary(&mut self, binary: &'ast ExprBinary) {
        let range = binary.span().byte_range();
        if !has_let(&binary.left) && !has_let(&binary.right) {
            let operator = binary.op.span().byte_range();
            let line = in_one_line(self.text_of(range.clone()));
            let changes = instead_of(&binary.op)
                .iter()
                .map(|new| {
                    let before = &self.text[range.start..operator.start];
                    let after = &self.text[operator.end..range.end];
                    let old = &self.text[operator.clone()];
                    (format!("{before}{new}{after}"), format!("`{line}`: `{old}` became `{new}`"))
                })
                .collect();
            self.add(range, Form::Expression, changes);
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast ExprUnary) {
        if let UnOp::Not(_) | UnOp::Neg(_) = unary.op
            && !has_let(&unary.expr)
        {
            let range = unary.span().byte_range();
            let line = in_one_line(self.text_of(range.clone()));
            let bare = self.text_of(unary.expr.span().byte_range()).to_owned();
            self.add(range, Form::Expression, vec![(bare, format!("`{line}` without its sign"))]);
        }
        visit::visit_expr_unary(self, unary);
    }
}

/// A comparison becomes its neighbour at the boundary, and its opposite.
fn instead_of(operator: &BinOp) -> &'static [&'static str] {
    match operator {
        BinOp::Lt(_) => &["<=", ">="],
        BinOp::Le(_) => &["<", ">"],
        BinOp::Gt(_) => &[">=", "<="],
        BinOp::Ge(_) => &[">", "<"],
        BinOp::Eq(_) => &["!="],
        BinOp::Ne(_) => &["=="],
        BinOp::And(_) => &["||"],
        BinOp::Or(_) => &["&&"],
        BinOp::Add(_) => &["-"],
        BinOp::Sub(_) => &["+"],
        BinOp::Mul(_) => &["/"],
        BinOp::Div(_) => &["*"],
        BinOp::Rem(_) => &["/"],
        BinOp::AddAssign(_) => &["-="],
        BinOp::SubAssign(_) => &["+="],
        _ => &[],
    }
}

fn takes_all(pattern: &Pat) -> bool {
    match pattern {
        Pat::Wild(_) => true,
        Pat::Ident(ident) => {
            ident.subpat.is_none() && ident.ident.to_string().starts_with(char::is_lowercase)
        }
        _ => false,
    }
}

/// Whether the condition binds names, so that it cannot be put into parentheses.
fn has_let(expression: &Expr) -> bool {
    match expression {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || (attribute.path().is_ident("cfg")
                && attribute
                    .meta
                    .require_list()
                    .is_ok_and(|list| list.tokens.to_string().contains("test")))
    })
}

fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
