//! Verdicts, laws and bounds of `math`.

use super::*;
use crate::reward::after_think::AfterThink;
use crate::reward::by_source::BySource;
use crate::reward::cosine::{Cosine, CosineSchedule};
use crate::reward::test_prompt;
use proptest::prelude::*;

fn is_right(answer: &str, truth: &str) -> bool {
    verify(&format!("\\boxed{{{answer}}}"), truth) == Some(true)
}

/// Pairs of an answer and a ground truth.
type Pairs = [(&'static str, &'static str)];

const EQUAL_NUMBERS: &Pairs = &[
    ("4", "4.0"),
    ("72.0", "72"),
    (".5", "0.50"),
    ("-\\frac{1}{2}", "\\frac{-1}{2}"),
    ("\\frac12", "0.5"),
    ("\\tfrac12", "0.5"),
    ("\\dfrac{2}{4}", "1/2"),
    ("1\\frac{1}{2}", "3/2"),
    ("2 1/3", "7/3"),
    ("-2 1/3", "-7/3"),
    ("2\\cdot 3\\frac12", "7"),
    ("50\\%", "\\frac{1}{2}"),
    ("50\\%", "50 \\text{ percent}"),
    ("1,000", "1000"),
    ("1 234", "1234"),
    ("1\\,234", "1234"),
    ("11,\\! 111,\\! 111", "11,111,111"),
    ("12{,}345.6", "$12,345.60$"),
    ("−3", "-3"),
    ("10^{3}", "1000"),
    ("2^10", "1024"),
    ("10^-3", "0.001"),
    ("3\\times 10^2", "300"),
    ("5!", "120"),
    ("|-3|", "3"),
    ("\\lfloor 2.5 \\rfloor", "2"),
    ("\\binom52", "10"),
    ("\\log_2 8", "3"),
    ("\\log_28", "3"),
    ("\\ln 8", "3\\ln 2"),
    ("4210_5", "4210_{5}"),
    ("99999999999999999999999999999999999999999999", "99999999999999999999999999999999999999999999"),
];

const EQUAL_UNITS: &Pairs = &[
    ("\\$5.00", "5"),
    ("4\\text{ cm}^2", "4"),
    ("4\\mathrm{~cm}^{2}", "4 \\text{ square centimeters}"),
    ("90^\\circ", "90"),
    ("90^{\\circ}", "90 \\text{ degrees}"),
    ("5 dollars", "\\$5"),
    ("12 km", "12km"),
    ("5\\text{ apples}", "5"),
    ("2 \\text{ minutes}", "2\\text{ min}"),
    ("5\\text{ sec}", "5\\text{ s}"),
];

const EQUAL_EXPRESSIONS: &Pairs = &[
    ("sqrt(51)", "\\sqrt{51}"),
    ("3*sqrt(13)", "3\\sqrt{13}"),
    ("1+√3i", "1+\\sqrt{3}i"),
    ("\\sqrt{8}", "2\\sqrt2"),
    ("\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt{2}}{2}"),
    ("\\frac{3}{2+\\sqrt{3}}", "6-3\\sqrt3"),
    ("\\sqrt[3]{27}", "3"),
    ("\\sqrt[3]{4}\\sqrt[3]{2}", "2"),
    ("\\sqrt{-4}", "2i"),
    ("3+4\\mathrm{i}", "3+4i"),
    ("1-\\frac{1}{\\mathrm{e}}", "1-\\frac{1}{e}"),
    ("\\frac{1}{1+i}", "\\frac{1-i}{2}"),
    ("2\\mathrm{e}", "2e"),
    ("e^{x}", "e^x"),
    ("\\exp(2x)", "e^x e^x"),
    ("2^{n+1}", "2\\cdot 2^n"),
    ("4^n", "2^{2n}"),
    ("2\\pi r", "2r\\pi"),
    ("2pi", "2\\pi"),
    ("f(x)=x^2+2x+1", "(x+1)^2"),
    ("\\frac{x^2-1}{x-1}", "x+1"),
    ("\\frac{1}{x}+\\frac{1}{y}", "\\frac{x+y}{xy}"),
    ("x^{1/2}", "\\sqrt{x}"),
    ("2\\sqrt{x^2+1}", "\\sqrt{4x^2+4}"),
    ("\\frac{1}{\\sqrt{x+1}}", "\\frac{\\sqrt{x+1}}{x+1}"),
    ("\\sin^2 x", "(\\sin x)^2"),
    ("\\sin x\\cos x", "\\cos x \\sin(x)"),
    ("\\cos 60^\\circ", "\\cos\\frac{\\pi}{3}"),
    ("a_1+a_{n+1}", "a_{n+1} + a_1"),
];

const EQUAL_COLLECTIONS: &Pairs = &[
    ("\\left(1, 2\\right)", "(1,2)"),
    ("(1,234)", "(1, 234)"),
    ("(-\\frac13, \\text{red})", "(-1/3, red)"),
    ("\\{2,1,1\\}", "\\{1,2\\}"),
    ("\\{\\}", "\\emptyset"),
    ("2, 1", "1,2"),
    ("1331, 1728", "1331 \\text{ and } 1728"),
    ("1, 2, and 3", "3,2,1"),
    ("3, -3", "3 \\text{ or } -3"),
    ("\\pm 3", "3,-3"),
    ("\\frac{1\\pm\\sqrt5}{2}", "\\frac{1-\\sqrt5}{2}, \\frac{1+\\sqrt5}{2}"),
    ("[1,\\infty)", "[1, \\infty)"),
    ("(-\\infty,-1)\\cup(1,2)", "(1,2) \\cup (-\\infty,-1)"),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{bmatrix} 2/2 \\\\ 2 \\end{bmatrix}"),
    (
        "\\begin{pmatrix} -1/3 \\\\ 2/3 \\end{pmatrix}",
        "\\begin{pmatrix} -\\frac{1}{3} \\\\ \\frac{2}{3} \\end{pmatrix}",
    ),
];

const EQUAL_RELATIONS: &Pairs = &[
    ("x=5", "5"),
    ("3", "x = y = 3"),
    ("x=2+3=5", "5"),
    ("x=2, x=1", "x=1, x=2"),
    ("x=1,2", "x=1 \\text{ or } x=2"),
    ("x=\\pm 2", "2,-2"),
    ("y=2, x=1", "x=1, y=2"),
    ("(x,y)=(1,2)", "(1,2)"),
    ("(x,y)=(1,2) \\text{ or } (3,4)", "(3,4), (1,2)"),
    ("y=2x+3", "2x-y+3=0"),
    ("x \\in [0,1]", "[0,1]"),
    ("x\\in[-2,7]", "-2 \\le x \\le 7"),
    ("x \\ge 5", "x \\geq 5"),
    ("5 \\leqslant x", "[5,\\infty)"),
    ("x<1 \\text{ or } x>2", "(-\\infty,1)\\cup(2,\\infty)"),
    ("x+y<2", "2>y+x"),
];

const EQUAL_TEXTS: &Pairs = &[
    ("\\text{(B)}", "B"),
    ("\\text{Friday}", "friday"),
    ("\\mathrm{no\\ solution}", "\\text{no solution}"),
    ("\\overline{AB}", "\\overline{AB}"),
    ("x \\neq 3", "x \\ne 3"),
    ("10:30", "10:30"),
];

/// Answers that differ because they are joined, dropped or read as something else.
const DIFFERENT: &Pairs = &[
    ("0.333", "1/3"),
    ("3.14159", "\\pi"),
    ("1/0", "1"),
    ("0^0", "1"),
    ("\\infty-\\infty", "0"),
    ("", "1"),
    ("1,00", "100"),
    ("\\frac{1}{2", "\\frac{1}{2}"),
    ("\\frac919", "\\frac{9}{19}"),
    ("\\sqrt23", "\\sqrt{23}"),
    ("170141183460469231731687303715884105728", "-170141183460469231731687303715884105728"),
    // Values side by side.
    ("1 \\text{ or } 2", "12"),
    ("1 2", "12"),
    ("2 3", "6"),
    ("2 1/3", "7"),
    ("1 1/4", "11/4"),
    ("2 5/3", "10/3"),
    ("2{3}", "6"),
    ("13311728", "1331 \\text{ and } 1728"),
    ("530", "5 \\text{ hours } 30 \\text{ minutes}"),
    ("1,2,345", "1,2345"),
    ("x2", "2x"),
    ("\\text{a 1 2}", "\\text{a 12}"),
    // Symbols and values that are not units.
    ("2\\mathrm{e}", "2"),
    ("3+4\\mathrm{i}", "7"),
    ("x", "x\\mathrm{e}^2"),
    ("5 ab", "5"),
    ("6 abcd", "6"),
    ("2 theta", "2"),
    ("5\\text{ cm}", "5\\text{ m}"),
    ("5\\text{ cm}", "5\\text{ cm}^2"),
    ("5 \\text{ million}", "5"),
    ("5 \\text{ tenths}", "5"),
    ("5 \\text{ or more}", "5"),
    ("4\\%", "4"),
    ("50\\text{ percent}", "50"),
    ("555", "4210_5"),
    // Equations.
    ("2", "x=1, y=2"),
    ("2, 1", "x=1, y=2"),
    ("x=3, y=2", "x=1, y=2"),
    ("2", "x=1 \\text{ or } x=2"),
    ("x=5 \\text{ or } x=2", "x=1 \\text{ or } x=2"),
    ("2", "A = 1 and B = 2"),
    ("y=5", "x=5"),
    ("x=5=6", "6"),
    ("1=2", "1=3"),
    ("2x+1=7", "x=3"),
    ("x=2x-3", "x=3"),
    ("2x=2\\sqrt2", "x=\\sqrt2"),
    ("xy=6", "6"),
    ("x>5", "x\\ge 5"),
    ("x>5", "x<5"),
    ("x+y<2", "x+y>2"),
    // Order, brackets, repetition.
    ("(2,1)", "(1,2)"),
    ("(1,2)", "[1,2)"),
    ("(1,2)", "\\{1,2\\}"),
    ("\\{1\\}", "\\{1,2\\}"),
    ("1,1,2", "1,2"),
    ("3", "\\pm 3"),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}1&2\\end{pmatrix}"),
    // Rules that do not hold for all values.
    ("x+1", "x-1"),
    ("2x", "x^2"),
    ("\\sqrt{x^2}", "x"),
    ("3!!", "720"),
    ("f\\circ g", "g\\circ f"),
    ("\\sqrt{x}\\sqrt{y}", "\\sqrt{xy}"),
    ("(-8)^{1/3}", "-2"),
    ("\\sin^{-1} x", "\\frac{1}{\\sin x}"),
    ("\\log 8", "\\ln 8"),
    ("\\sin 30", "\\sin 30^\\circ"),
    // Words.
    ("act", "cat"),
    ("HTT", "THT"),
    ("a \\to b", "b \\to a"),
    ("\\overline{AB}", "\\overline{BA}"),
];

#[test]
fn equal_answers() {
    let tables =
        [EQUAL_NUMBERS, EQUAL_UNITS, EQUAL_EXPRESSIONS, EQUAL_COLLECTIONS, EQUAL_RELATIONS, EQUAL_TEXTS];
    for (answer, truth) in tables.concat() {
        let values = || (read(answer), read(truth));
        assert!(is_right(answer, truth) && is_right(truth, answer), "{answer} = {truth}: {:?}", values());
    }
    // A ground truth of several plain words is prose.
    assert!(is_right("no solution", "\\text{no solution}"));
}

#[test]
fn different_answers() {
    for &(answer, truth) in DIFFERENT {
        let values = || (read(answer), read(truth));
        assert!(!is_right(answer, truth) && !is_right(truth, answer), "{answer} and {truth}: {:?}", values());
    }
    assert_eq!(verify("\\boxed{1}", ""), None);
    assert_eq!(verify("\\boxed{1}", "no gold here"), None);
    assert_eq!(verify("1", "1"), Some(false));
    assert_eq!(verify("\\boxed{1} \\boxed{2", "1"), Some(false));
    assert_eq!(verify("\\boxed{\\frac{1}{2}}", "so we get $\\boxed{0.5}$."), Some(true));
}

#[test]
fn several_equations_by_source() {
    let source = BySource::new([]);
    let prompt = Prompt { data_source: "numina_cn_k12".to_owned(), ..test_prompt("m=2, n=3") };
    for (completion, acc) in [("\\boxed{3}", 0.0), ("\\boxed{n=3, m=2}", 1.0)] {
        let outcome = &source.score(&[RewardInput::text(&prompt, completion)])[0];
        assert_eq!(outcome.get("acc"), Some(acc), "{completion}");
    }
}

/// Whether both sides are plain numbers or fractions, for which `math` promises agreement.
fn is_numeric(completion: &str, truth: &str) -> bool {
    let is_number = |text: &str| match read(text) {
        Some(MathValue::Number(value, _)) => value.as_rational().is_some(),
        _ => false,
    };
    completion.matches("\\boxed{").count() == 1
        && last_boxed(completion).is_some_and(is_number)
        && is_number(truth)
}

#[test]
fn reference_vectors() {
    let (mut num_numeric, mut num_matched) = (0, 0);
    for case in tamis_golden::cases("trl_reward_accuracy") {
        let name = case["name"].as_str().unwrap();
        let truth = case["inputs"]["solution"].as_str().unwrap();
        let prompt = test_prompt(truth);
        let ids = vec![0; case["inputs"]["completion_length"].as_u64().unwrap() as usize];
        let schedule = CosineSchedule::with_max_length(case["params"]["cosine_max_len"].as_u64().unwrap());
        let functions: [(&str, &str, Box<dyn RewardFunction>); 3] = [
            ("accuracy", "completion", Box::new(Math {})),
            ("reasoning_accuracy", "reasoning_completion", Box::new(AfterThink::new(Box::new(Math {})))),
            ("cosine", "completion", Box::new(Cosine::new(Box::new(Math {}), schedule).unwrap())),
        ];
        for (output, input, function) in functions {
            let completion = case["inputs"][input].as_str().unwrap();
            let input = RewardInput { completion_ids: &ids, ..RewardInput::text(&prompt, completion) };
            let ours = function.score(&[input])[0].get("score");
            let theirs = case["outputs"][output].as_f64();
            let matches = match (ours, theirs) {
                (Some(ours), Some(theirs)) => (ours - theirs).abs() < 1e-12,
                (ours, theirs) => ours.is_none() && theirs.is_none(),
            };
            num_numeric += usize::from(is_numeric(completion, truth));
            num_matched += usize::from(matches);
            if !matches {
                assert!(!is_numeric(completion, truth), "{name} {output}: {ours:?}, expected {theirs:?}");
                let reason = match completion.matches("\\boxed{").count() {
                    0 => "math-verify also reads answers outside a box",
                    1 => "the grammar does not hold it",
                    _ => "math-verify takes several boxes as one answer, we take the last",
                };
                println!("out of scope: {name} {output} `{completion}` against `{truth}`: {reason}");
            }
        }
    }
    println!("{num_matched} matched, {num_numeric} of them numbers or fractions");
    assert!(num_numeric > 0);
}

/// A parser with more than linear time would not finish here.
#[test]
fn long_and_deep_texts_are_read() {
    let units = [
        "\\boxed{",
        "{",
        "}",
        "\\frac",
        "$",
        "(",
        "-",
        "9",
        "\\text{a}",
        "x^",
        "{,}",
        " ",
        "é",
        "1\\frac{",
        "\\ln(",
        "\\ln",
        "√",
        "\\{",
        "2^{",
        "|x",
        "^{a+b}",
        "1/(a+b)^9,",
    ];
    for (place, unit) in units.into_iter().enumerate() {
        for length in [100, 390, 100_000] {
            let text = unit.repeat(length / unit.len());
            let _ = verify(&text, "1");
            let _ = verify(&format!("\\boxed{{{text}}}"), &text);
            let other = units[(place + 1) % units.len()].repeat(390 / unit.len() / 2);
            let _ = read(&(text + &other));
        }
    }
    let powers = |count| format!("{}x{}", "(".repeat(count), "^{a+b})".repeat(count));
    for count in 1..50 {
        let _ = read(&powers(count));
    }
    assert!(matches!(read("x^{x^{999999999}}"), Some(MathValue::Text(_))));
    assert!(matches!(read("999^{999999999}"), Some(MathValue::Text(_))));
    assert!(matches!(read("(a+b+c)^{60}"), Some(MathValue::Text(_))));
    assert!(matches!(read("999999999!"), Some(MathValue::Text(_))));
    assert!(matches!(read("\\sqrt{340282366920938463463374607431768211297}"), Some(MathValue::Text(_))));
}

proptest! {
    #[test]
    fn any_text_is_judged_without_panic(text in "\\PC{0,80}", truth in "\\PC{0,40}") {
        let _ = verify(&format!("\\boxed{{{text}}}"), &truth);
        let _ = read(&text);
    }

    #[test]
    fn any_latex_is_judged_without_panic(
        parts in proptest::collection::vec(proptest::sample::select(vec![
            "\\frac", "{", "}", "(", ")", "[", "]", "\\{", "\\}", "1", "23", ".5", "x", "ab", "\\pi", "\\sqrt",
            "sqrt", "^", "_", "!", "|", "%", ",", "-", "+", "*", "/", "=", "<", "\\le", "\\in ", "\\cup", "\\pm",
            "\\infty", "\\text{", "\\text{ cm}", "\\text{ or }", "\\log", "\\sin", "\\binom", "^\\circ", "i", "e",
            "\\begin{pmatrix}", "\\end{pmatrix}", "\\\\", "&", "(a+b)^9", " ", "é", "√", "\\", "9999999999999",
        ]), 0..40),
    ) {
        let text: String = parts.concat();
        if let Some(value) = read(&text) {
            prop_assert!(is_equal(&value, &value), "{text}");
            prop_assert_eq!(Some(value), read(&format!(" {text} ")));
        }
    }
}
