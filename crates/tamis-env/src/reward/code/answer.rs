//! The program of a completion.

tamis_core::choice! {
    /// How the program is found in a completion.
    pub enum CodeExtract {
        /// The last block in a fence of three backticks that is marked `python` (or `py`, `python3`). If
        /// there is none, the last block without a mark. The last block may be open.
        Fenced = "fenced",
        /// The content of the last `<answer>...</answer>`, without a fence around it.
        Answer = "answer",
        /// The whole completion.
        Whole = "whole",
    }
}

/// The program of a completion; `None` if there is none.
pub(super) fn extract(completion: &str, place: CodeExtract) -> Option<String> {
    match place {
        CodeExtract::Fenced => last_block(completion),
        CodeExtract::Answer => {
            let (_, last) = completion.rsplit_once("<answer>")?;
            let (inside, _) = last.split_once("</answer>")?;
            Some(last_block(inside).unwrap_or_else(|| inside.trim().to_owned()))
        }
        CodeExtract::Whole => Some(completion.to_owned()),
    }
}

pub(super) fn write(program: &str, place: CodeExtract) -> String {
    let is_fenced = last_block(program).is_some();
    match place {
        CodeExtract::Fenced if is_fenced => program.to_owned(),
        CodeExtract::Fenced => format!("```python\n{program}\n```"),
        CodeExtract::Answer => format!("<answer>\n{program}\n</answer>"),
        CodeExtract::Whole => last_block(program).unwrap_or_else(|| program.to_owned()),
    }
}

/// The last block marked as Python, or else the last without a mark.
fn last_block(text: &str) -> Option<String> {
    let (mut marked, mut plain) = (None, None);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let opening = line.trim_start();
        let length = opening.len() - opening.trim_start_matches('`').len();
        if length < 3 || opening[length..].contains('`') {
            continue;
        }
        let mark = opening[length..].split_whitespace().next().unwrap_or_default().to_lowercase();
        let indent = &line[..line.len() - opening.len()];
        let mut block = String::new();
        for line in lines.by_ref() {
            let closing = line.trim();
            if closing.len() >= length && closing.bytes().all(|byte| byte == b'`') {
                break;
            }
            // A block in a list is indented with it.
            block.push_str(line.strip_prefix(indent).unwrap_or(line));
            block.push('\n');
        }
        match mark.as_str() {
            "python" | "py" | "python3" => marked = Some(block),
            "" => plain = Some(block),
            _ => {}
        }
    }
    marked.or(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_block_of_python_is_the_program() {
        let of = |text: &str| extract(text, CodeExtract::Fenced);
        assert_eq!(of("```python\na\n```\nor\n```py\nb\n```\nprints\n```\n3\n```").as_deref(), Some("b\n"));
        assert_eq!(of("so\n```\na = 1\n```\n```json\n{}\n```").as_deref(), Some("a = 1\n"));
        assert_eq!(of("1. Do\n   ```python\n   if x:\n       y\n   ```").as_deref(), Some("if x:\n    y\n"));
        assert_eq!(of("````python\ns = '''\n```\n'''\n````").as_deref(), Some("s = '''\n```\n'''\n"));
        assert_eq!(of("```Python title\ncut off").as_deref(), Some("cut off\n"));
        assert_eq!(of("no program"), None);
        assert_eq!(of("```inline``` code"), None);
        assert_eq!(of("```json\n{}\n```"), None);
    }

    #[test]
    fn other_places() {
        let of = |text: &str| extract(text, CodeExtract::Answer);
        assert_eq!(of("<answer>a</answer> <answer> b </answer>").as_deref(), Some("b"));
        assert_eq!(of("<answer>\n```python\nb\n```\n</answer>").as_deref(), Some("b\n"));
        assert_eq!(of("<answer>b"), None);
        assert_eq!(extract("x = 1", CodeExtract::Whole).as_deref(), Some("x = 1"));
        for place in CodeExtract::ALL {
            for program in ["x = 1", "```python\nx = 1\n```"] {
                let found = extract(&write(program, *place), *place).unwrap();
                assert_eq!(found.trim(), "x = 1", "{place}");
            }
        }
    }
}
