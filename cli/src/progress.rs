//! Progress on a terminal: a bar with rate and time left, drawn from a thread of its own; silence
//! elsewhere.

use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::outcome::note;

const EVERY: Duration = Duration::from_millis(100);

/// The progress of the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// The name of the current phase.
    pub(crate) phase: &'static str,
    /// Bytes done in this phase.
    pub(crate) done: u64,
    /// Bytes in all; 0 while that is not known.
    pub(crate) total: u64,
}

/// Returns whether the standard error is a terminal that can move its cursor.
pub(crate) fn wanted() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

/// Does the work, and meanwhile shows the state where `visible`.
pub(crate) fn during<T>(visible: bool, state: impl Fn() -> State + Send, work: impl FnOnce() -> T) -> T {
    if !visible {
        return work();
    }
    std::thread::scope(|scope| {
        let (finished, end) = channel::<()>();
        let draws = datapipes::threads::spawn_scoped(scope, "progress", move || {
            let mut shown = None;
            while end.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                draw(&mut shown, state());
            }
            if let Some((_, bar)) = shown {
                bar.finish_and_clear();
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

fn draw(shown: &mut Option<(State, ProgressBar)>, state: State) {
    let same = |old: &State| old.phase == state.phase && old.total == state.total;
    if !shown.as_ref().is_some_and(|(old, _)| same(old)) {
        if let Some((_, bar)) = shown.take() {
            bar.finish_and_clear();
        }
        *shown = Some((state, bar(state)));
    }
    if let Some((_, bar)) = shown {
        bar.set_position(state.done);
        bar.tick();
    }
}

fn bar(state: State) -> ProgressBar {
    let target = ProgressDrawTarget::stderr();
    let (bar, template) = if state.total > 0 {
        let template =
            "{msg:<14} [{bar:32}] {percent:>3}%  {decimal_bytes:>10}  {decimal_bytes_per_sec:>12}  {eta} left";
        (ProgressBar::with_draw_target(Some(state.total), target), template)
    } else if state.done > 0 {
        let template = "{msg:<14} {spinner} {decimal_bytes:>10}  {decimal_bytes_per_sec:>12}  {elapsed}";
        (ProgressBar::with_draw_target(None, target), template)
    } else {
        (ProgressBar::with_draw_target(None, target), "{msg:<14} {spinner} {elapsed}")
    };
    // The templates are constants; a bar without a style still counts.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(state.phase);
    bar
}
