//! The law of `math`: no accepted pair differs when both sides are evaluated at random points.
//!
//! Random expressions are written as LaTeX, and evaluated beside it without any of this module's algebra.

use proptest::prelude::*;

use super::polynomial::{Atom, Polynomial};
use super::quotient::Quotient;
use super::{MathValue, is_equal, read};

#[derive(Debug, Clone, Copy, PartialEq)]
struct Complex(f64, f64);

impl Complex {
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0, self.1 + other.1)
    }

    fn mul(self, other: Self) -> Self {
        Self(self.0 * other.0 - self.1 * other.1, self.0 * other.1 + self.1 * other.0)
    }

    fn size(self) -> f64 {
        self.0.hypot(self.1)
    }

    fn inverse(self) -> Self {
        let square = self.0 * self.0 + self.1 * self.1;
        Self(self.0 / square, -self.1 / square)
    }

    fn exp(self) -> Self {
        Self(self.0.exp() * self.1.cos(), self.0.exp() * self.1.sin())
    }

    /// The principal logarithm; what rounding moved off the negative axis is moved back.
    fn ln(self) -> Self {
        let imaginary = if self.1.abs() < 1e-9 * self.0.abs() { 0.0 } else { self.1 };
        Self(self.size().ln(), imaginary.atan2(self.0))
    }

    fn pow(self, exponent: Self) -> Self {
        if exponent.1 == 0.0 && exponent.0.fract() == 0.0 && exponent.0.abs() < 100.0 {
            let base = if exponent.0 < 0.0 { self.inverse() } else { self };
            return (0..exponent.0.abs() as usize).fold(Self(1.0, 0.0), |power, _| power.mul(base));
        }
        self.ln().mul(exponent).exp()
    }

    fn sin(self) -> Self {
        Self(self.0.sin() * self.1.cosh(), self.0.cos() * self.1.sinh())
    }

    fn is_near(self, other: Self) -> bool {
        self.add(other.mul(Self(-1.0, 0.0))).size() < 1e-6 * (1.0 + self.size())
    }

    fn is_tame(self) -> bool {
        (1e-4..1e6).contains(&self.size())
    }
}

/// An expression, and how it is written.
#[derive(Debug, Clone)]
enum Tree {
    Integer(i8),
    Symbol(&'static str),
    Sum(Box<Tree>, Box<Tree>),
    Difference(Box<Tree>, Box<Tree>),
    Product(Box<Tree>, Box<Tree>, &'static str),
    Ratio(Box<Tree>, Box<Tree>, bool),
    Power(Box<Tree>, Box<Tree>),
    Root(Box<Tree>, bool),
    CubeRoot(u8),
    Sine(Box<Tree>),
    Logarithm(Box<Tree>),
}

impl Tree {
    fn latex(&self) -> String {
        let closed = |tree: &Self| match tree {
            Self::Integer(0..) | Self::Symbol(_) => tree.latex(),
            _ => format!("({})", tree.latex()),
        };
        match self {
            Self::Integer(value) => value.to_string(),
            Self::Symbol(name) => (*name).to_owned(),
            Self::Sum(left, right) => format!("{}+{}", left.latex(), closed(right)),
            Self::Difference(left, right) => format!("{} - {}", left.latex(), closed(right)),
            Self::Product(left, right, sign) => format!("{}{sign}({})", closed(left), right.latex()),
            Self::Ratio(left, right, true) => format!("\\frac{{{}}}{{{}}}", left.latex(), right.latex()),
            Self::Ratio(left, right, false) => format!("{}/{}", closed(left), closed(right)),
            Self::Power(base, exponent) => format!("{}^{{{}}}", closed(base), exponent.latex()),
            Self::Root(inside, true) => format!("\\sqrt{{{}}}", inside.latex()),
            Self::Root(inside, false) => format!("sqrt({})", inside.latex()),
            Self::CubeRoot(value) => format!("\\sqrt[3]{{{value}}}"),
            Self::Sine(inside) => format!("\\sin({})", inside.latex()),
            Self::Logarithm(inside) => format!("\\ln({})", inside.latex()),
        }
    }

    /// The value at a point; `None` beside poles and at sizes that rounding blurs.
    fn evaluate(&self, point: [Complex; 2]) -> Option<Complex> {
        let of = |tree: &Self| tree.evaluate(point);
        let half = Complex(0.5, 0.0);
        let value = match self {
            Self::Integer(value) => return Some(Complex(f64::from(*value), 0.0)),
            Self::Symbol(name) => symbol(name, point),
            Self::Sum(left, right) => of(left)?.add(of(right)?),
            Self::Difference(left, right) => of(left)?.add(of(right)?.mul(Complex(-1.0, 0.0))),
            Self::Product(left, right, _) => of(left)?.mul(of(right)?),
            Self::Ratio(left, right, _) => of(left)?.mul(of(right)?.inverse()),
            Self::Power(base, exponent) => of(base)?.pow(of(exponent)?),
            Self::Root(inside, _) => of(inside)?.pow(half),
            Self::CubeRoot(value) => Complex(f64::from(*value).cbrt(), 0.0),
            Self::Sine(inside) => of(inside)?.sin(),
            Self::Logarithm(inside) => of(inside)?.ln(),
        };
        Some(value).filter(|value| value.is_tame())
    }

    /// The tree with a rule applied at its top: some are right, some are common mistakes.
    fn rewritten(self, rule: usize) -> Self {
        type Part = Box<Tree>;
        let integer = |value| Box::new(Self::Integer(value));
        let power = |base: Part, exponent: Part| Box::new(Self::Power(base, exponent));
        let half = |tree: Part, form| Box::new(Self::Ratio(tree, integer(2), form));
        match (self, rule) {
            (Self::Sum(a, b), 0) => Self::Sum(b, a),
            (Self::Sum(a, b), _) => Self::Difference(a, Box::new(Self::Product(integer(-1), b, "*"))),
            (Self::Difference(a, b), _) => Self::Difference(b, a),
            (Self::Product(a, b, sign), 0) => Self::Product(b, a, sign),
            (Self::Product(a, b, _), 1) => Self::Ratio(a, power(b, integer(-1)), true),
            (Self::Product(a, b, _), _) => Self::Sum(a, b),
            (Self::Ratio(a, b, form), 0) => Self::Ratio(b, a, form),
            (Self::Ratio(a, b, _), 1) => Self::Product(a, power(b, integer(-1)), ""),
            (Self::Ratio(a, b, form), _) => {
                Self::Ratio(Box::new(Self::Product(a, b.clone(), "")), power(b, integer(2)), form)
            }
            (Self::Root(inside, form), rule) => match (*inside, rule) {
                (Self::Product(a, b, sign), 0) => {
                    Self::Product(Box::new(Self::Root(a, form)), Box::new(Self::Root(b, form)), sign)
                }
                (Self::Power(base, exponent), 1) => Self::Power(base, half(exponent, form)),
                (inside, _) => Self::Power(Box::new(inside), half(integer(1), form)),
            },
            (Self::Power(base, exponent), rule) => match (*base, *exponent, rule) {
                (Self::Power(base, first), second, _) => {
                    Self::Power(base, Box::new(Self::Product(first, Box::new(second), "*")))
                }
                (Self::Product(a, b, _), exponent, _) => {
                    let exponent = Box::new(exponent);
                    Self::Product(power(a, exponent.clone()), power(b, exponent), "")
                }
                (Self::Sum(a, b), exponent, 0) => {
                    let exponent = Box::new(exponent);
                    Self::Sum(power(a, exponent.clone()), power(b, exponent))
                }
                (base, Self::Sum(a, b), _) => {
                    let base = Box::new(base);
                    Self::Product(power(base.clone(), a), power(base, b), "*")
                }
                (base, exponent, _) => Self::Power(Box::new(exponent), Box::new(base)),
            },
            (Self::Logarithm(inside), _) => match *inside {
                Self::Product(a, b, _) => {
                    Self::Sum(Box::new(Self::Logarithm(a)), Box::new(Self::Logarithm(b)))
                }
                inside => Self::Sine(Box::new(inside)),
            },
            (tree, _) => tree,
        }
    }
}

fn symbol(name: &str, point: [Complex; 2]) -> Complex {
    match name.trim() {
        "x" => point[0],
        "y" => point[1],
        "e" => Complex(std::f64::consts::E, 0.0),
        "\\pi" => Complex(std::f64::consts::PI, 0.0),
        "i" => Complex(0.0, 1.0),
        name => panic!("no symbol of the trees: {name}"),
    }
}

fn evaluate(value: &Quotient, point: [Complex; 2]) -> Complex {
    let (numerator, denominator) = value.parts();
    polynomial(numerator, point).mul(polynomial(denominator, point).inverse())
}

fn polynomial(value: &Polynomial, point: [Complex; 2]) -> Complex {
    terms(value, point).into_iter().fold(Complex(0.0, 0.0), Complex::add)
}

fn terms(value: &Polynomial, point: [Complex; 2]) -> Vec<Complex> {
    value
        .terms()
        .map(|(powers, coefficient)| {
            let coefficient = coefficient.numerator() as f64 / coefficient.denominator() as f64;
            powers.iter().fold(Complex(coefficient, 0.0), |product, (atom, exponent)| {
                let exponent = exponent.numerator() as f64 / exponent.denominator() as f64;
                product.mul(self::atom(atom, point).pow(Complex(exponent, 0.0)))
            })
        })
        .collect()
}

/// Whether the terms cancel so far that rounding blurs what is left, as in a high power that was multiplied
/// out.
fn is_blurred(value: &Quotient, point: [Complex; 2]) -> bool {
    let (numerator, denominator) = value.parts();
    [numerator, denominator].into_iter().any(|part| {
        let sizes: f64 = terms(part, point).into_iter().map(Complex::size).sum();
        sizes > 1e8 * polynomial(part, point).size()
    })
}

fn atom(atom: &Atom, point: [Complex; 2]) -> Complex {
    match atom {
        Atom::Prime(prime) => Complex(*prime as f64, 0.0),
        Atom::Imaginary => Complex(0.0, 1.0),
        Atom::Symbol(name) => symbol(name, point),
        Atom::Power(base, exponent) => evaluate(base, point).pow(evaluate(exponent, point)),
        Atom::Group(inside) => evaluate(inside, point),
        Atom::Call("sin", arguments) => evaluate(&arguments[0], point).sin(),
        Atom::Call("ln", arguments) => evaluate(&arguments[0], point).ln(),
        Atom::Call(name, _) => panic!("no function of the trees: {name}"),
    }
}

fn trees() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        (-9..10_i8).prop_map(Tree::Integer),
        proptest::sample::select(vec!["x", "y", "e", "\\pi ", "i"]).prop_map(Tree::Symbol),
        (0..30_u8).prop_map(Tree::CubeRoot),
    ];
    leaf.prop_recursive(4, 12, 2, |inner| {
        let two = (inner.clone().prop_map(Box::new), inner.clone().prop_map(Box::new));
        let one = inner.prop_map(Box::new);
        let signs = proptest::sample::select(vec!["", "*", "\\cdot ", "\\times "]);
        prop_oneof![
            two.clone().prop_map(|(a, b)| Tree::Sum(a, b)),
            two.clone().prop_map(|(a, b)| Tree::Difference(a, b)),
            (two.clone(), signs).prop_map(|((a, b), sign)| Tree::Product(a, b, sign)),
            (two.clone(), any::<bool>()).prop_map(|((a, b), form)| Tree::Ratio(a, b, form)),
            two.prop_map(|(a, b)| Tree::Power(a, b)),
            (one.clone(), any::<bool>()).prop_map(|(a, form)| Tree::Root(a, form)),
            one.clone().prop_map(Tree::Sine),
            one.prop_map(Tree::Logarithm),
        ]
    })
}

/// Trees to which the rules of [`Tree::rewritten`] apply, with little inside.
fn rewritable() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        (-3..5_i8).prop_map(Tree::Integer),
        proptest::sample::select(vec!["x", "y", "e", "i"]).prop_map(Tree::Symbol),
    ];
    let three = (leaf.clone(), leaf.clone(), leaf);
    (three.prop_map(|(a, b, c)| (Box::new(a), Box::new(b), Box::new(c))), 0..8_u8).prop_map(
        |((a, b, c), form)| {
            let product = |a, b| Box::new(Tree::Product(a, b, "*"));
            match form {
                0 => Tree::Root(product(a, b), true),
                1 => Tree::Root(Box::new(Tree::Power(a, b)), true),
                2 => Tree::Power(Box::new(Tree::Power(a, b)), c),
                3 => Tree::Power(product(a, b), c),
                4 => Tree::Power(a, Box::new(Tree::Sum(b, c))),
                5 => Tree::Power(Box::new(Tree::Sum(a, b)), c),
                6 => Tree::Logarithm(product(a, b)),
                _ => Tree::Ratio(product(a, b), c, true),
            }
        },
    )
}

fn points() -> impl Strategy<Value = [Complex; 2]> {
    let real = || prop_oneof![-3.0..3.0_f64, 0.1..3.0_f64];
    let point = move || (real(), prop_oneof![Just(0.0), -2.0..2.0_f64]).prop_map(|(re, im)| Complex(re, im));
    (point(), point()).prop_map(|(x, y)| [x, y])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn what_is_read_has_the_value_that_is_written(tree in trees(), point in points()) {
        if let (Some(MathValue::Number(value, _)), Some(expected)) = (read(&tree.latex()), tree.evaluate(point)) {
            let found = evaluate(&value, point);
            prop_assert!(is_blurred(&value, point) || found.is_near(expected), "{}: {found:?}, not {expected:?}: {value:?}", tree.latex());
        }
    }

    #[test]
    fn no_accepted_pair_differs(tree in prop_oneof![trees(), rewritable()], rule in 0..3_usize, point in points()) {
        let other = tree.clone().rewritten(rule);
        let (left, right) = (tree.latex(), other.latex());
        let (Some(one), Some(two)) = (read(&left), read(&right)) else { return Ok(()) };
        if let (true, Some(a), Some(b)) = (is_equal(&one, &two), tree.evaluate(point), other.evaluate(point)) {
            prop_assert!(a.is_near(b), "{left} and {right}: {a:?}, {b:?}");
        }
    }
}
