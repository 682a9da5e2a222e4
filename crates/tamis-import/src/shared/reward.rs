//! The reward of a whole configuration that does not name one.

use crate::owner::Owner;
use crate::translator::Translator;

/// If no reward is named, each row's source selects the verifier.
pub(crate) fn by_source(owner: Owner, key: &str, remark: &str, t: &mut Translator) {
    const LIST: &str = "[{kind: by_source}]";
    if !t.sets_list("reward") {
        t.put_first(owner, &format!("{key} (default)"), "reward", LIST);
        t.absent(owner, key, &[("reward", LIST)], remark);
    }
}
