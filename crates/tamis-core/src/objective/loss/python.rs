//! A loss of your own: a Python function, whose results are the column `given`.

use super::super::columns::Real;
use super::formula::Loss;
use super::trajectory::TrajectoryLoss;
use crate::entry::{Entry, Family};
use crate::own_function::OwnFunction;
use crate::settings;

pub(super) const ENTRY: Entry = Entry {
    name: "python",
    family: Family::PolicyLoss,
    formula: "l and dl/dlogprob of each token are what the function returns",
    source: "your file; docs/objectives.md has the columns that it gets and what it returns",
    degenerate: &[
        "a masked token has no loss, whatever the function returns for it",
        "a value or derivative that is not finite ends the run with the token and its columns",
    ],
    known_as: &[
        ("verl", "actor.policy_loss.loss_mode=NAME with @register_policy_loss"),
        ("prime-rl", "trainer.loss.type=custom"),
    ],
    differences: &[
        "verl's and prime-rl's functions aggregate themselves; here the function returns one value per \
            token, and `objective.aggregation`, the KL, the entropy bonus and the correction are added to it",
    ],
    ..Entry::REGISTERED
};

settings! {
    /// A loss whose values and derivatives are computed outside of this crate
    /// ([`Columns::given`](crate::objective::Columns::given)).
    pub struct PythonLoss {
        /// Compare the returned derivative with central differences of the returned value when the run
        /// starts. Turn it off if a weight of your formula is meant to be constant when it is differentiated.
        check_derivative: bool = true, Any, Free;
        ..function: OwnFunction, named;
    }
}

impl Loss for PythonLoss {
    fn is_given(&self) -> bool {
        true
    }

    fn sequence<T: Real>(&self, trajectory: &mut TrajectoryLoss<'_, T>) {
        trajectory.as_given();
    }
}
