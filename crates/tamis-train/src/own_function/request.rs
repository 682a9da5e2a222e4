//! The bytes of a request: a line of JSON that names the columns, and behind it their numbers.

use serde_json::{Value as Json, json};

/// Columns of a batch, in the form in which they are sent.
#[derive(Debug, Default)]
pub(super) struct Request {
    names: Vec<String>,
    /// Name, type (`d`, `q`, `?`) and length.
    columns: Vec<Json>,
    body: Vec<u8>,
    num_tokens: usize,
}

impl Request {
    pub(super) fn of_tokens(num_tokens: usize) -> Self {
        Self { num_tokens, ..Self::default() }
    }

    fn add(&mut self, name: &str, kind: char, length: usize) {
        let outer = name.split('.').next().unwrap_or(name);
        if self.names.last().is_none_or(|last| last != outer) {
            self.names.push(outer.to_owned());
        }
        self.columns.push(json!([name, kind, length]));
    }

    /// A column of numbers; the function gets `None` for one that is not there.
    pub(super) fn floats(&mut self, name: &str, numbers: Option<impl ExactSizeIterator<Item = f64>>) {
        let Some(numbers) = numbers else {
            self.names.push(name.to_owned());
            return;
        };
        self.add(name, 'd', numbers.len());
        numbers.for_each(|number| self.body.extend_from_slice(&number.to_ne_bytes()));
    }

    /// A column of whole numbers.
    pub(super) fn integers(&mut self, name: &str, numbers: impl ExactSizeIterator<Item = usize>) {
        self.add(name, 'q', numbers.len());
        numbers.for_each(|number| self.body.extend_from_slice(&(number as i64).to_ne_bytes()));
    }

    /// A column of flags.
    pub(super) fn flags(&mut self, name: &str, flags: &[bool]) {
        self.add(name, '?', flags.len());
        self.body.extend(flags.iter().map(|&flag| u8::from(flag)));
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        let header = json!({"names": self.names, "columns": self.columns, "num_tokens": self.num_tokens});
        let mut bytes = header.to_string().into_bytes();
        bytes.push(b'\n');
        bytes.extend(self.body);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_names_the_columns_and_their_bytes_follow() {
        let mut request = Request::of_tokens(2);
        request.floats("logprobs", Some([-0.5, 2.0].into_iter()));
        request.floats("ref_logprobs", None::<std::vec::IntoIter<f64>>);
        request.integers("offsets", [0, 2].into_iter());
        request.flags("mask", &[true, false]);
        request.floats("scores.acc", Some([1.0].into_iter()));
        request.floats("scores.format", Some([0.0].into_iter()));
        let bytes = request.into_bytes();
        let (line, body) = bytes.split_at(bytes.iter().position(|&byte| byte == b'\n').expect("a line") + 1);
        let header: Json = serde_json::from_slice(line).expect("JSON");
        assert_eq!(header["names"], json!(["logprobs", "ref_logprobs", "offsets", "mask", "scores"]));
        assert_eq!(
            header["columns"],
            json!([
                ["logprobs", "d", 2],
                ["offsets", "q", 2],
                ["mask", "?", 2],
                ["scores.acc", "d", 1],
                ["scores.format", "d", 1]
            ])
        );
        assert_eq!(header["num_tokens"], 2);
        assert_eq!(body.len(), 16 + 16 + 2 + 16);
        assert_eq!(body[8..16], 2.0_f64.to_ne_bytes());
        assert_eq!(body[32..34], [1, 0]);
    }
}
