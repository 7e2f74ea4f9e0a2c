//! Reading one owned partition: pull, hand over, wait until it is done, checkpoint, again.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use crate::host::{Error, Host};
use crate::wire::{Event, Held};

/// Pause after a call that may succeed later.
const PAUSE: Duration = Duration::from_millis(200);

/// Events of one partition. Whoever got it calls [`checkpoint`](Self::checkpoint) when they are done; dropping it gives
/// the events back, and they come again.
#[derive(Debug)]
pub struct Batch {
    /// The partition, and the epoch it is owned in.
    pub held: Held,
    /// At least one event, ascending.
    pub events: Vec<Event>,
    pub(crate) done: oneshot::Sender<oneshot::Sender<Result<(), Failed>>>,
}

/// The checkpoint of a batch was not stored: somebody will get its events again.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The host refused it.
    #[error("the checkpoint was refused")]
    Refused(#[source] Error),
    /// The partition was taken away meanwhile.
    #[error("the partition was taken away")]
    Taken,
}

impl Batch {
    /// Stores that these events are done; returns once that is durable.
    pub async fn checkpoint(self) -> Result<(), Failed> {
        let (reply, stored) = oneshot::channel();
        self.done.send(reply).map_err(|_| Failed::Taken)?;
        stored.await.unwrap_or(Err(Failed::Taken))
    }
}

/// What a puller needs to know.
pub(crate) struct Puller {
    pub(crate) host: Host,
    pub(crate) group: String,
    pub(crate) member: String,
    pub(crate) session: String,
    pub(crate) held: Held,
    /// Where to go on; `None` is the checkpoint.
    pub(crate) offset: Option<u64>,
    pub(crate) max: u32,
    pub(crate) wait: Duration,
    pub(crate) batches: mpsc::Sender<Batch>,
    /// True once the partition is to be given up.
    pub(crate) revoked: watch::Receiver<bool>,
}

/// Why a puller ended.
#[derive(Debug)]
pub(crate) enum End {
    /// It was told to give up, and nothing is in hand any more.
    Released,
    /// The host refused a call.
    Refused(Error),
}

impl Puller {
    pub(crate) async fn run(mut self) -> End {
        let mut revoked = self.revoked.clone();
        loop {
            let pulled = tokio::select! {
                biased;
                _ = revoked.wait_for(|is_revoked| *is_revoked) => return End::Released,
                pulled = self.pull() => pulled,
            };
            let pulled = match pulled {
                Ok(pulled) => pulled,
                Err(error) if error.is_passing() => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Err(error) => return End::Refused(error),
            };
            if pulled.events.is_empty() {
                self.offset = Some(pulled.next_offset);
                continue;
            }
            let (done, is_done) = oneshot::channel();
            let batch = Batch { held: self.held.clone(), events: pulled.events, done };
            tokio::select! {
                biased;
                // Nobody has it yet: it need not be finished.
                _ = revoked.wait_for(|is_revoked| *is_revoked) => return End::Released,
                sent = self.batches.send(batch) => if sent.is_err() { return End::Released },
            }
            match is_done.await {
                Ok(reply) => {
                    let stored = self.checkpoint(pulled.next_offset).await;
                    match stored {
                        Ok(()) => {
                            self.offset = Some(pulled.next_offset);
                            drop(reply.send(Ok(())));
                        }
                        Err(error) => {
                            let code = error.code().to_owned();
                            drop(reply.send(Err(Failed::Refused(error))));
                            return End::Refused(refused_again(&self.host, &code));
                        }
                    }
                }
                // Given back: it comes again.
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    async fn pull(&self) -> Result<crate::wire::Pulled, Error> {
        let Self { host, group, member, session, held, .. } = self;
        host.pull(group, member, session, held, self.offset, self.max, self.wait).await
    }

    /// Stores the offset; tries again while the host cannot be reached. Its owner ends that.
    async fn checkpoint(&self, offset: u64) -> Result<(), Error> {
        let Self { host, group, member, session, held, .. } = self;
        loop {
            match host.checkpoint(group, member, session, held, offset).await {
                Err(error) if error.is_passing() => tokio::time::sleep(PAUSE).await,
                stored => return stored,
            }
        }
    }
}

/// The caller of the checkpoint has the error itself; the member only needs its code.
fn refused_again(host: &Host, code: &str) -> Error {
    Error::Refused(crate::host::Refusal {
        status: 409,
        code: code.to_owned(),
        message: format!("{} refused a checkpoint", host.url()),
        epoch: None,
        retry_after_ms: None,
    })
}
