//! What lines of the log tell of, and how much it matters.

use std::fmt;

use super::entrance::peer::Peer;

/// How much a line matters, as syslog counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogPriority {
    /// The service cannot do what it is for.
    Error,
    /// Somebody was refused, or something is missing.
    Warning,
    /// What happens in the life of a service.
    Info,
}

impl LogPriority {
    pub(super) const fn number(self) -> u8 {
        match self {
            LogPriority::Error => 3,
            LogPriority::Warning => 4,
            LogPriority::Info => 6,
        }
    }
}

/// What a line tells of. The journal keeps its name (`DATAPIPES_EVENT`) and its number
/// (`MESSAGE_ID`), by which entries of one kind are found; the numbers never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogEvent {
    /// It serves.
    Started,
    /// It was asked to stop.
    Stops,
    /// It stopped, and everything under way was carried out.
    Stopped,
    /// It stopped while something was under way.
    StoppedUnfinished,
    /// A process that it needs was killed.
    HelperKilled,
    /// Its own probe found that it does not serve.
    NotServing,
    /// It could not start.
    CannotStart,
    /// A client was not accepted.
    ClientTurnedAway,
    /// A client broke the rules, or its memory failed.
    ClientCutOff,
    /// A client left while it had pipes.
    ClientLeft,
    /// A request of a client was refused.
    RequestRefused,
    /// Lines about clients were left out.
    LinesLeftOut,
}

impl LogEvent {
    /// How much it matters.
    pub const fn priority(self) -> LogPriority {
        match self {
            LogEvent::HelperKilled | LogEvent::NotServing | LogEvent::CannotStart => LogPriority::Error,
            LogEvent::Started | LogEvent::Stops | LogEvent::Stopped => LogPriority::Info,
            _ => LogPriority::Warning,
        }
    }

    /// The number of its kind of entry in the journal.
    pub const fn message_id(self) -> &'static str {
        match self {
            LogEvent::Started => "6513270e269e4d37b2a74de452e6b438",
            LogEvent::Stops => "d23f0824128b4f338c5c7fd0a6a3a450",
            LogEvent::Stopped => "9531985d5d9d49f89818e811892f902b",
            LogEvent::StoppedUnfinished => "36f675cc81e74ef5a8e25d940ed90475",
            LogEvent::HelperKilled => "6b0d549b6f03475a9600a35a099950d8",
            LogEvent::NotServing => "8d116ece173847d9bd9c172411e20b8f",
            LogEvent::CannotStart => "90c192cfd3ac44af8f21ddb66cad4a26",
            LogEvent::ClientTurnedAway => "a170b33839264059b28c105d1fb17c23",
            LogEvent::ClientCutOff => "0fd630f1f29d4da9953f48f1a09f76b5",
            LogEvent::ClientLeft => "0cb1e29c658c4a1495e60af593bd04cf",
            LogEvent::RequestRefused => "8e81973e0bec47b0b898d190f9ebdacc",
            LogEvent::LinesLeftOut => "6b4cb2424a234596a217beaddbc496cb",
        }
    }
}

/// A client of whom a line tells.
#[derive(Clone, Copy)]
pub(super) struct LoggedClient {
    pub(super) number: u64,
    pub(super) peer: Option<Peer>,
}

impl fmt::Display for LoggedClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {}", self.number)?;
        match self.peer {
            Some(peer) => write!(f, " (user {}, process {})", peer.uid, peer.pid),
            None => Ok(()),
        }
    }
}
