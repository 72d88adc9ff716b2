//! What a sort on several machines needs beside the sort and the merge of one: where parts of a
//! file begin, samples, splitters, the places where a sorted part is cut, and a way for sorted
//! parts between tasks.
//!
//! ```text
//! sample     records at equal distances in the inputs                         (borders.rs)
//! splitters  P - 1 of them divide the order into P ranges of about equal size (order.rs)
//! map        each task sorts a part of the inputs, and cuts it at the splitters (cuts.rs)
//! between    sorted parts are kept where they were made, and sent in ranges    (exchange)
//! reduce     each task merges one range of all parts
//! ```
//! Tasks and their places belong to whoever schedules them. A record that equals a splitter is
//! ordered by the part that it begins in. So one frequent key is divided among several ranges, and
//! the whole stays stable.

mod borders;
mod cuts;
mod exchange;
mod order;

pub use borders::RecordBorders;
pub use exchange::{BlockClient, BlockKeeper, BlockTicket, UnnamedOutput};
pub use order::{PlacedRecord, ShuffleOrder};
