//! The two kinds of leases.

/// What a lease permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Several leases may read the same bytes.
    Read,
    /// One lease may write, and no other may hold the bytes.
    Write,
}
