//! The state as a picture of characters, for terminals of any size.

use super::rows::ActivityRow;
use super::view_state::ViewState;
use super::words::printable;
use crate::arguments::units;
use crate::columns;
use crate::report::bottleneck::percent;

/// The columns with their widths, and how soon they are left out of a narrow terminal: larger
/// numbers go first.
pub(super) const COLUMNS: [(&str, usize, u8); 12] = [
    ("PID", 8, 0),
    ("PROGRAM", 17, 3),
    ("KIND", 9, 1),
    ("NAME", 28, 0),
    ("CLASS", 8, 6),
    ("RATE", 12, 0),
    ("PER S", 9, 2),
    ("QUEUE", 12, 4),
    ("SHARE", 6, 7),
    ("50%", 9, 8),
    ("99%", 9, 5),
    ("HITS", 6, 5),
];

/// The least width of a name.
const MIN_NAME: usize = 8;

/// The cells of a row, as words.
pub(super) fn cells(row: &ActivityRow) -> [String; COLUMNS.len()] {
    let number = |value: Option<f64>| value.map_or_else(String::new, count);
    let time = |ns: Option<u64>| ns.map_or_else(String::new, |ns| units::nanoseconds(ns as f64));
    let queue = match (row.credits_used, row.credits) {
        (used, Some(credits)) => format!("{}/{credits} cr", used.unwrap_or(0)),
        _ => match (row.queue, row.queue_bytes) {
            (Some(queue), _) => count(queue as f64),
            (None, bytes) => bytes.map_or_else(String::new, units::bytes),
        },
    };
    let name = match row.age_seconds {
        Some(age) => format!("({age:.0} s old) {}", row.name),
        None => row.name.clone(),
    };
    // The columns are as wide as their heads.
    let short = |part| percent(part).replace("less than ", "<");
    [
        row.pid.to_string(),
        row.program.clone(),
        row.kind.to_owned(),
        name,
        row.class.clone(),
        row.bytes_per_second.map_or_else(String::new, |rate| format!("{}/s", units::bytes(rate as u64))),
        number(row.per_second),
        queue,
        row.share.map_or_else(String::new, short),
        time(row.p50_ns),
        time(row.p99_ns),
        row.hit_ratio.map_or_else(String::new, short),
    ]
}

/// A count in at most seven columns.
fn count(value: f64) -> String {
    match value {
        ..1e6 => format!("{value:.0}"),
        ..1e9 => format!("{:.2}M", value / 1e6),
        ..1e12 => format!("{:.2}G", value / 1e9),
        _ => format!("{value:.1e}"),
    }
}

/// The widest name of one look.
const MAX_NAME: usize = 60;

/// The cells of a row for one look: each as wide as its column has room for, so that a process with
/// long words does not push the figures of the others out of sight.
pub(super) fn cells_of_one_look(row: &ActivityRow) -> Vec<String> {
    let wide = |column: (&str, usize, u8)| if column.0 == "NAME" { MAX_NAME } else { column.1 };
    cells(row).iter().zip(COLUMNS).map(|(cell, column)| columns::shortened(cell, wide(column))).collect()
}

/// What there is to say where there are no rows: of all, or of those with the words of the filter.
pub(super) fn words_of_none(all: usize) -> &'static str {
    match all {
        0 => "No process of this user offers statistics, and no service answers.",
        _ => "No row has the words of the filter.",
    }
}

/// The columns that fit a width, and which of them takes what is left over: the name.
fn fitting(width: usize) -> Vec<usize> {
    let mut kept: Vec<usize> = (0..COLUMNS.len()).collect();
    // The name can become shorter than it likes to be.
    let least = |kept: &[usize]| -> usize {
        kept.iter().map(|at| if COLUMNS[*at].0 == "NAME" { MIN_NAME } else { COLUMNS[*at].1 } + 1).sum::<usize>()
    };
    while kept.len() > 1 && least(&kept) > width + 1 {
        let first = kept.iter().enumerate().max_by_key(|(_, at)| COLUMNS[**at].2).map(|(nth, _)| nth);
        match first {
            Some(nth) => _ = kept.remove(nth),
            None => break,
        }
    }
    kept
}

/// A line of the picture, and whether it is to stand out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ScreenLine {
    pub(super) text: String,
    pub(super) is_bright: bool,
}

impl ScreenLine {
    fn new(text: impl Into<String>, is_bright: bool) -> ScreenLine {
        ScreenLine { text: text.into(), is_bright }
    }
}

/// Draws the view for a terminal of so many columns and lines.
pub(super) fn draw(state: &ViewState, width: usize, height: usize) -> Vec<ScreenLine> {
    let rows = state.shown();
    let paused = if state.is_paused() { "  PAUSED" } else { "" };
    let turned = if state.is_turned { ", turned" } else { "" };
    // It may come from the command line, where nothing was typed.
    let words = printable(&state.filter);
    let filter = match (state.is_typing, words.as_str()) {
        (true, words) => format!("  filter: {words}_"),
        (false, "") => String::new(),
        (false, words) => format!("  filter: {words}"),
    };
    let title = format!(
        "dpipe top  {} of {} rows, by {}{turned}{paused}{filter}",
        rows.len(),
        state.all(),
        state.order.as_str()
    );
    let mut lines = vec![ScreenLine::new(title, true)];
    let troubles: Vec<ScreenLine> = state
        .troubles
        .iter()
        .take(2)
        .map(|trouble| ScreenLine::new(format!("{}: {}", trouble.place, trouble.why), false))
        .collect();
    // The title above, troubles and keys below.
    let room = height.saturating_sub(2 + troubles.len());
    let mut body = match rows.is_empty() {
        true => vec![ScreenLine::new(words_of_none(state.all()), false)],
        false => table(&rows, state.top, width, room),
    };
    body.resize(room, ScreenLine::new("", false));
    lines.append(&mut body);
    lines.extend(troubles);
    lines.push(ScreenLine::new(
        match (state.is_typing, width) {
            (true, _) => "Enter keeps the filter, Esc drops it",
            (false, ..=59) => "s sort r turn / filter p pause q quit",
            (false, _) => "s next order  r turn  / filter  p pause  arrows scroll  q quit",
        },
        false,
    ));
    lines.truncate(height);
    lines.iter_mut().for_each(|line| line.text = columns::cut(&line.text, width));
    lines
}

/// The head of the table, and as many rows as there is room for.
fn table(rows: &[&ActivityRow], top: usize, width: usize, room: usize) -> Vec<ScreenLine> {
    let kept = fitting(width);
    let others: usize = kept.iter().filter(|at| COLUMNS[**at].0 != "NAME").map(|at| COLUMNS[*at].1 + 1).sum();
    let wide = |at: usize| match COLUMNS[at] {
        ("NAME", ..) => width.saturating_sub(others).max(MIN_NAME),
        (_, width, _) => width,
    };
    let line = |cells: &dyn Fn(usize) -> String| {
        let cells = kept.iter().map(|at| {
            let wide = wide(*at);
            columns::left(&columns::shortened(&cells(*at), wide), wide)
        });
        cells.collect::<Vec<_>>().join(" ")
    };
    let mut lines = vec![ScreenLine::new(line(&|at| COLUMNS[at].0.to_owned()), true)];
    for row in rows.iter().skip(top).take(room.saturating_sub(1)) {
        let cells = cells(row);
        lines.push(ScreenLine::new(line(&|at| cells[at].clone()), false));
    }
    lines.truncate(room);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    fn state(rows: u32) -> ViewState {
        let row = |pid| ActivityRow {
            pid,
            program: "dpipe sort".into(),
            kind: "pipe",
            name: "sort input uring-direct and more words".into(),
            bytes_per_second: Some(1.5e9),
            hit_ratio: Some(0.75),
            p99_ns: Some(1_500_000),
            credits: Some(4),
            credits_used: Some(3),
            ..ActivityRow::default()
        };
        let mut state = ViewState::new("");
        state.set((0..rows).map(row).collect(), Vec::new());
        state
    }

    fn lines(width: usize, height: usize, state: &ViewState) -> Vec<String> {
        let lines = draw(state, width, height);
        assert!(lines.len() <= height && lines.iter().all(|line| columns::count(&line.text) <= width));
        lines.into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn every_size_of_a_terminal_can_be_drawn() {
        let state = state(50);
        for (width, height) in [(0, 0), (1, 1), (5, 3), (20, 5), (40, 10), (80, 24), (200, 60), (300, 2)] {
            lines(width, height, &state);
            lines(width, height, &ViewState::new("x"));
        }
        let wide = lines(160, 10, &state);
        assert!(wide[1].contains("RATE") && wide[1].contains("HITS") && wide[2].contains("1.50 GB/s"), "{wide:#?}");
        assert!(wide[2].contains("3/4 cr") && wide[2].contains("1.5 ms") && wide[2].contains("75%"), "{wide:#?}");
        let narrow = lines(40, 10, &state);
        assert!(
            narrow[1].contains("NAME") && narrow[1].contains("RATE") && narrow[2].contains("1.50 GB/s"),
            "{narrow:#?}"
        );
        assert!(narrow[9].contains("q quit"), "{narrow:#?}");
    }

    #[test]
    fn wide_characters_never_make_a_line_too_long() {
        let row = ActivityRow {
            program: "\u{5b57}".repeat(80),
            kind: "pipe",
            name: "\u{6f22}".repeat(80),
            class: "\u{ff21}".repeat(80),
            ..ActivityRow::default()
        };
        let mut state = ViewState::new(&"\u{5b57}".repeat(60));
        for filter in ["", "\u{5b57}"] {
            state.filter = filter.into();
            state.set(vec![row.clone()], Vec::new());
            (0..200).for_each(|width| _ = lines(width, 10, &state));
        }
        assert!(lines(80, 10, &state)[2].contains('\u{6f22}'));
        let cells = cells_of_one_look(&row);
        let widths: Vec<usize> = cells.iter().map(|cell| columns::count(cell)).collect();
        // A wide character that has no room leaves a column.
        assert!(widths.iter().sum::<usize>() < 123 && (MAX_NAME - 1..=MAX_NAME).contains(&widths[3]), "{widths:?}");
    }
}
