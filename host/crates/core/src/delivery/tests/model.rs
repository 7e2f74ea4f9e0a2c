//! The window against a model so small that its laws can be read off: a list of events, walked from end to end.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// What the model knows of an event; the list of them is the log.
#[derive(Clone, Debug)]
struct Event {
    position: u64,
    key: Option<String>,
    attempts: u32,
    state: Is,
    /// Attempts in its record, if there is one.
    record: Option<u32>,
    /// Whether the window holds it; after a restart only once it was fetched again.
    is_known: bool,
    /// Whether it is settled and a crash may still bring it back.
    is_settling: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Is {
    Ready,
    Waiting(Timestamp),
    Leased(Lease),
    Dying,
    Settled { by_ack: bool },
}

#[derive(Clone, Debug)]
enum Op {
    Fetch { gap: u64, key: u8 },
    Skip,
    Advance(u64),
    Deliver { client: u8, via: u64, seconds: u64 },
    Ack(usize),
    Stored(usize),
    Nack { which: usize, seconds: Option<u64> },
    Extend { which: usize, seconds: u64 },
    Undelivered(usize),
    Stale(usize),
    Disconnected(u64),
    Left(u8),
    Pass(u64),
    Settle(usize),
    Park(usize),
    ParkAny(usize),
    Redrive(usize),
    Drop { below: u64, max: usize },
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let which = || 0_usize..8;
    let seconds = || prop_oneof![1_u64..5, 60_u64..200];
    prop_oneof![
        8 => (0_u64..3, 0_u8..4).prop_map(|(gap, key)| Op::Fetch { gap, key }),
        1 => Just(Op::Skip),
        1 => (0_u64..4).prop_map(Op::Advance),
        8 => (0_u8..3, 0_u64..3, seconds()).prop_map(|(client, via, seconds)| Op::Deliver { client, via, seconds }),
        4 => which().prop_map(Op::Ack),
        4 => which().prop_map(Op::Stored),
        3 => (which(), prop::option::of(0_u64..100)).prop_map(|(which, seconds)| Op::Nack { which, seconds }),
        2 => (which(), seconds()).prop_map(|(which, seconds)| Op::Extend { which, seconds }),
        1 => which().prop_map(Op::Undelivered),
        1 => which().prop_map(Op::Stale),
        1 => (0_u64..3).prop_map(Op::Disconnected),
        1 => (0_u8..3).prop_map(Op::Left),
        4 => (0_u64..40).prop_map(Op::Pass),
        2 => which().prop_map(Op::Settle),
        2 => which().prop_map(Op::Park),
        1 => which().prop_map(Op::ParkAny),
        1 => which().prop_map(Op::Redrive),
        1 => (0_u64..12, 0_usize..3).prop_map(|(below, max)| Op::Drop { below, max }),
        1 => Just(Op::Restart),
    ]
}

struct Pair {
    window: Window,
    log: Vec<Event>,
    now: Timestamp,
    nonce: u64,
    /// Dead nonces by position.
    stale: Vec<(u64, u64)>,
    floor: u64,
}

impl Pair {
    fn new(settings: Settings) -> Self {
        let window = Window::new(settings, 0);
        Self { window, log: Vec::new(), now: Timestamp(0), nonce: 0, stale: Vec::new(), floor: 0 }
    }

    fn is_fifo(&self) -> bool {
        self.window.settings().is_fifo
    }

    /// The law of delivery, read off the list.
    fn is_deliverable(&self, event: &Event) -> bool {
        let is_due = match event.state {
            Is::Ready => true,
            Is::Waiting(at) => at <= self.now,
            _ => false,
        };
        let is_first = !self.is_fifo()
            || event.key.is_none()
            || self.log.iter().filter(|other| other.is_known && other.key == event.key).all(|other| {
                let is_settled = matches!(other.state, Is::Settled { .. });
                let is_leased = matches!(other.state, Is::Leased(_));
                !other.is_settling && !is_leased && (is_settled || event.position <= other.position)
            });
        event.is_known && is_due && is_first && event.position < self.window.next()
    }

    /// Indexes of the events in flight.
    fn in_flight(&self) -> Vec<usize> {
        (0..self.log.len()).filter(|at| matches!(self.log[*at].state, Is::Leased(_))).collect()
    }

    /// The events in flight, one of them picked, with its position and nonce.
    fn leased(&self, which: usize) -> Option<(usize, u64, Lease)> {
        let leased = self.in_flight();
        let at = *leased.get(which % leased.len().max(1))?;
        match &self.log[at].state {
            Is::Leased(lease) => Some((at, self.log[at].position, lease.clone())),
            _ => None,
        }
    }

    fn end(&mut self, at: usize, position: u64, nonce: u64) {
        self.stale.push((position, nonce));
        assert_eq!(self.window.ack(position, nonce), Err(Gone), "{at}");
    }

    /// What a failed delivery should lead to.
    fn failed(&mut self, at: usize, next: Timestamp) -> bool {
        let is_dead = self.window.settings().deliveries_max <= self.log[at].attempts;
        self.log[at].state = if is_dead { Is::Dying } else { Is::Waiting(next) };
        is_dead
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Fetch { gap, key } => self.fetch(*gap, *key),
            Op::Skip | Op::Advance(_) if !self.is_caught_up() => {}
            Op::Skip => self.window.skipped(self.window.next()),
            Op::Advance(by) => self.window.advanced(self.window.next() + by),
            Op::Deliver { client, via, seconds } => {
                if self.window.room() == 0 {
                    self.park(3);
                }
                self.deliver(*client, *via, *seconds);
            }
            Op::Ack(which) => {
                if let Some((at, position, lease)) = self.leased(*which) {
                    let was_parked = self.log[at].record.is_some();
                    assert_eq!(self.window.ack(position, lease.nonce), Ok(Settled { was_parked }));
                    self.log[at].state = Is::Settled { by_ack: true };
                    self.log[at].record = None;
                    self.log[at].is_settling = true;
                    self.end(at, position, lease.nonce);
                }
            }
            Op::Stored(which) => {
                let settling: Vec<_> = (0..self.log.len()).filter(|at| self.log[*at].is_settling).collect();
                if let Some(&at) = settling.get(which % settling.len().max(1)) {
                    self.window.stored(self.log[at].position);
                    self.log[at].is_settling = false;
                }
            }
            Op::Nack { which, seconds } => {
                if let Some((at, position, lease)) = self.leased(*which) {
                    let delay = seconds.map(Duration::from_secs);
                    let failed = self.window.nack(position, lease.nonce, delay, self.now).expect("in flight");
                    let attempts = self.log[at].attempts;
                    let wait = delay.unwrap_or_else(|| Backoff::Table.delay(attempts - 1));
                    let next = self.now.after(wait);
                    let wanted = match self.failed(at, next) {
                        true => Failed::Dead { attempts, reason: Reason::Rejected },
                        false => Failed::Retry { at: next },
                    };
                    assert_eq!(failed, wanted);
                    self.end(at, position, lease.nonce);
                }
            }
            Op::Extend { which, seconds } => {
                if let Some((at, position, lease)) = self.leased(*which) {
                    self.nonce += 1;
                    let until = self.now.after(Duration::from_secs(*seconds));
                    let longer = Lease { nonce: self.nonce, until, ..lease.clone() };
                    assert_eq!(self.window.extend(position, lease.nonce, longer.clone()), Ok(()));
                    self.log[at].state = Is::Leased(longer);
                    self.end(at, position, lease.nonce);
                }
            }
            Op::Undelivered(which) => {
                if let Some((at, position, lease)) = self.leased(*which) {
                    self.window.undelivered(position, lease.nonce);
                    self.log[at].attempts -= 1;
                    self.log[at].state = Is::Ready;
                    self.end(at, position, lease.nonce);
                }
            }
            Op::Stale(which) => {
                let before = self.window.saved();
                if let Some(&(position, nonce)) = self.stale.get(*which) {
                    self.window.undelivered(position, nonce);
                    assert_eq!(self.window.nack(position, nonce, None, self.now), Err(Gone));
                }
                assert_eq!(self.window.saved(), before);
            }
            Op::Disconnected(via) => {
                let at = self.now.after(SECOND);
                let changed = self.window.disconnected(*via, at);
                assert_eq!(changed, self.shorten(at, |lease| *via != 0 && lease.via == *via));
            }
            Op::Left(client) => {
                let at = self.now.after(SECOND);
                let client = format!("c{client}");
                let changed = self.window.left(&client, at);
                assert_eq!(changed, self.shorten(at, |lease| *lease.client == *client));
            }
            Op::Pass(seconds) => self.pass(self.now.after(Duration::from_secs(*seconds))),
            Op::Settle(which) => {
                let dying: Vec<_> = self.window.dying().map(|dying| dying.position).collect();
                if let Some(&position) = dying.get(which % dying.len().max(1)) {
                    let at = self.at(position);
                    let was_parked = self.log[at].record.is_some();
                    assert_eq!(self.window.settle(position), Some(Settled { was_parked }));
                    self.log[at].state = Is::Settled { by_ack: false };
                    self.log[at].record = None;
                    self.log[at].is_settling = true;
                }
            }
            Op::Park(limit) => self.park(*limit),
            Op::ParkAny(which) => {
                let at = which % self.log.len().max(1);
                if self.log.get(at).is_some_and(|event| event.is_known) {
                    self.park_one(self.log[at].position);
                }
            }
            Op::Redrive(which) => {
                let dead: Vec<_> = (0..self.log.len())
                    .filter(|at| self.log[*at].state == Is::Settled { by_ack: false })
                    .collect();
                if let Some(&at) = dead.get(which % dead.len().max(1)) {
                    let event = &mut self.log[at];
                    assert!(self.window.redrive(event.position, event.key.as_deref()));
                    *event = Event {
                        attempts: 0,
                        state: Is::Ready,
                        record: Some(0),
                        is_known: true,
                        ..event.clone()
                    };
                }
            }
            Op::Drop { below, max } => {
                let below = self.window.floor() + below;
                let mut lost = 0;
                for event in &mut self.log {
                    let is_held = event.is_known && event.record.is_none();
                    let is_over = matches!(event.state, Is::Settled { .. } | Is::Dying);
                    if event.position < below && is_held && !is_over && lost < *max {
                        event.state = Is::Dying;
                        lost += 1;
                    }
                }
                assert_eq!(self.window.expire_below(below, *max), lost);
            }
            Op::Restart => self.restart(),
        }
        self.check();
    }

    fn at(&self, position: u64) -> usize {
        self.log.iter().position(|event| event.position == position).expect("in the log")
    }

    /// Whether nothing in the log has to be fetched again.
    fn is_caught_up(&self) -> bool {
        self.log.last().is_none_or(|last| last.position < self.window.next())
    }

    fn fetch(&mut self, gap: u64, key: u8) {
        if self.window.room() == 0 {
            return;
        }
        let next = self.window.next();
        if let Some(again) = self.log.iter_mut().find(|event| next <= event.position) {
            let is_settled = matches!(again.state, Is::Settled { .. });
            let is_new = !is_settled && again.record.is_none();
            assert_eq!(self.window.fetched(again.position, again.key.as_deref()), is_new);
            again.is_known = true;
            return;
        }
        let position = next + gap;
        let key = (key != 0).then(|| format!("k{key}"));
        assert!(self.window.fetched(position, key.as_deref()));
        assert!(!self.window.fetched(position, key.as_deref()));
        let (state, record) = (Is::Ready, None);
        self.log.push(Event {
            position,
            key,
            attempts: 0,
            state,
            record,
            is_known: true,
            is_settling: false,
        });
    }

    fn deliver(&mut self, client: u8, via: u64, seconds: u64) {
        let wanted = self.log.iter().position(|event| self.is_deliverable(event));
        let picked = self.window.pick(self.now);
        assert_eq!(picked, wanted.map(|at| self.log[at].position));
        let Some(at) = wanted else { return };
        self.nonce += 1;
        let until = self.now.after(Duration::from_secs(seconds));
        let lease = Lease { client: format!("c{client}").into(), via, nonce: self.nonce, until };
        let attempt = self.window.deliver(self.log[at].position, lease.clone());
        let event = &mut self.log[at];
        event.attempts += 1;
        event.state = Is::Leased(lease);
        assert_eq!(attempt, event.attempts);
        assert!(attempt <= self.window.settings().deliveries_max);
    }

    fn shorten(&mut self, until: Timestamp, is_it: impl Fn(&Lease) -> bool) -> Vec<u64> {
        let mut changed = Vec::new();
        for event in &mut self.log {
            if let Is::Leased(lease) = &mut event.state
                && is_it(lease)
                && until < lease.until
            {
                lease.until = until;
                changed.push(event.position);
            }
        }
        changed
    }

    /// Moves the clock, stopping whenever the window says that something is due.
    fn pass(&mut self, until: Timestamp) {
        while let Some(due) = self.window.due().filter(|due| *due <= until) {
            self.now = due.max(self.now);
            let mut wanted = Vec::new();
            for at in self.in_flight() {
                let Is::Leased(lease) = self.log[at].state.clone() else { continue };
                if lease.until <= self.now {
                    let (position, attempts) = (self.log[at].position, self.log[at].attempts);
                    let failed = match self.failed(at, self.now) {
                        true => Failed::Dead { attempts, reason: Reason::LeaseEnded },
                        false => Failed::Retry { at: self.now },
                    };
                    wanted.push((position, failed));
                    self.stale.push((position, lease.nonce));
                }
            }
            let mut ended = self.window.expire(self.now);
            ended.sort_unstable_by_key(|(position, _)| *position);
            assert_eq!(ended, wanted);
            assert!(self.window.due().is_none_or(|due| self.now < due), "else time would stand still");
        }
        self.now = until;
    }

    fn park(&mut self, limit: usize) {
        let parkable = self.window.parkable(limit);
        assert!(parkable.len() <= limit);
        for position in parkable {
            assert!(self.log[self.at(position)].record.is_none());
            self.park_one(position);
        }
    }

    fn park_one(&mut self, position: u64) {
        let at = self.at(position);
        let event = &mut self.log[at];
        let failed = event.attempts - u32::from(matches!(event.state, Is::Leased(_)));
        let is_unsettled = !matches!(event.state, Is::Settled { .. });
        assert_eq!(self.window.park(position, failed), is_unsettled);
        if is_unsettled {
            event.record = Some(failed);
        }
    }

    /// The host dies, and comes back with the checkpoint and the records.
    fn restart(&mut self) {
        let saved = self.window.saved();
        self.window = Window::restore(self.window.settings().clone(), &saved);
        assert_eq!(self.window.saved(), saved);
        for event in &mut self.log {
            event.is_settling = false;
            if let Is::Leased(lease) = &event.state {
                self.stale.push((event.position, lease.nonce));
                event.attempts -= 1;
            }
            if !matches!(event.state, Is::Settled { .. }) {
                let is_spent = self.window.settings().deliveries_max <= event.attempts;
                // The checkpoint does not tell that the log wanted to drop it: it has its deliveries again.
                event.state = if is_spent { Is::Dying } else { Is::Ready };
                event.is_known = event.record.is_some();
                if let Some(attempts) = event.record {
                    self.window.restore_parked(event.position, event.key.as_deref(), attempts);
                }
            }
        }
        assert_eq!(self.window.saved(), saved);
    }

    fn check(&mut self) {
        assert_eq!(self.window.violations(), Vec::<String>::new());
        assert!(self.floor <= self.window.floor(), "the floor fell");
        self.floor = self.window.floor();
        let mut leased_by_client = BTreeMap::<_, usize>::new();
        for event in &self.log {
            let facts = self.window.get(event.position);
            let is_unsettled = !matches!(event.state, Is::Settled { .. });
            assert_eq!(facts.is_some(), is_unsettled && event.is_known, "{event:?}");
            if is_unsettled && event.record.is_none() {
                assert!(self.floor <= event.position, "{event:?} lies below the floor");
                assert!(event.is_known || self.window.next() <= event.position, "{event:?} is lost");
            }
            let is_listed = self.window.deliverable().any(|position| position == event.position);
            assert_eq!(self.window.is_deliverable(event.position), is_listed, "{event:?}");
            let Some(facts) = facts else { continue };
            assert_eq!(facts.attempts, event.attempts, "{event:?}");
            assert_eq!(facts.is_parked, event.record.is_some(), "{event:?}");
            match &event.state {
                Is::Leased(lease) => {
                    assert_eq!(facts.lease, Some(lease));
                    *leased_by_client.entry(lease.client.clone()).or_default() += 1;
                }
                _ => assert_eq!(facts.lease, None, "{event:?}"),
            }
        }
        for (client, leased) in leased_by_client {
            assert_eq!(self.window.in_flight_of(&client), leased);
        }
        let counts = self.window.counts();
        let sum = counts.ready + counts.blocked + counts.waiting + counts.in_flight + counts.dying;
        let known = |event: &&Event| event.is_known && !matches!(event.state, Is::Settled { .. });
        assert_eq!(sum, self.log.iter().filter(known).count());
    }

    /// A client that acks everything empties the window in finite time.
    fn drain(&mut self) {
        while !self.log.iter().all(|event| matches!(event.state, Is::Settled { .. })) || !self.is_caught_up()
        {
            let before = (self.window.next(), self.window.counts());
            self.apply(&Op::Pass(24 * 3600));
            self.apply(&Op::Park(usize::MAX));
            while !self.is_caught_up() && self.window.room() > 0 {
                self.apply(&Op::Fetch { gap: 0, key: 0 });
            }
            while self.window.dying().next().is_some() {
                self.apply(&Op::Settle(0));
            }
            self.apply(&Op::Deliver { client: 0, via: 0, seconds: 60 });
            while self.window.counts().in_flight > 0 {
                self.apply(&Op::Ack(0));
            }
            while self.log.iter().any(|event| event.is_settling) {
                self.apply(&Op::Stored(0));
            }
            assert_ne!((self.window.next(), self.window.counts()), before, "nothing goes on");
        }
        let next = self.window.next();
        let wanted = Saved { floor: next, next, ..Saved::default() };
        assert_eq!(self.window.saved(), wanted);
        assert_eq!((self.window.counts(), self.window.due()), (Counts::default(), None));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Never two live leases of one event, settled is settled, the order of keys, nothing lost, attempts bounded, a
    /// restart keeps exactly the unsettled.
    #[test]
    fn a_window_does_what_its_model_does(
        is_fifo in any::<bool>(),
        deliveries_max in 1_u32..4,
        window in 3_u64..12,
        ops in prop::collection::vec(op(), 0..80),
    ) {
        let mut pair = Pair::new(Settings { is_fifo, deliveries_max, window, ..Settings::default() });
        for op in &ops {
            pair.apply(op);
        }
        pair.drain();
    }
}
