//! A reader makes durable what happened: checkpoints, parked events, dead letters.
//!
//! Invariants: a caller is answered after the checkpoint that holds what it did; a parked event is settled once its
//! record is gone; the record of an event that is being parked is undone before the event counts as settled.

use fulcrum_core::Timestamp;
use fulcrum_store::Revision;
use futures_util::FutureExt;

use super::Error;
use super::jobs::{Checkpoint, Parking, Place, Removed, Written};
use super::reader::{Done, Name, Reader, Reply};
use super::records::{self, Of, WindowRecord};

/// Events that are parked or buried at once.
const TENDS_MAX: usize = 64;

impl Reader {
    /// Starts a checkpoint job if there is something to store and none is under way.
    pub(super) fn checkpoint(&mut self) {
        let is_clean = self.dirty.is_empty() && self.unparked.is_empty() && self.answers.is_empty();
        if self.is_storing || self.rests_from_writing || is_clean {
            return;
        }
        self.is_storing = true;
        self.jobs_stored += 1;
        let mut checkpoints = Vec::new();
        for partition in std::mem::take(&mut self.dirty) {
            self.dirty_soon.remove(&partition);
            let at = &self.partitions[partition as usize];
            let saved = at.window.saved();
            let record = records::encode(&WindowRecord::new(&saved, self.incarnation));
            checkpoints.push(Checkpoint { partition, known: at.revision, record, floor: saved.floor });
        }
        let unparked = std::mem::take(&mut self.unparked).into_iter().collect();
        let answers = std::mem::take(&mut self.answers);
        let work = self.work.clone();
        let job = async move {
            let (written, unparked) = work.checkpoint(checkpoints, unparked).await;
            Done::Stored { written, unparked, answers }
        };
        self.jobs.push(job.boxed());
    }

    pub(super) fn was_stored(
        &mut self,
        written: Vec<Written>,
        unparked: Vec<Removed>,
        answers: Vec<Reply<()>>,
    ) {
        self.is_storing = false;
        let mut failure = None;
        for Written { partition, floor, revision, result } in written {
            let at = &mut self.partitions[partition as usize];
            at.revision = revision;
            match result {
                Ok(()) => {
                    at.stored_floor = floor;
                    if let Some(floors) = self.handle.floors.lock().as_mut() {
                        floors[partition as usize] = floor;
                    }
                }
                Err(error) => {
                    self.dirty.insert(partition);
                    failure = Some(error);
                }
            }
        }
        for Removed { place, known, result } in unparked {
            match result {
                Ok(()) => {
                    if let Some(waiting) = self.parking.remove(&place) {
                        self.answers.extend(waiting);
                        // It may still have to be parked.
                        self.tended.insert(place.0);
                    }
                }
                Err(error) => {
                    self.unparked.insert(place, known);
                    failure = Some(error);
                }
            }
        }
        self.acks_were_stored(self.jobs_stored, failure.is_none());
        if failure.is_none() {
            self.release(self.jobs_stored);
        }
        for answer in answers {
            // Nobody waits any more: what it did is done all the same.
            let _ = answer.send(failure.clone().map_or(Ok(()), |error| Err(Error::Store(error))));
        }
        match failure {
            Some(error) => self.failed_to_write(&error),
            None if self.cannot_write => {
                self.cannot_write = false;
                let Name { topic, group, .. } = &self.handle.name;
                tracing::info!(%topic, %group, "a message group can store its progress again");
            }
            None => {}
        }
    }

    /// Parks what waits long or is in the way, stores dead letters, and gets on with what the log has to drop.
    pub(super) fn tend(&mut self, now: Timestamp) {
        self.expire_below();
        if self.rests_from_writing {
            return;
        }
        while self.tending < TENDS_MAX
            && let Some(partition) = self.tended.pop_first()
        {
            if self.bury(partition, now) || self.park(partition) {
                // There may be more than there was room for.
                self.tended.insert(partition);
                break;
            }
        }
    }

    /// Starts to store dead letters; returns whether some had no room.
    fn bury(&mut self, partition: u32, now: Timestamp) -> bool {
        let forgetting = &self.forgetting;
        let at = &mut self.partitions[partition as usize];
        let dying = at.window.dying().filter(|dying| {
            // The former dead letter of an event has to go first, or the new one would go with it.
            !at.burying.contains(&dying.position) && !forgetting.contains(&(partition, dying.position))
        });
        let dying: Vec<_> = dying.take(TENDS_MAX).collect();
        for dying in dying {
            if TENDS_MAX <= self.tending {
                return true;
            }
            let Some(facts) = at.window.get(dying.position) else { continue };
            let (key, is_parked) = (facts.key.map(ToOwned::to_owned), facts.is_parked);
            let place = (partition, dying.position);
            at.burying.insert(dying.position);
            self.tending += 1;
            let work = self.work.clone();
            let job = async move {
                Done::Buried { place, result: work.bury(place, dying, is_parked, key, now).await }
            };
            self.jobs.push(job.boxed());
        }
        false
    }

    pub(super) fn was_buried(&mut self, place: Place, result: Result<(), fulcrum_store::Error>) {
        self.tending -= 1;
        let (partition, position) = place;
        let at = &mut self.partitions[partition as usize];
        at.burying.remove(&position);
        match result {
            Ok(()) => {
                if let Some(settled) = at.window.settle(position) {
                    self.totals.dead += 1;
                    self.settled(place, settled.was_parked);
                    self.dirty.insert(partition);
                }
            }
            Err(error) => self.failed_to_write(&error),
        }
        self.touch(partition);
    }

    /// Starts to park events; returns whether there may be more.
    fn park(&mut self, partition: u32) -> bool {
        let at = &self.partitions[partition as usize];
        let under_way = self.parking.range((partition, 0)..=(partition, u64::MAX)).count();
        if TENDS_MAX <= under_way {
            return false;
        }
        let events: Vec<_> = at
            .window
            .parkable(TENDS_MAX + under_way)
            .into_iter()
            .filter(|position| !self.parking.contains_key(&(partition, *position)))
            .take(TENDS_MAX)
            .filter_map(|position| {
                let facts = at.window.get(position)?;
                let (key, attempts) = (facts.key.map(ToOwned::to_owned), facts.failed());
                Some(Parking { place: (partition, position), key, attempts })
            })
            .collect();
        if events.is_empty() {
            return false;
        }
        self.parking.extend(events.iter().map(|event| (event.place, Vec::new())));
        self.tending += 1;
        let work = self.work.clone();
        self.jobs.push(async move { Done::Parked(work.park(events).await) }.boxed());
        false
    }

    pub(super) fn was_parked(
        &mut self,
        parked: Vec<(Parking, Result<Option<Revision>, fulcrum_store::Error>)>,
    ) {
        self.tending -= 1;
        for (Parking { place, attempts, .. }, result) in parked {
            let (partition, position) = place;
            if let Ok(None) = result {
                // It is not in the log. To try again would find the same, again and again: who has it in hand may
                // settle it, else it is over.
                let waiting = self.parking.remove(&place).unwrap_or_default();
                self.answers.extend(waiting);
                self.dirty.insert(partition);
                self.lose(partition, position);
                continue;
            }
            let at = &mut self.partitions[partition as usize];
            match result {
                Ok(Some(record)) if at.window.park(position, attempts) => {
                    at.parked.insert(position, record);
                    self.parking.remove(&place);
                    self.dirty_soon(partition);
                }
                // It was settled meanwhile, or its record may or may not be there: the record has to go first.
                Ok(Some(record)) => drop(self.unparked.insert(place, Some(record))),
                Err(error) => {
                    self.unparked.insert(place, None);
                    self.failed_to_write(&error);
                }
                Ok(None) => {}
            }
            self.touch(partition);
        }
    }

    /// Starts to give dead letters back, one call at a time.
    pub(super) fn redrive(&mut self) {
        if self.is_redriving {
            return;
        }
        let Some((places, max, reply)) = self.redrives.pop_front() else { return };
        self.is_redriving = true;
        let work = self.work.clone();
        let job = async move { Done::Revived { result: work.revive(places, max).await, reply } };
        self.jobs.push(job.boxed());
    }

    pub(super) fn was_revived(
        &mut self,
        result: Result<Vec<(Place, Option<String>, Revision)>, Error>,
        reply: Reply<usize>,
    ) {
        let revived = match result {
            Ok(revived) => revived,
            Err(error) => {
                self.is_redriving = false;
                let _ = reply.send(Err(error));
                return;
            }
        };
        let mut back = Vec::new();
        for (place, key, record) in revived {
            let (partition, position) = place;
            let Some(at) = self.partitions.get_mut(partition as usize) else { continue };
            if at.burying.contains(&position) {
                // Its dead letter is being stored (again): it stays one.
                if at.window.get(position).is_some_and(|facts| facts.is_parked) {
                    at.parked.insert(position, record);
                } else {
                    self.unparked.insert(place, Some(record));
                }
                continue;
            }
            let is_back = at.window.redrive(position, key.as_deref()) || at.window.park(position, 0);
            if is_back {
                at.parked.insert(position, record);
                back.push(place);
            } else {
                // Too many are parked already.
                self.unparked.insert(place, Some(record));
            }
            self.touch(partition);
        }
        self.forgetting.extend(back.iter().copied());
        let work = self.work.clone();
        let job = async move {
            let mut forgotten = Ok(back.len());
            for place in back {
                if let Err(error) = work.forget(Of::Dead, place, None).await {
                    forgotten = Err(Error::Store(error));
                }
            }
            // Nobody waits any more: they are back all the same.
            let _ = reply.send(forgotten);
            Done::Redriven
        };
        self.jobs.push(job.boxed());
    }

    pub(super) fn was_redriven(&mut self) {
        self.is_redriving = false;
        for (partition, _) in std::mem::take(&mut self.forgetting) {
            // Some may have died again meanwhile.
            self.tended.insert(partition);
        }
    }

    /// Gets on with what the log has to drop, and answers who is done.
    fn expire_below(&mut self) {
        for mut expiring in std::mem::take(&mut self.expiring) {
            let partition = expiring.partition;
            let at = &mut self.partitions[partition as usize];
            let killed = at.window.expire_below(expiring.position, expiring.left);
            expiring.left -= killed;
            if killed > 0 {
                self.touch(partition);
                self.dirty.insert(partition);
            }
            let at = &self.partitions[partition as usize];
            let is_read =
                expiring.position <= at.window.next() || (!self.behind.contains(&partition) && !at.is_busy);
            let target = expiring.position.min(at.window.next());
            let is_dying = at.window.dying().any(|dying| dying.position < expiring.position);
            if is_read && target <= at.stored_floor {
                let _ = expiring.reply.send(Ok(true));
                continue;
            }
            if is_read && target <= at.window.floor() {
                self.dirty.insert(partition);
            } else if expiring.left == 0 && !is_dying {
                let _ = expiring.reply.send(Ok(false));
                continue;
            } else if !is_read && !self.rests_from_reading {
                self.read_on(partition);
            }
            self.expiring.push(expiring);
        }
    }

    fn failed_to_write(&mut self, error: &fulcrum_store::Error) {
        if !std::mem::replace(&mut self.cannot_write, true) {
            let Name { topic, group, .. } = &self.handle.name;
            tracing::warn!(%topic, %group, %error, "a message group cannot store its progress just now");
        }
        self.rest_from_writing();
    }
}
