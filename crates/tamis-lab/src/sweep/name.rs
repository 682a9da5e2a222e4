//! Templates of run names: `{date}_{algo}_inc{include_zero:upper}`.

/// A template of run names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Value { name: String, case: Case },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    AsIs,
    Upper,
    Lower,
}

impl Template {
    /// Parses a template. Braces hold the name of an axis, `date` or `seed`, and optionally `:upper` or
    /// `:lower`.
    ///
    /// # Errors
    /// A sentence about the mistake.
    ///
    /// ```
    /// use tamis_lab::sweep::name::Template;
    /// let template = Template::parse("{date}_inc{zero:upper}").expect("a template");
    /// let value = |name: &str| Some(if name == "date" { "0120" } else { "False" }.to_owned());
    /// assert_eq!(template.fill(value), Ok("0120_incFALSE".to_owned()));
    /// ```
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.find(['{', '}']) {
            let (before, from) = rest.split_at(open);
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            let inside = from.strip_prefix('{').and_then(|from| from.split_once('}'));
            let Some((inside, behind)) = inside.filter(|(inside, _)| !inside.contains('{')) else {
                return Err(format!("`{text}` has a brace without its partner"));
            };
            let (name, case) = match inside.rsplit_once(':') {
                None => (inside, Case::AsIs),
                Some((name, "upper")) => (name, Case::Upper),
                Some((name, "lower")) => (name, Case::Lower),
                Some((_, form)) => {
                    return Err(format!("`{{{inside}}}` has the form `{form}`: it is `upper` or `lower`"));
                }
            };
            parts.push(Part::Value { name: name.trim().to_owned(), case });
            rest = behind;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Ok(Self { parts })
    }

    /// The names in its braces.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Value { name, .. } => Some(name.as_str()),
            Part::Text(_) => None,
        })
    }

    /// Fills the template with values.
    ///
    /// # Errors
    /// The first name without a value.
    pub fn fill(&self, value: impl Fn(&str) -> Option<String>) -> Result<String, String> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(part) => text.push_str(part),
                Part::Value { name, case } => {
                    let value = value(name).ok_or_else(|| name.clone())?;
                    text.push_str(&match case {
                        Case::AsIs => value,
                        Case::Upper => value.to_uppercase(),
                        Case::Lower => value.to_lowercase(),
                    });
                }
            }
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_template() {
        assert_eq!(Template::parse("a{b").unwrap_err(), "`a{b` has a brace without its partner");
        assert_eq!(Template::parse("a}").unwrap_err(), "`a}` has a brace without its partner");
        assert_eq!(
            Template::parse("{a:big}").unwrap_err(),
            "`{a:big}` has the form `big`: it is `upper` or `lower`"
        );
    }

    #[test]
    fn a_name_without_a_value() {
        let template = Template::parse("{a}_{b}").unwrap();
        assert_eq!(template.fill(|name| (name == "a").then(|| "1".to_owned())), Err("b".to_owned()));
        assert_eq!(template.names().collect::<Vec<_>>(), ["a", "b"]);
    }
}
