//! The Event Hubs processors' own decisions through the embedded components and `fulcrum policy eval`: the same but for
//! the differences that `policies/DIFFERENCES.md` lists, case by case.
//!
//! What the vectors demand is in `policies/conformance`, which also asks the policies' own code.

use conformance::eventhubs;

use crate::evals::Evals;

#[test]
fn decisions_are_the_same_but_for_the_listed_differences() {
    Evals::check(eventhubs::python_decisions);
    Evals::check(eventhubs::javascript_decisions);
}

#[test]
fn facts_of_the_upstream_tests_hold() {
    Evals::check(eventhubs::upstream_facts);
}

#[test]
fn runs_end_alike_with_no_more_steals() {
    Evals::check(eventhubs::trajectories);
}
