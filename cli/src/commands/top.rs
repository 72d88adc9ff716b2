//! `dpipe top`: what this user's processes and the service are moving now.
//!
//! | module | what it holds |
//! |---|---|
//! | `words`, `figures` | what is shown of pages that others wrote |
//! | `look` | what was seen at a moment |
//! | `sources` | the pages that processes offer, and the service's status |
//! | `rows` | two pages of a process become rows with rates |
//! | `keys` | what the terminal sends for keys |
//! | `view_state` | order, filter, pause: what keys change |
//! | `draw` | the state as a picture of characters |
//! | `screen` | the terminal, which is given back as it was |
//!
//! Rejected: ratatui (0.30, with crossterm). It adds 56 crates to the 127 that `dpipe` is built
//! from, for a table with a line above and one below it.

mod draw;
mod figures;
mod keys;
mod look;
mod rows;
mod screen;
mod sources;
mod view_state;
mod words;

use std::time::{Duration, Instant};

use datapipes::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::arguments::ending::Ending;
use crate::outcome::{CommandStatus, print, print_json};
use crate::system::signals::{self, WaitsFor};
use crate::table::Table;
use look::{Look, Trouble};
use rows::{ActivityRow, rows};
use screen::Screen;
use sources::Sources;
use view_state::{Action, ViewState};

const ENDING: Ending = Ending {
    notes: "\
Keys: s sorts by the next column, r turns the order, / filters, p pauses, arrows and page keys
scroll, q and Escape quit. Processes are seen if they offer statistics: those of dpipe do, other programs by
datapipes::offer. DATAPIPES_OFFER=0 in a process's environment forbids it. A page of statistics
names no files.",
    zero: "the view was shown",
    one: None,
    examples: &["dpipe top --once --interval 0.1", "dpipe top --once --json --interval 0.1"],
};

/// Shows what processes of this user and the service are moving now: rates, queues, latencies,
/// hit ratios, credits.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.text())]
pub(crate) struct Args {
    /// Print one look and exit
    #[arg(long)]
    once: bool,
    /// Print JSON, with --once: rows (pid, program, kind, name, class, bytes_per_second,
    /// per_second, queue, queue_bytes, share, p50_ns, p99_ns, hit_ratio, credits_used, credits,
    /// age_seconds), troubles
    #[arg(long, requires = "once")]
    json: bool,
    /// Seconds between two looks
    #[arg(long, default_value = "1", value_name = "SECONDS", value_parser = seconds)]
    interval: Duration,
    /// Only rows that have these words in their process, kind, name or class
    #[arg(long, value_name = "WORDS", default_value = "")]
    filter: String,
}

/// The longest that one look waits for pages that are due.
const MAX_WAIT: Duration = Duration::from_secs(1);

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| (0.05..=3600.0).contains(s));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "give seconds, from 0.05 to 3600".to_owned())
}

/// The output of `--json`.
#[derive(Serialize)]
struct Outcome<'a> {
    rows: Vec<&'a ActivityRow>,
    troubles: &'a [Trouble],
}

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    signals::catch(WaitsFor::Places);
    let mut sources = Sources::default();
    if args.once {
        return once(args, &mut sources).map(|()| CommandStatus::Good);
    }
    if !screen::is_possible() {
        let why = "the standard output is no terminal that can move its cursor";
        return Err(Error::new(ErrorKind::Unsupported, "top", why).with_advice("use --once, perhaps with --json"));
    }
    let mut state = ViewState::new(&args.filter);
    // Another process may stop this one, too: the terminal is given back before.
    signals::catch_stop();
    let mut screen = Screen::open()?;
    let outcome = live(args, &mut sources, &mut state, &mut screen);
    drop(screen);
    outcome.map(|()| CommandStatus::Good)
}

fn once(args: &Args, sources: &mut Sources) -> Result<()> {
    let before = sources.look();
    let begin = Instant::now();
    while let Some(left) = args.interval.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) {
        signals::check("top")?;
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
    let mut now = sources.look();
    // A short interval may end before a page is written again, which then has no rate.
    let end = Instant::now() + MAX_WAIT;
    loop {
        let wait = now.until_written_again(&before);
        if wait.is_zero() || Instant::now() >= end {
            break;
        }
        signals::check("top")?;
        std::thread::sleep(wait.clamp(Duration::from_millis(5), Duration::from_millis(50)));
        now = sources.look();
    }
    now.follow(&before);
    let all = rows(&now);
    let mut state = ViewState::new(&args.filter);
    state.set(all, now.troubles.clone());
    let shown = state.shown();
    if args.json {
        return print_json(&Outcome { rows: shown, troubles: &now.troubles });
    }
    if shown.is_empty() {
        print(&format!("{}\n", draw::words_of_none(state.all())))?;
    } else {
        let mut table = Table::default();
        table.row(draw::COLUMNS.map(|column| column.0));
        shown.iter().for_each(|row| table.row(draw::cells_of_one_look(row)));
        print(&table.text(0))?;
    }
    now.troubles.iter().try_for_each(|trouble| print(&format!("{}: {}\n", trouble.place, trouble.why)))
}

/// Looks, draws and takes keys until somebody quits.
fn live(args: &Args, sources: &mut Sources, state: &mut ViewState, screen: &mut Screen) -> Result<()> {
    let mut before: Option<Look> = None;
    let mut due = Instant::now();
    let mut stale = true;
    loop {
        signals::check("top")?;
        if Instant::now() >= due {
            let mut now = sources.look();
            if let Some(before) = &before {
                now.follow(before);
            }
            // The first look has no rates, so a second one follows soon.
            let wait = if before.is_none() { args.interval.min(Duration::from_millis(250)) } else { args.interval };
            if !state.is_paused() {
                state.set(rows(&now), now.troubles.clone());
                stale = true;
            }
            before = Some(now);
            due = Instant::now() + wait;
        }
        if stale || screen.has_changed() {
            screen.draw(|width, height| draw::draw(state, width, height))?;
            stale = false;
            // For a test: nobody knows a key that makes this panic, and the terminal must be given
            // back all the same.
            if cfg!(debug_assertions) && std::env::var_os("DPIPE_TOP_PANICS").is_some() {
                panic!("as the test asked");
            }
        }
        // A shell to which this was stopped, and came back, has set up the terminal for itself.
        stale |= screen.take_back()?;
        if signals::stop_is_asked() {
            screen.stop()?;
            stale = true;
        }
        // A signal, and another size, are noticed between two waits.
        let wait = due.saturating_duration_since(Instant::now()).min(Duration::from_millis(100));
        for key in screen.keys(wait)? {
            match state.key(key) {
                Action::Quit => return Ok(()),
                Action::Draw => stale = true,
                Action::Stop => {
                    screen.stop()?;
                    stale = true;
                }
                Action::Nothing => {}
            }
        }
    }
}
