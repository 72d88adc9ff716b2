//! What keys change: order, filter, pause, place.

use std::cmp::Ordering;

use super::keys::Key;
use super::look::Trouble;
use super::rows::ActivityRow;

/// What follows from a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    Draw,
    /// Stop this process, until its shell continues it.
    Stop,
    Quit,
}

/// The column by which rows are in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OrderBy {
    Rate,
    PerSecond,
    Queue,
    Slowest,
    Hits,
    Process,
    Name,
}

impl OrderBy {
    const ALL: [OrderBy; 7] = [
        OrderBy::Rate,
        OrderBy::PerSecond,
        OrderBy::Queue,
        OrderBy::Slowest,
        OrderBy::Hits,
        OrderBy::Process,
        OrderBy::Name,
    ];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            OrderBy::Rate => "rate",
            OrderBy::PerSecond => "per second",
            OrderBy::Queue => "queue",
            OrderBy::Slowest => "99%",
            OrderBy::Hits => "hits",
            OrderBy::Process => "process",
            OrderBy::Name => "name",
        }
    }
}

/// The state of the view.
pub(super) struct ViewState {
    rows: Vec<ActivityRow>,
    pub(super) troubles: Vec<Trouble>,
    pub(super) order: OrderBy,
    pub(super) is_turned: bool,
    pub(super) filter: String,
    /// Whether keys are words of the filter.
    pub(super) is_typing: bool,
    is_paused: bool,
    /// The row at the top.
    pub(super) top: usize,
}

/// The longest filter.
const MAX_FILTER: usize = 60;
/// Rows that a page key moves.
const PAGE: usize = 10;

impl ViewState {
    pub(super) fn new(filter: &str) -> ViewState {
        ViewState {
            rows: Vec::new(),
            troubles: Vec::new(),
            order: OrderBy::Rate,
            is_turned: false,
            filter: filter.to_owned(),
            is_typing: false,
            is_paused: false,
            top: 0,
        }
    }

    /// Takes new rows.
    pub(super) fn set(&mut self, rows: Vec<ActivityRow>, troubles: Vec<Trouble>) {
        (self.rows, self.troubles) = (rows, troubles);
        self.top = self.top.min(self.shown().len().saturating_sub(1));
    }

    pub(super) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Rows of all processes, whether they are shown or not.
    pub(super) fn all(&self) -> usize {
        self.rows.len()
    }

    /// The rows that the filter leaves, in order.
    pub(super) fn shown(&self) -> Vec<&ActivityRow> {
        let words: Vec<String> = self.filter.split_whitespace().map(str::to_lowercase).collect();
        let matches = |row: &&ActivityRow| {
            let text = format!("{} {} {} {} {}", row.pid, row.program, row.kind, row.name, row.class).to_lowercase();
            words.iter().all(|word| text.contains(word))
        };
        let mut rows: Vec<&ActivityRow> = self.rows.iter().filter(matches).collect();
        rows.sort_by(|a, b| {
            let order = compare(self.order, a, b);
            let order = if self.is_turned { order.reverse() } else { order };
            // Rows that are equal keep their places from look to look.
            order.then_with(|| (a.pid, a.kind, &a.name, &a.class).cmp(&(b.pid, b.kind, &b.name, &b.class)))
        });
        rows
    }

    /// Takes a key.
    pub(super) fn key(&mut self, key: Key) -> Action {
        match key {
            Key::Control('c' | 'd') => return Action::Quit,
            Key::Control('l') => return Action::Draw,
            Key::Control('z') => return Action::Stop,
            _ if self.is_typing => return self.type_key(key),
            Key::Char('q') | Key::Escape => return Action::Quit,
            Key::Char('s') => {
                let at = OrderBy::ALL.iter().position(|order| *order == self.order).unwrap_or(0);
                self.order = OrderBy::ALL[(at + 1) % OrderBy::ALL.len()];
            }
            Key::Char('r') => self.is_turned = !self.is_turned,
            Key::Char('p' | ' ') => self.is_paused = !self.is_paused,
            Key::Char('/') => self.is_typing = true,
            Key::Down | Key::Char('j') => self.scroll(1),
            Key::Up | Key::Char('k') => self.top = self.top.saturating_sub(1),
            Key::PageDown => self.scroll(PAGE),
            Key::PageUp => self.top = self.top.saturating_sub(PAGE),
            Key::Home => self.top = 0,
            Key::End => self.scroll(usize::MAX / 2),
            _ => return Action::Nothing,
        }
        Action::Draw
    }

    fn type_key(&mut self, key: Key) -> Action {
        match key {
            Key::Enter => self.is_typing = false,
            Key::Escape => {
                self.is_typing = false;
                self.filter.clear();
            }
            Key::Backspace => _ = self.filter.pop(),
            Key::Char(c) | Key::Pasted(c) if self.filter.chars().count() < MAX_FILTER => self.filter.push(c),
            _ => return Action::Nothing,
        }
        self.top = 0;
        Action::Draw
    }

    fn scroll(&mut self, rows: usize) {
        self.top = self.top.saturating_add(rows).min(self.shown().len().saturating_sub(1));
    }
}

/// The order of two rows: figures from the largest down, what is not known last; words from A on.
fn compare(by: OrderBy, a: &ActivityRow, b: &ActivityRow) -> Ordering {
    let known = |value: Option<f64>| value.unwrap_or(-1.0);
    let down = |of: fn(&ActivityRow) -> Option<f64>| known(of(b)).total_cmp(&known(of(a)));
    match by {
        OrderBy::Rate => down(|row| row.bytes_per_second),
        OrderBy::PerSecond => down(|row| row.per_second),
        OrderBy::Queue => down(|row| row.queue.or(row.credits_used).or(row.queue_bytes).map(|n| n as f64)),
        OrderBy::Slowest => down(|row| row.p99_ns.map(|n| n as f64)),
        OrderBy::Hits => down(|row| row.hit_ratio),
        OrderBy::Process => (a.pid, &a.program).cmp(&(b.pid, &b.program)),
        OrderBy::Name => (a.kind, &a.name).cmp(&(b.kind, &b.name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> ViewState {
        let row = |pid: u32, name: &str, rate: Option<f64>| ActivityRow {
            pid,
            program: "dpipe sort".into(),
            kind: "pipe",
            name: name.into(),
            bytes_per_second: rate,
            ..ActivityRow::default()
        };
        let mut state = ViewState::new("");
        state.set(vec![row(1, "a", Some(5.0)), row(2, "b", None), row(3, "c", Some(9.0))], Vec::new());
        state
    }

    fn names(state: &ViewState) -> String {
        state.shown().iter().map(|row| row.name.as_str()).collect()
    }

    fn press(state: &mut ViewState, keys: &str) -> Vec<Action> {
        keys.chars().map(|c| state.key(Key::Char(c))).collect()
    }

    #[test]
    fn keys_order_filter_and_pause() {
        let mut state = state();
        assert_eq!(names(&state), "cab");
        press(&mut state, "r");
        assert_eq!(names(&state), "bac");
        press(&mut state, "rsssss");
        assert_eq!((names(&state), state.order), ("abc".to_owned(), OrderBy::Process));
        press(&mut state, "p");
        assert!(state.is_paused());
        // While words are typed, letters are words.
        assert_eq!(press(&mut state, "/q"), [Action::Draw, Action::Draw]);
        assert_eq!(names(&state), "");
        state.key(Key::Backspace);
        press(&mut state, "SORT 2");
        assert_eq!(names(&state), "b");
        state.key(Key::Enter);
        assert_eq!(press(&mut state, "jjx"), [Action::Draw, Action::Draw, Action::Nothing]);
        assert_eq!(state.top, 0);
        assert_eq!(press(&mut state, "q"), [Action::Quit]);
        assert_eq!(state.key(Key::Control('c')), Action::Quit);
    }
}
