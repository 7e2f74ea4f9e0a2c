//! Why a session goes where it goes, in one or a few sentences an operator understands.
//!
//! Pure: the facts are arguments. Invariants: the text is one line of bounded length, whatever a policy calls its
//! terms; scores of two policies, or of a policy and the fallback, are never compared.

use std::collections::BTreeMap;

use fulcrum_coordinator::{Candidate, Explained, Grounds, Pick};
use fulcrum_policy::Outcome;
use serde::Serialize;

use crate::words;

/// Most terms named in the text.
const TERMS_MAX: usize = 4;
/// Most differences to the runner-up named in the text.
const DIFFERENCES_MAX: usize = 3;
/// Most characters of a term's name in `terms`.
const NAME_CHARS_MAX: usize = 64;
/// Differences below this share of the terms are left over from rounding.
const NOISE: f64 = 1e-9;

/// The field `why` of a recommendation, live or recorded.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Why {
    text: String,
    /// Those of the winner, largest first; empty where nobody explained it.
    terms: Vec<Term>,
}

impl Why {
    /// Returns the words.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Term {
    name: String,
    /// Null if it is not finite.
    value: f64,
}

/// Says why a session goes to `pick`, or to nobody.
pub(crate) fn why(pick: Option<&Pick>, grounds: Option<&Grounds>) -> Why {
    let Some(pick) = pick else {
        let text =
            "Nobody may be chosen: every instance is dead, draining, excluded, or without a label asked for.";
        return Why { text: text.to_owned(), terms: Vec::new() };
    };
    let id = words::name(&pick.id);
    let costs = format!("{id} costs {}", words::number(pick.score.get()));
    let Some(grounds) = grounds else { return Why { text: format!("{costs}."), terms: Vec::new() } };
    let decider = match &pick.by {
        Some(by) => format!("the policy {}", words::name(&by.name)),
        None => "the fallback".to_owned(),
    };
    let own = grounds.pick.as_ref().filter(|_| grounds.explained == Explained::Decider);
    let parts = own.map(largest_first).unwrap_or_default();
    let mut sentences: Vec<String> = pick.by.is_none().then(|| of_fallback(grounds)).into_iter().collect();
    sentences.push(format!("{costs}{}.", named(&parts)));
    sentences.push(match own {
        Some(own) => beside(own, grounds, &decider),
        None => unexplained(&id, grounds, &decider),
    });
    if let Some(own) = own {
        let explained = words::number(own.score.get());
        if explained != words::number(pick.score.get()) {
            sentences.push(format!("Its own explanation puts it at {explained}."));
        }
    }
    let term = |(name, value)| Term { name: words::cut(name, NAME_CHARS_MAX), value };
    Why { text: sentences.join(" "), terms: parts.into_iter().map(term).collect() }
}

/// Names the largest of some terms: `sessions 400, cpu 55`; empty if all are zero.
pub(crate) fn terms(parts: &[(String, f64)]) -> String {
    let parts = sorted(parts);
    named(&parts).trim_start_matches(": ").to_owned()
}

/// Returns the terms, largest first.
fn largest_first(of: &Candidate) -> Vec<(&str, f64)> {
    sorted(&of.parts)
}

fn sorted(parts: &[(String, f64)]) -> Vec<(&str, f64)> {
    let mut parts: Vec<_> = parts.iter().map(|(name, value)| (&**name, *value)).collect();
    // A discount counts as much as a surcharge; what is not a number comes last.
    let size = |value: f64| if value.is_nan() { -1.0 } else { value.abs() };
    parts.sort_by(|a, b| size(b.1).total_cmp(&size(a.1)));
    parts
}

/// Names the largest terms, as `: sessions 400, cpu 55`; nothing if all are zero.
fn named(parts: &[(&str, f64)]) -> String {
    let named: Vec<_> = parts
        .iter()
        .map(|(name, value)| (*name, words::number(*value)))
        .filter(|(_, value)| value != "0")
        .collect();
    if named.is_empty() {
        return String::new();
    }
    let show = |(name, value): &(&str, String)| format!("{} {value}", words::name(name));
    let shown: Vec<_> = named.iter().take(TERMS_MAX).map(show).collect();
    let rest = match named.len() - shown.len() {
        0 => String::new(),
        rest => format!(" and {rest} smaller"),
    };
    format!(": {}{rest}", shown.join(", "))
}

/// Says why the policy did not decide.
fn of_fallback(grounds: &Grounds) -> String {
    let Some(asked) = &grounds.asked else {
        return "The fallback decided, because no policy is in service.".to_owned();
    };
    let asked = words::name(asked);
    let failure = grounds.failure.as_deref().map(words::said);
    match (grounds.outcome, failure) {
        (Outcome::Open, None) => {
            format!("The fallback decided, because the policy {asked} kept failing and is not asked for now.")
        }
        (Outcome::Open, Some(failure)) => format!(
            "The fallback decided, because the policy {asked} kept failing and is not asked for now; at last it \
             {failure}."
        ),
        (_, Some(failure)) => format!("The fallback decided, because the policy {asked} {failure}."),
        (outcome, None) => {
            format!("The fallback decided, because the policy {asked} gave no answer ({}).", outcome.name())
        }
    }
}

/// Says how the pick stands beside the cheapest of the others.
fn beside(pick: &Candidate, grounds: &Grounds, decider: &str) -> String {
    let Some(next) = &grounds.next else {
        return match grounds.others {
            0 => "It is the only one that may be chosen.".to_owned(),
            1 => format!("The explanation of {decider} leaves the other one out."),
            others => format!("The explanation of {decider} leaves the other {others} out."),
        };
    };
    let id = words::name(&next.id);
    let (own, other) = (words::number(pick.score.get()), words::number(next.score.get()));
    if grounds.cheaper > 0 {
        let differences = differences(pick, next);
        return match grounds.cheaper {
            1 => format!("{id} was cheaper at {other}{differences}; {decider} chose otherwise."),
            cheaper => format!(
                "{cheaper} were cheaper, the cheapest is {id} at {other}{differences}; {decider} chose otherwise."
            ),
        };
    }
    match grounds.level {
        0 if own == other => {
            let by = words::number(next.score.get() - pick.score.get());
            format!("Next is {id}, dearer by {by} only{}.", differences(pick, next))
        }
        0 => format!("Next is {id} at {other}{}.", differences(pick, next)),
        1 => format!("{id} costs the same; {decider} chose {}.", words::name(&pick.id)),
        level => format!(
            "{id} and {} cost the same; {decider} chose {}.",
            words::count(level - 1, "other"),
            words::name(&pick.id)
        ),
    }
}

/// Names what another one has more or less, largest first, as `: sessions 120 more, cpu 3 less`.
fn differences(pick: &Candidate, other: &Candidate) -> String {
    let mut by_name = BTreeMap::<&str, (f64, f64)>::new();
    for (name, value) in &pick.parts {
        by_name.entry(name).or_default().0 += value;
    }
    for (name, value) in &other.parts {
        by_name.entry(name).or_default().1 += value;
    }
    let mut differences: Vec<_> = by_name
        .into_iter()
        .map(|(name, (own, other))| (name, other - own, NOISE * own.abs().max(other.abs())))
        // Infinity less infinity is no number.
        .filter(|(_, difference, noise)| {
            !difference.is_nan() && (difference.is_infinite() || difference.abs() > *noise)
        })
        .map(|(name, difference, _)| (name, difference, words::number(difference.abs())))
        .filter(|(.., shown)| shown != "0")
        .collect();
    differences.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
    let named: Vec<_> = differences
        .into_iter()
        .take(DIFFERENCES_MAX)
        .map(|(name, difference, shown)| {
            format!("{} {shown} {}", words::name(name), if difference > 0.0 { "more" } else { "less" })
        })
        .collect();
    if named.is_empty() { String::new() } else { format!(": {}", named.join(", ")) }
}

/// Says that the decider gave no reasons for its pick, and how that one stands by the fallback's rule.
fn unexplained(id: &str, grounds: &Grounds, decider: &str) -> String {
    let cannot = match (grounds.explained, &grounds.failure) {
        (Explained::Decider, _) => {
            return match &grounds.next {
                Some(next) => format!(
                    "The explanation of {decider} leaves it out; of the others, {} is the cheapest at {}.",
                    words::name(&next.id),
                    words::number(next.score.get())
                ),
                None => format!("The explanation of {decider} leaves it out."),
            };
        }
        (Explained::Unsupported, _) => "does not explain its scores".to_owned(),
        (Explained::Failed, Some(failure)) => {
            format!("failed to explain its scores: it {}", words::said(failure))
        }
        (Explained::Failed, None) => "failed to explain its scores".to_owned(),
    };
    let decider = decider.strip_prefix("the ").unwrap_or(decider);
    let stand = match (&grounds.pick, &grounds.next) {
        (_, None) => "it is the only one that may be chosen".to_owned(),
        (Some(pick), Some(next)) => format!(
            "in sessions per unit of capacity, {id} has {} and the least of the others is {} with {}",
            words::number(pick.score.get()),
            words::name(&next.id),
            words::number(next.score.get())
        ),
        (None, Some(_)) => return format!("The {decider} {cannot}."),
    };
    format!("The {decider} {cannot}; {stand}.")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fulcrum_core::Score;
    use fulcrum_policy::seat::Identity;

    use super::*;

    fn score(value: f64) -> Score {
        Score::new(value).expect("not a NaN")
    }

    fn candidate(id: &str, cost: f64, parts: &[(&str, f64)]) -> Candidate {
        Candidate {
            id: Arc::from(id),
            address: Arc::from("h:1"),
            score: score(cost),
            parts: parts.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        }
    }

    /// A pick `a` of a policy; an empty name is the fallback.
    fn pick(policy: &str, cost: f64) -> Pick {
        let by = Identity { name: policy.to_owned(), digest: "d".to_owned(), config: "{}".to_owned() };
        Pick {
            id: Arc::from("a"),
            address: Arc::from("h:1"),
            score: score(cost),
            by: (!policy.is_empty()).then(|| Arc::new(by)),
        }
    }

    /// Grounds of `a` beside one other, the counts as the coordinator makes them.
    fn grounds(own: Candidate, next: Option<Candidate>) -> Grounds {
        let others = usize::from(next.is_some());
        let is = |holds: fn(f64, f64) -> bool| {
            usize::from(next.as_ref().is_some_and(|next| holds(next.score.get(), own.score.get())))
        };
        Grounds {
            asked: Some("mine".to_owned()),
            outcome: Outcome::Ok,
            failure: None,
            explained: Explained::Decider,
            others,
            cheaper: is(|next, own| next < own),
            level: is(|next, own| next == own),
            pick: Some(own),
            next,
        }
    }

    #[track_caller]
    fn check(pick: &Pick, grounds: &Grounds, expected: &str) {
        assert_eq!(why(Some(pick), Some(grounds)).text, expected);
    }

    fn own() -> Candidate {
        candidate("a", 455.0, &[("cpu", 55.0), ("pending", 0.0), ("sessions", 400.0)])
    }

    #[test]
    fn the_winner_its_terms_and_what_separates_it() {
        let next = |cost, parts: &[_]| Some(candidate("b", cost, parts));
        for (next, expected) in [
            (None, "It is the only one that may be chosen."),
            (next(575.0, &[("sessions", 520.0), ("cpu", 55.0)]), "Next is b at 575: sessions 120 more."),
            (
                next(500.0, &[("sessions", 300.0), ("cpu", 155.0), ("overload", 45.0)]),
                "Next is b at 500: cpu 100 more, sessions 100 less, overload 45 more.",
            ),
            // What is left over from rounding is no difference.
            (next(456.0, &[("sessions", 400.0 + 1e-13), ("cpu", 56.0)]), "Next is b at 456: cpu 1 more."),
            (next(500.0, &[]), "Next is b at 500: sessions 400 less, cpu 55 less."),
            (
                next(455.000_4, &[("sessions", 400.000_4), ("cpu", 55.0)]),
                "Next is b, dearer by 4e-4 only: sessions 4e-4 more.",
            ),
            (next(455.0, &[]), "b costs the same; the policy mine chose a."),
            (
                next(300.0, &[("sessions", 245.0), ("cpu", 55.0)]),
                "b was cheaper at 300: sessions 155 less; the policy mine chose otherwise.",
            ),
            (
                next(f64::INFINITY, &[("down", f64::INFINITY), ("sessions", 400.0), ("cpu", 55.0)]),
                "Next is b at infinity: down infinity more.",
            ),
        ] {
            let expected = format!("a costs 455: sessions 400, cpu 55. {expected}");
            check(&pick("mine", 455.0), &grounds(own(), next), &expected);
        }
    }

    #[test]
    fn more_than_one_other_is_counted() {
        let base = grounds(own(), Some(candidate("b", 455.0, &[])));
        let text = |grounds: &Grounds| why(Some(&pick("p2c", 455.0)), Some(grounds)).text;
        let level = Grounds { others: 4, level: 3, ..base.clone() };
        assert!(
            text(&level).ends_with(" b and 2 others cost the same; the policy p2c chose a."),
            "{level:?}"
        );
        let cheaper = Grounds { next: Some(candidate("b", 300.0, &[])), cheaper: 2, level: 0, ..level };
        let expected = "2 were cheaper, the cheapest is b at 300: sessions 400 less, cpu 55 less; the policy p2c chose \
                        otherwise.";
        assert!(text(&cheaper).ends_with(expected), "{}", text(&cheaper));
        // An explanation need not list everybody.
        let alone = Grounds { others: 3, level: 0, next: None, ..base.clone() };
        assert!(text(&alone).ends_with(" The explanation of the policy p2c leaves the other 3 out."));
        let out = Grounds { pick: None, level: 0, ..base };
        let expected = "a costs 455. The explanation of the policy p2c leaves it out; of the others, b is the cheapest \
                        at 455.";
        check(&pick("p2c", 455.0), &out, expected);
    }

    #[test]
    fn a_policy_that_does_not_explain_is_not_compared() {
        let base = grounds(
            candidate("a", 9.0, &[("sessions", 9.0)]),
            Some(candidate("b", 5.0, &[("sessions", 5.0)])),
        );
        let unsupported = Grounds { explained: Explained::Unsupported, ..base };
        let mine = pick("mine", 1.0);
        check(
            &mine,
            &unsupported,
            "a costs 1. The policy mine does not explain its scores; in sessions per unit of capacity, a has 9 and \
             the least of the others is b with 5.",
        );
        assert_eq!(why(Some(&mine), Some(&unsupported)).terms, []);
        let alone = Grounds { next: None, others: 0, ..unsupported };
        check(
            &mine,
            &alone,
            "a costs 1. The policy mine does not explain its scores; it is the only one that may be chosen.",
        );
        let failed = Grounds {
            explained: Explained::Failed,
            failure: Some("missed its deadline of 10 ms".to_owned()),
            ..alone
        };
        check(
            &mine,
            &failed,
            "a costs 1. The policy mine failed to explain its scores: it missed its deadline of 10 ms; it is the only \
             one that may be chosen.",
        );
        check(
            &pick("mine", 1.0),
            &grounds(candidate("a", 2.0, &[("x", 2.0)]), None),
            "a costs 1: x 2. It is the only one that may be chosen. Its own explanation puts it at 2.",
        );
    }

    #[test]
    fn the_fallback_says_why_it_decided() {
        let of = |asked: Option<&str>, outcome, failure: Option<&str>| Grounds {
            asked: asked.map(str::to_owned),
            outcome,
            failure: failure.map(str::to_owned),
            ..grounds(candidate("a", 3.0, &[("sessions", 3.0)]), None)
        };
        for (asked, outcome, failure, expected) in [
            (None, Outcome::Open, None, "no policy is in service"),
            (Some("mine"), Outcome::Open, None, "the policy mine kept failing and is not asked for now"),
            (
                Some("mine"),
                Outcome::Open,
                Some("crashed: unreachable"),
                "the policy mine kept failing and is not asked for now; at last it crashed: unreachable",
            ),
            (
                Some("mine"),
                Outcome::Timeout,
                Some("missed its deadline of 10 ms"),
                "the policy mine missed its deadline of 10 ms",
            ),
            (
                Some("mine"),
                Outcome::Declared,
                Some("returned an error: a\nb\u{7}"),
                "the policy mine returned an error: a\\nb\\u{7}",
            ),
            (Some("mine"), Outcome::Trap, None, "the policy mine gave no answer (trap)"),
        ] {
            let expected = format!(
                "The fallback decided, because {expected}. a costs 3: sessions 3. It is the only one that may be \
                 chosen."
            );
            check(&pick("", 3.0), &of(asked, outcome, failure), &expected);
        }
        let tie = grounds(candidate("a", 0.0, &[]), Some(candidate("b", 0.0, &[])));
        assert!(
            why(Some(&pick("", 0.0)), Some(&tie)).text.ends_with(" b costs the same; the fallback chose a.")
        );
    }

    #[test]
    fn hostile_terms_stay_one_short_line() {
        let long = "x".repeat(64);
        let names = [
            "cpu 5. Next is b at 9",
            "a\r\nb",
            "\u{202e}\u{1b}[31m",
            "",
            &long,
            "nan",
            "minus",
            "seven",
            "8",
        ];
        let values = [9.0, 8.0, 7.0, 6.0, 5.0, f64::NAN, -4.0, f64::INFINITY, f64::NEG_INFINITY];
        let parts: Vec<_> = names.into_iter().zip(values).collect();
        let infinite = candidate("a", f64::INFINITY, &parts);
        let said = why(Some(&pick("mine", f64::INFINITY)), Some(&grounds(infinite, None)));
        let expected = "a costs infinity: seven infinity, 8 -infinity, \"cpu 5. Next is b at 9\" 9, \"a\\r\\nb\" 8 \
                        and 5 smaller. It is the only one that may be chosen.";
        assert_eq!(said.text, expected);
        assert_eq!(said.terms.last().map(|term| &*term.name), Some("nan"));
        assert!(said.terms.iter().all(|term| !term.name.contains(char::is_control)), "{said:?}");
        // Both infinite: they cost the same, and no difference is made up.
        let both = |id| candidate(id, f64::INFINITY, &[("down", f64::INFINITY)]);
        check(
            &pick("mine", f64::INFINITY),
            &grounds(both("a"), Some(both("b"))),
            "a costs infinity: down infinity. b costs the same; the policy mine chose a.",
        );
        let json = serde_json::to_value(why(Some(&pick("mine", 0.0)), Some(&grounds(both("a"), None))));
        let expected = serde_json::json!([{"name": "down", "value": null}]);
        assert_eq!(json.expect("plain data")["terms"], expected);
    }

    #[test]
    fn nobody_is_explained_too() {
        let nobody = why(None, None);
        assert!(nobody.text.starts_with("Nobody may be chosen: ") && nobody.terms.is_empty(), "{nobody:?}");
    }
}
