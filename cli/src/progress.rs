//! Progress on a terminal: one line with a bar, a rate and the time left, drawn from a thread of
//! its own; silence elsewhere.
//!
//! The line is as wide as the terminal allows, and never wider: a line that wraps leaves its rests
//! on the screen. (`indicatif` was used before. It neither chooses what to leave out of a narrow
//! terminal nor knows of phases that follow.)

use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::arguments::units;
use crate::colors::{self, Color, paint};
use crate::columns;
use crate::outcome::{draw, note};

const EVERY: Duration = Duration::from_millis(100);
/// Where a terminal does not say how wide it is.
const USUAL_WIDTH: usize = 80;
/// The longest bar: a longer one tells no more.
const MAX_BAR: usize = 40;
/// Before so much time no rate is steady enough to tell how long it will take.
const SETTLED_S: f64 = 0.5;

/// The progress of the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// The name of the current phase.
    pub(crate) phase: &'static str,
    /// Bytes done in this phase.
    pub(crate) done: u64,
    /// Bytes in all; 0 while that is not known.
    pub(crate) total: u64,
    /// Bytes of phases that follow, as far as they are known. They are expected to take as long for
    /// a byte as this phase does.
    pub(crate) later: u64,
}

impl State {
    /// Work that counts no bytes: its name and its time are shown.
    pub(crate) fn of(phase: &'static str) -> State {
        State { phase, ..State::default() }
    }
}

/// Returns whether the standard error is a terminal that can move its cursor.
pub(crate) fn wanted() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

/// The columns of the terminal that may be used: the last one stays empty, for some terminals wrap
/// as soon as it is written, and the two before it, for a terminal shows Ctrl-C as `^C`.
pub(crate) fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stderr()).ok();
    let columns = size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
    columns.unwrap_or(USUAL_WIDTH).saturating_sub(3)
}

/// Does the work, and meanwhile shows the state where `visible`.
pub(crate) fn during<T>(visible: bool, state: impl Fn() -> State + Send, work: impl FnOnce() -> T) -> T {
    if !visible {
        return work();
    }
    std::thread::scope(|scope| {
        let (finished, end) = channel::<()>();
        let draws = datapipes::threads::spawn_scoped(scope, "progress", move || {
            let mut meter = PhaseMeter::new(Instant::now());
            let mut drawn = false;
            let color = colors::on_error();
            while end.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let state = state();
                let elapsed = meter.elapsed(&state, Instant::now());
                draw(&format!("\r{}\x1b[K", line(&state, elapsed, width(), color)));
                drawn = true;
            }
            if drawn {
                draw("\r\x1b[K");
            }
        });
        if let Err(error) = draws {
            note(&format!("dpipe: note: no progress is shown: {error}\n"));
        }
        let value = work();
        drop(finished);
        value
    })
}

/// Does what counts no bytes and can take long, and shows that on a terminal.
pub(crate) fn syncing<T>(work: impl FnOnce() -> T) -> T {
    during(wanted(), || State::of("syncing"), work)
}

/// When the phase that is shown began.
struct PhaseMeter {
    phase: &'static str,
    begin: Instant,
}

impl PhaseMeter {
    fn new(begin: Instant) -> PhaseMeter {
        PhaseMeter { phase: "", begin }
    }

    /// The seconds of the present phase.
    fn elapsed(&mut self, state: &State, now: Instant) -> f64 {
        if state.phase != self.phase && !self.phase.is_empty() {
            self.begin = now;
        }
        self.phase = state.phase;
        now.saturating_duration_since(self.begin).as_secs_f64()
    }
}

/// The line for a state: what there is room for, the most important first. It takes at most `wide`
/// columns.
fn line(state: &State, elapsed: f64, wide: usize, color: bool) -> String {
    let mut parts: Vec<(u8, String)> = vec![(1, state.phase.to_owned())];
    let rate = if elapsed > 0.0 { state.done as f64 / elapsed } else { 0.0 };
    let known = state.total > 0;
    if known {
        parts.push((0, format!("{:>3}%", (state.done as f64 * 100.0 / state.total as f64).min(100.0) as u64)));
    }
    if state.done > 0 {
        parts.push((3, format!("{:>8}", units::bytes(state.done))));
        parts.push((2, format!("{:>10}", format!("{}/s", units::bytes(rate as u64)))));
    }
    match left(state, rate, elapsed) {
        Some(left) => parts.push((1, format!("{} left", time(left)))),
        None => parts.push((2, time(elapsed))),
    }
    // What matters least is left out first.
    let len = |parts: &[(u8, String)]| parts.iter().map(|(_, part)| columns::count(part) + 2).sum::<usize>() - 2;
    while parts.len() > 1 && len(&parts) > wide {
        let Some(worst) = parts.iter().map(|(rank, _)| *rank).max() else { break };
        let at = parts.iter().rposition(|(rank, _)| *rank == worst).unwrap_or(0);
        parts.remove(at);
    }
    // Two spaces, and the brackets.
    let room = wide.saturating_sub(len(&parts) + 4).min(MAX_BAR);
    if known && room >= 5 {
        let filled = ((state.done as f64 / state.total as f64).min(1.0) * room as f64) as usize;
        let bar = format!("[{}{}]", "=".repeat(filled), " ".repeat(room - filled));
        parts.insert(usize::from(parts.len() > 1), (0, paint(&bar, Color::Progress, color)));
        return join(&parts);
    }
    let all = join(&parts);
    // A part of a number is another number.
    if columns::count(&all) > wide && known { String::new() } else { columns::cut(&all, wide) }
}

fn join(parts: &[(u8, String)]) -> String {
    parts.iter().map(|(_, part)| part.as_str()).collect::<Vec<_>>().join("  ")
}

/// The seconds until the end, by the rate of this phase; `None` while that is not known.
fn left(state: &State, rate: f64, elapsed: f64) -> Option<f64> {
    let bytes = state.total.saturating_sub(state.done).saturating_add(state.later);
    (state.total > 0 && rate > 0.0 && elapsed >= SETTLED_S).then(|| bytes as f64 / rate)
}

/// A time as people say it: `5 s`, `2:05`, `1:02:05`.
fn time(seconds: f64) -> String {
    match seconds.clamp(0.0, 1e7).round() as u64 {
        s @ ..60 => format!("{s} s"),
        s @ ..3600 => format!("{}:{:02}", s / 60, s % 60),
        s => format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: State = State { phase: "sorting", done: 2_000_000_000, total: 4_000_000_000, later: 4_000_000_000 };

    #[test]
    fn a_line_has_what_its_width_has_room_for_and_never_more() {
        let states = [
            HALF,
            State { total: 0, ..HALF },
            State::default(),
            State { done: 0, ..HALF },
            State { done: u64::MAX, ..HALF },
        ];
        for state in states {
            for columns in 0..200 {
                for elapsed in [0.0, 0.1, 4.0, 1e6] {
                    let shown = line(&state, elapsed, columns, false);
                    assert!(shown.chars().count() <= columns, "{columns}: {shown:?}");
                    let colored = line(&state, elapsed, columns, true).replace("\x1b[36m", "").replace("\x1b[0m", "");
                    assert_eq!(colored, shown);
                }
            }
        }
        assert_eq!(line(&HALF, 4.0, 19, false), "sorting   50%");
        assert_eq!([3, 4].map(|wide| line(&HALF, 4.0, wide, false)), ["", " 50%"]);
        let narrow = line(&HALF, 4.0, 30, false);
        assert!(narrow.starts_with("sorting  ") && narrow.ends_with("50%  12 s left"), "{narrow:?}");
        assert!(line(&HALF, 4.0, 79, false).contains("500 MB/s") && line(&HALF, 4.0, 79, false).contains('['));
    }

    #[test]
    fn the_time_left_counts_the_phases_that_follow() {
        // 2 GB in 4 s: 6 GB are left.
        assert_eq!(left(&HALF, 0.5e9, 4.0), Some(12.0));
        assert_eq!(left(&State { later: 0, ..HALF }, 0.5e9, 4.0), Some(4.0));
        assert_eq!((left(&HALF, 0.5e9, 0.1), left(&State { total: 0, ..HALF }, 1.0, 4.0)), (None, None));
        assert_eq!([4.4, 65.0, 3725.0].map(time), ["4 s", "1:05", "1:02:05"]);
        let begin = Instant::now();
        let mut meter = PhaseMeter::new(begin);
        assert_eq!(meter.elapsed(&HALF, begin + Duration::from_secs(4)), 4.0);
        let merging = State { phase: "merging", ..HALF };
        assert_eq!(meter.elapsed(&merging, begin + Duration::from_secs(5)), 0.0);
        assert_eq!(meter.elapsed(&merging, begin + Duration::from_secs(7)), 2.0);
    }
}
