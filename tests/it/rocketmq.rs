//! RocketMQ's own allocations, member by member and transition by transition, through the embedded components and
//! `fulcrum policy eval`.
//!
//! What the vectors demand is in `policies/conformance`, which also asks the policies' own code. Only the points of a
//! ring are checked there alone: an answer shows owners.

use conformance::rocketmq;

use crate::evals::Evals;

#[test]
fn tables_are_the_same() {
    Evals::check(rocketmq::tables);
}

#[test]
fn rings_are_the_same() {
    Evals::check(rocketmq::rings);
    Evals::check(rocketmq::ring_owners);
}

#[test]
fn transitions_move_the_same_queues() {
    Evals::check(rocketmq::transitions);
}

#[test]
fn rolling_restarts_move_the_same_queues() {
    Evals::check(rocketmq::rolling_restarts);
}

#[test]
fn the_example_of_the_article_is_the_same() {
    Evals::check(rocketmq::article);
}

#[test]
fn machine_rooms_are_the_same() {
    Evals::check(rocketmq::machine_rooms);
}

#[test]
fn odd_inputs_are_the_same_where_they_can_occur() {
    Evals::check(rocketmq::odd_inputs);
}
