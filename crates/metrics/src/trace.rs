//! Spans and events for `tracing`, where the feature of that name is on. Where it is off the macros
//! leave no code behind; where it is on and nobody subscribes they cost a load and a comparison.
//!
//! A subscriber is foreign code: it may panic, block or call the library. So nothing here is called
//! under a lock of the library, and a panic of a subscriber ends with its call.

/// What follows of a level, from the coarsest to the finest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TraceLevel {
    /// What a product did as a whole: a sort, a checkpoint.
    Info,
    /// Its parts: a connection, a merge pass, a new segment.
    Debug,
    /// Single transfers.
    Trace,
}

impl TraceLevel {
    /// Its name in filters.
    pub const fn as_str(self) -> &'static str {
        match self {
            TraceLevel::Info => "INFO",
            TraceLevel::Debug => "DEBUG",
            TraceLevel::Trace => "TRACE",
        }
    }
}

/// The target of all spans and events, for filters: `datapipes=debug`.
pub const TARGET: &str = "datapipes";

#[cfg(feature = "tracing")]
mod on {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use tracing::level_filters::LevelFilter;

    use super::TraceLevel;

    /// Whether somebody may follow this level.
    #[inline]
    pub fn follows(level: TraceLevel) -> bool {
        let needs = match level {
            TraceLevel::Info => LevelFilter::INFO,
            TraceLevel::Debug => LevelFilter::DEBUG,
            TraceLevel::Trace => LevelFilter::TRACE,
        };
        LevelFilter::current() >= needs
    }

    /// A span that lasts until it is dropped.
    #[derive(Debug, Default)]
    #[must_use = "a span lasts until it is dropped"]
    pub struct TraceSpan(Option<tracing::span::EnteredSpan>);

    impl TraceSpan {
        /// Enters a span, if it can be made.
        #[doc(hidden)]
        pub fn enter(make: impl FnOnce() -> tracing::Span) -> TraceSpan {
            TraceSpan(quietly(|| make().entered()))
        }

        /// Sets a field that was empty.
        pub fn record(&self, field: &str, value: &str) {
            if let Some(span) = &self.0 {
                quietly(|| {
                    span.record(field, value);
                });
            }
        }

        /// Sets the field `outcome`: `completed` or `failed`.
        pub fn ended(&self, is_ok: bool) {
            self.record("outcome", if is_ok { "completed" } else { "failed" });
        }
    }

    impl Drop for TraceSpan {
        fn drop(&mut self) {
            let span = self.0.take();
            quietly(|| drop(span));
        }
    }

    /// Calls a subscriber. Its panic is printed by the program's hook, and goes no further.
    #[doc(hidden)]
    pub fn quietly<T>(call: impl FnOnce() -> T) -> Option<T> {
        catch_unwind(AssertUnwindSafe(call)).ok()
    }
}

#[cfg(not(feature = "tracing"))]
mod off {
    use super::TraceLevel;

    /// Whether somebody may follow this level: never, for this was built without `tracing`.
    #[inline(always)]
    pub const fn follows(_level: TraceLevel) -> bool {
        false
    }

    /// Nothing, for this was built without `tracing`.
    #[derive(Clone, Copy, Debug, Default)]
    #[must_use = "a span lasts until it is dropped"]
    pub struct TraceSpan;

    impl TraceSpan {
        /// Does nothing.
        #[inline(always)]
        pub fn record(&self, _field: &str, _value: &str) {}

        /// Does nothing.
        #[inline(always)]
        pub fn ended(&self, _is_ok: bool) {}
    }

    /// Never calls what it is given, which only says what is used.
    #[doc(hidden)]
    #[inline(always)]
    pub fn unused(_values: impl FnOnce()) -> TraceSpan {
        TraceSpan
    }
}

#[cfg(not(feature = "tracing"))]
pub use off::{TraceSpan, follows, unused};
#[cfg(feature = "tracing")]
pub use on::{TraceSpan, follows, quietly};

#[cfg(feature = "tracing")]
#[doc(hidden)]
pub use tracing as subscribed;

/// Enters a span of [`spans`](crate::spans): its level, its name, its fields. It has a field
/// `outcome` besides, and those behind `empty:`, which are set later.
///
/// ```
/// let span = datapipes_metrics::span!(Debug, "merge_pass", [runs = 3_u64], empty: []);
/// span.ended(true);
/// ```
#[cfg(feature = "tracing")]
#[macro_export]
macro_rules! span {
    ($level:ident, $name:literal, [$($field:ident = $value:expr),*], empty: [$($empty:ident),*]) => {
        match $crate::trace::follows($crate::trace::TraceLevel::$level) {
            false => $crate::trace::TraceSpan::default(),
            true => $crate::trace::TraceSpan::enter(|| $crate::trace::subscribed::span!(
                target: "datapipes",
                $crate::level!($level),
                $name,
                $($field = $value,)*
                $($empty = $crate::trace::subscribed::field::Empty,)*
                outcome = $crate::trace::subscribed::field::Empty
            )),
        }
    };
}

/// Tells of an event of [`spans`](crate::spans): its level, its name, its fields.
///
/// ```
/// datapipes_metrics::event!(Debug, "slabs_reassigned", [slabs = 2_u64]);
/// ```
#[cfg(feature = "tracing")]
#[macro_export]
macro_rules! event {
    ($level:ident, $name:literal, [$($field:ident = $value:expr),*]) => {
        if $crate::trace::follows($crate::trace::TraceLevel::$level) {
            $crate::trace::quietly(|| $crate::trace::subscribed::event!(
                name: $name,
                target: "datapipes",
                $crate::level!($level),
                $($field = $value),*
            ));
        }
    };
}

#[cfg(feature = "tracing")]
#[doc(hidden)]
#[macro_export]
macro_rules! level {
    (Info) => {
        $crate::trace::subscribed::Level::INFO
    };
    (Debug) => {
        $crate::trace::subscribed::Level::DEBUG
    };
    (Trace) => {
        $crate::trace::subscribed::Level::TRACE
    };
}

/// Leaves no code behind, for this was built without `tracing`.
#[cfg(not(feature = "tracing"))]
#[macro_export]
macro_rules! span {
    ($level:ident, $name:literal, [$($field:ident = $value:expr),*], empty: [$($empty:ident),*]) => {
        $crate::trace::unused(|| { $(let _ = &$value;)* })
    };
}

/// Leaves no code behind, for this was built without `tracing`.
#[cfg(not(feature = "tracing"))]
#[macro_export]
macro_rules! event {
    ($level:ident, $name:literal, [$($field:ident = $value:expr),*]) => {{
        let _ = $crate::trace::unused(|| { $(let _ = &$value;)* });
    }};
}
