//! Names that are part of metrics' names.

/// Most characters of a name.
pub const LONGEST: usize = 64;

/// Whether a text is a name: 1 to [`LONGEST`] letters (of ASCII), digits, and characters of `others`.
fn is_of(name: &str, others: &str) -> bool {
    let is_usual = |one: char| one.is_ascii_alphanumeric() || others.contains(one);
    !name.is_empty() && name.len() <= LONGEST && name.chars().all(is_usual)
}

/// Whether metrics can be named after an environment of this name: letters, digits, `_`, `-` and `.`.
///
/// ```
/// use tamis_env::environment::names::is_name;
/// assert!(is_name("small_sokoban-v1.5"));
/// assert!(!is_name("a/b") && !is_name("a b") && !is_name("") && !is_name(&"a".repeat(65)));
/// ```
pub fn is_name(name: &str) -> bool {
    is_of(name, "_-.")
}

/// Whether a number of an environment's `info` can be a metric of this name: as [`is_name`], with `/` and `@`
/// too.
///
/// ```
/// use tamis_env::environment::names::is_number_name;
/// assert!(is_number_name("moves/right") && is_number_name("pass@1"));
/// assert!(!is_number_name("two words") && !is_number_name("é"));
/// ```
pub fn is_number_name(name: &str) -> bool {
    is_of(name, "_-./@")
}

/// The characters of [`is_name`], in words.
pub const NAME: &str = "1 to 64 letters of ASCII, digits, `_`, `-` and `.`";

/// The characters of [`is_number_name`], in words.
pub const NUMBER_NAME: &str = "1 to 64 letters of ASCII, digits, `_`, `-`, `.`, `/` and `@`";

/// A warning about a number in `info` whose name is not valid for metrics. `whose` is its source.
pub fn unnamed_warning(whose: &str, name: &str) -> String {
    format!(
        "{whose} gives a number the name {:?} in `info`, but metrics are named with {NUMBER_NAME}: it is left out, and later ones too, \
        without another warning",
        tamis_core::printable::cut_middle(name, 80)
    )
}

/// A name of metrics for what calls itself so, as packages do (`ALE/Pong-v5`): other characters become `_`.
///
/// ```
/// use tamis_env::environment::names::named_after;
/// assert_eq!(named_after("ALE/Pong-v5"), "ALE_Pong-v5");
/// assert_eq!(named_after(""), "environment");
/// ```
pub fn named_after(name: &str) -> String {
    let usual = |one: char| if is_name(one.encode_utf8(&mut [0; 4])) { one } else { '_' };
    let named: String = name.chars().map(usual).take(LONGEST).collect();
    if named.is_empty() { "environment".to_owned() } else { named }
}
