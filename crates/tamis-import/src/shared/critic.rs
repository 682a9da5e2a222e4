//! The critic of verl, RAGEN and EasyR1.

use tamis_core::advantage::Column;

use super::advantage::estimator_of_ours;
use crate::owner::Owner;
use crate::translator::Translator;

/// Whether the chosen estimator has a critic. If none is chosen, a whole configuration has its system's
/// default: gae, and grpo in EasyR1.
pub(crate) fn has_critic(owner: Owner, t: &Translator) -> bool {
    match t.text("algorithm.adv_estimator").as_deref() {
        Some(name) => estimator_of_ours(name).is_some_and(|ours| ours.needs().contains(&Column::Values)),
        None => !(t.whole && owner == Owner::EasyR1),
    }
}
