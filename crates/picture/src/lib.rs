//! Pictures as SVG documents, and pages as HTML, that stand alone: no scripts, fonts or links. Pure
//! functions from values to text.
//!
//! - [`svg`]: texts, lines and grids on a drawing.
//! - [`chart`]: panels of bars or lines over labels.
//! - [`page`]: a report as a value, and as HTML.
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

pub mod chart;
pub mod page;
pub mod svg;
