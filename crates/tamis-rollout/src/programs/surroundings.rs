//! The environment variables of a program.

use std::ffi::OsString;

/// Ends of the names of secrets, as the whole name or after an underscore.
const SECRETS: [&str; 9] = [
    "API_KEY",
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "ACCESS_KEY",
    "SECRET_KEY",
    "PRIVATE_KEY",
    "CREDENTIALS",
];

/// Beginnings of names that are another service's business.
const FOREIGN: [&str; 2] = ["AWS_", "OPENAI_"];

/// Whether a variable is kept from programs.
fn is_secret(name: &str) -> bool {
    let name = name.to_uppercase();
    let ends = |end: &str| name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('_'));
    SECRETS.iter().any(|end| ends(end)) || FOREIGN.iter().any(|start| name.starts_with(start))
}

/// The inherited variables that are kept, overridden by those that are set.
pub(super) fn variables(
    inherited: impl Iterator<Item = (OsString, OsString)>,
    set: Vec<(String, String)>,
) -> Vec<(OsString, OsString)> {
    let mut variables: Vec<(OsString, OsString)> = Vec::new();
    let mut exempt = "127.0.0.1,localhost".to_owned();
    for (name, value) in inherited {
        match name.to_str() {
            Some(name) if is_secret(name) => {}
            Some("no_proxy" | "NO_PROXY") => {
                if let Some(others) = value.to_str().filter(|others| !others.is_empty()) {
                    exempt = format!("{exempt},{others}");
                }
            }
            _ => variables.push((name, value)),
        }
    }
    // Clients would send calls to a proxy, which does not know this machine by that name.
    let exempt = ["no_proxy", "NO_PROXY"].map(|name| (name.to_owned(), exempt.clone()));
    let set = exempt.into_iter().chain(set).map(|(name, value)| (name.into(), value.into()));
    variables.extend(set);
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_stay_behind_and_what_is_set_counts() {
        let inherited = [
            ("PATH", "/bin"),
            ("TOKENIZERS_PARALLELISM", "false"),
            ("MONKEY", "yes"),
            ("no_proxy", "intranet"),
            ("WANDB_API_KEY", "1"),
            ("api_key", "2"),
            ("HF_TOKEN", "3"),
            ("AWS_PROFILE", "4"),
            ("OPENAI_ORG_ID", "5"),
            ("DB_PASSWORD", "6"),
            ("AZURE_CLIENT_SECRET", "7"),
            ("GOOGLE_APPLICATION_CREDENTIALS", "8"),
            ("SEARCH_API_KEY", "9"),
        ];
        let inherited = inherited.map(|(name, value)| (name.into(), value.into())).into_iter();
        let set = vec![("SEARCH_API_KEY".to_owned(), "mine".to_owned())];
        let kept: Vec<(String, String)> = variables(inherited, set)
            .into_iter()
            .map(|(name, value)| (name.into_string().unwrap(), value.into_string().unwrap()))
            .collect();
        let expected = [
            ("PATH", "/bin"),
            ("TOKENIZERS_PARALLELISM", "false"),
            ("MONKEY", "yes"),
            ("no_proxy", "127.0.0.1,localhost,intranet"),
            ("NO_PROXY", "127.0.0.1,localhost,intranet"),
            ("SEARCH_API_KEY", "mine"),
        ];
        assert_eq!(kept, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}
