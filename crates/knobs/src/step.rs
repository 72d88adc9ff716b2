//! The steps of a transaction, as they are told.

/// What a transaction is about to do. A caller may log it; tests end the process there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransactionStep {
    /// The guard is started.
    Guard,
    /// The journal is kept.
    Keep,
    /// A setting is changed.
    Change(String),
    /// All settings are read once more.
    Verify,
    /// The journal says that all are changed.
    Settle,
    /// Every setting is changed.
    Changed,
    /// The journal says that settings are being restored.
    Reopen,
    /// A setting is restored.
    Restore(String),
    /// The journal is removed.
    Forget,
    /// Nothing is left to do.
    Over,
}

/// What may be told of the steps.
pub(crate) type Tell<'a> = &'a mut dyn FnMut(TransactionStep);
