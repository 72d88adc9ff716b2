//! Looking at the object before it is published, and after it.

use std::pin::pin;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use datapipes_core::{Error, ErrorKind, Result};
use futures_util::future::{Either, select};
use object_store::GetOptions;

use super::handle::ObjectPlace;
use super::pinned::Pinned;
use super::published::PublishedObject;
use crate::client_state::stopped;
use crate::server::byte_sum::ByteSum;
use crate::server::failure::{is_there, status};

/// How often an object is looked for that was just published.
const MAX_LOOKS: u32 = 3;
/// The pause between the looks.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// How long a look goes on once the client was stopped.
const LAST_LOOK: Duration = Duration::from_millis(500);

/// What is known of an object after the request that publishes.
pub(super) struct Sent {
    pub(super) e_tag: Option<String>,
    pub(super) sum: Option<ByteSum>,
    /// An answer was lost, and the server does not know the upload any more.
    pub(super) is_lost: bool,
}

/// The error of publishing where an answer is missing.
fn perhaps_published(kind: ErrorKind, why: &str) -> Error {
    Error::new(kind, "publish", format!("{why}; an answer is missing, so the object may be published"))
        .with_advice("look at the object before writing it again")
}

impl ObjectPlace {
    /// Refuses to publish a new object where there is one. The condition that goes with the request
    /// is what decides between writers at once; some servers ignore it, and then this look is all
    /// that keeps an object from being replaced. (Rejected: trying the condition on an object that
    /// is there. A server that ignores it would replace that object by what is sent.)
    pub(super) async fn refuse_existing(&self) -> Result<()> {
        let mut attempts = self.client.attempts();
        let options = || GetOptions { head: true, ..GetOptions::default() };
        loop {
            let look = self.looks.objects.get_opts(&self.looks.path, options());
            match self.client.unless_stopped("publish", async { Ok(look.await) }).await? {
                Ok(_) => return Err(self.exists_already("")),
                Err(error) => match (status(&error), attempts.after(&error)) {
                    // There is none; or these credentials may not look, and the condition decides.
                    (Some(404 | 400 | 401 | 403 | 405 | 501), _) => return Ok(()),
                    (_, None) => return Err(self.failed("publish", &error)),
                    (_, Some(pause)) => {
                        self.looks.exchange.again();
                        tokio::time::sleep(pause).await;
                    }
                },
            }
        }
    }

    fn exists_already(&self, perhaps: &str) -> Error {
        let why = format!("{}: it exists already{perhaps}", self.name);
        Error::new(ErrorKind::InvalidInput, "publish", why)
            .with_advice("choose another key, or do not ask for a new object")
    }

    /// The error of the request that publishes.
    pub(super) fn unpublished(&self, error: &object_store::Error, perhaps_done: bool) -> Error {
        let made = self.failed("publish", error);
        if is_there(error) && self.store.exchange.only_new.load(SeqCst) {
            let perhaps = if perhaps_done {
                " (an attempt whose answer was lost or wrong may have made it: look at it)"
            } else {
                ""
            };
            return self.exists_already(perhaps);
        }
        if perhaps_done { perhaps_published(made.kind(), made.context()) } else { made }
    }

    /// Looks at what was just published, and again where it is not there yet.
    async fn look_again(&self) -> Result<Pinned> {
        let mut looks = 1;
        loop {
            match Pinned::look(&self.client, &self.looks, &self.name).await {
                Err(error) if error.kind() == ErrorKind::NotFound && looks < MAX_LOOKS => {
                    looks += 1;
                    tokio::time::sleep(LOOK_PAUSE).await;
                }
                seen => return seen,
            }
        }
    }

    /// Looks for a moment only, once the client was stopped.
    async fn look_unless_stopped(&self) -> Result<Pinned> {
        let has_to_end = async {
            self.client.has_to_stop().await;
            tokio::time::sleep(LAST_LOOK).await;
        };
        match select(pin!(has_to_end), pin!(self.look_again())).await {
            Either::Left(_) => {
                let why = format!("{}: {}", self.name, stopped("publish").context());
                Err(Error::new(ErrorKind::Interrupted, "publish", why))
            }
            Either::Right((seen, _)) => seen,
        }
    }

    /// Looks at the object that was published; whether it was is not known if the answer was lost.
    pub(super) async fn verify(&self, len: u64, sent: Sent) -> Result<PublishedObject> {
        let Sent { e_tag, sum, is_lost } = sent;
        let seen = self.look_unless_stopped().await.map_err(|error| {
            if is_lost {
                let why = format!("{}; the upload is gone from the server", error.context());
                return perhaps_published(error.kind(), &why);
            }
            if error.kind() == ErrorKind::NotFound {
                let why = format!("it was published, but the server does not have it: {}", error.context());
                return Error::new(ErrorKind::NotFound, "publish", why)
                    .with_advice("another program may have removed it, or the server keeps nothing");
            }
            let why = format!("it was published, but the look at it failed: {}", error.context());
            let advice = "it is visible in the place of what was there; its length and checksum were not compared";
            Error::new(error.kind(), "publish", why).with_advice(advice)
        })?;
        let wrong = |what: String| {
            if is_lost {
                let why = format!("{}: the upload is gone from the server, and {what}", self.name);
                return Err(perhaps_published(ErrorKind::Corrupt, &why));
            }
            let why = format!(
                "{}: it was published, but the object at the server is not what was published: {what}",
                self.name
            );
            Err(Error::new(ErrorKind::Corrupt, "publish", why)
                .with_advice("another writer may have replaced it; look at it"))
        };
        if seen.len != len {
            return wrong(format!("the object there has {} bytes instead of {len}", seen.len));
        }
        let bare = |tag: &str| tag.trim_matches('"').to_owned();
        if let (Some(mine), Some(its)) = (e_tag.as_deref().map(bare), seen.e_tag().map(bare))
            && mine != its
        {
            return wrong("the object there has another ETag".into());
        }
        // A server may have a sum of another kind than the one that was sent.
        let checked = match (sum, seen.sum()) {
            (Some(mine), Some(its)) if mine.kind != its.kind => false,
            (Some(mine), Some(its)) if mine != its => {
                return wrong(format!("the object there has another {}", mine.kind.name()));
            }
            (mine, its) => mine.is_some() && its.is_some(),
        };
        if e_tag.is_none() && !checked {
            let why = format!("{}: an object of this length is there", self.name);
            return Err(perhaps_published(ErrorKind::Device, &why));
        }
        self.was_published.store(true, SeqCst);
        let (e_tag, version) = (seen.e_tag().map(str::to_owned), seen.version().map(str::to_owned));
        Ok(PublishedObject { len, e_tag, version, checksum_verified: checked })
    }
}
