//! The reward of a whole configuration that names none.

use crate::owner::Owner;
use crate::translator::Translator;

/// The verifier of each row by its source, if no reward is named.
pub(crate) fn by_source(owner: Owner, key: &str, remark: &str, t: &mut Translator) {
    const LIST: &str = "[{kind: by_source}]";
    if !t.sets_list("reward") {
        t.put_first(owner, &format!("{key} (default)"), "reward", LIST);
        t.absent(owner, key, &[("reward", LIST)], remark);
    }
}
