//! A page that shows how something went: a value, and the HTML that is made of it. The HTML is one
//! file that stands alone: no scripts, no fonts, nothing from elsewhere (its policy forbids it).
//!
//! ```text
//!   title
//!   headline                the answer, in one sentence
//!   facts                   a few figures, each with its name
//!   section                 a heading, a sentence, and blocks:
//!     chart over time         a picture, its description, and the same figures as a table
//!     bars                    amounts beside each other
//!     table, checks, text     a check says in a word whether it holds
//! ```
//!
//! Words come from anywhere (names of files, messages of a kernel), so they are written in one way
//! only, which escapes them (`markup`).

mod html;
mod markup;
mod model;
mod table;
mod timeline;

pub use model::{
    BarList, Headline, HtmlPage, PageBlock, PageCheck, PageSection, PageTable, TimelineChart, TimelineForm,
    TimelineSeries, Tone,
};
