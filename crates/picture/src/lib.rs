//! Pictures as SVG documents, and pages as HTML, that stand alone: no scripts, fonts or links. Pure
//! functions from values to text.
//!
//! - [`svg`]: texts, lines and grids on a drawing.
//! - [`chart`]: panels of bars or lines over labels.
//! - [`page`]: a report as a value, and as HTML.
//! - [`themed`]: drawings that follow the viewer's light or dark theme, and are described in words.
//! - [`decision`], [`budget`], [`channels`]: a planner's decision, a cache's memory, the channels
//!   of a graph, drawn with it.
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

pub mod budget;
pub mod channels;
pub mod chart;
pub mod decision;
pub mod page;
pub mod svg;
pub mod themed;
