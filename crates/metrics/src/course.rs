//! Values over time, in bounded memory.

use std::time::Duration;

/// How a column of a [`Course`] is put together when the course becomes too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CourseColumn {
    /// A sum that only grows: the last value of two is kept.
    Sum,
    /// A value of the moment: the larger of two is kept.
    Peak,
}

/// Values of several columns that were read again and again. When it is full, each two rows become
/// one and it is to be read half as often, so that its memory is bounded and it covers all of the
/// time.
///
/// ```
/// use datapipes_metrics::{Course, CourseColumn};
/// use std::time::Duration;
///
/// let mut course = Course::new(vec![CourseColumn::Sum], Duration::from_millis(100));
/// course.push(0.0, &[0.0]);
/// course.push(0.1, &[30.0]);
/// course.push(0.3, &[50.0]);
/// assert_eq!(course.seconds(), [0.0, 0.1, 0.3]);
/// let rates = course.rates(0);
/// assert!((rates[0] - 300.0).abs() < 1e-6 && (rates[1] - 100.0).abs() < 1e-6);
/// ```
#[derive(Clone, Debug)]
pub struct Course {
    columns: Vec<CourseColumn>,
    every: Duration,
    seconds: Vec<f64>,
    rows: Vec<f64>,
}

impl Course {
    /// The most rows that are kept.
    pub const MAX_ROWS: usize = 600;

    /// Makes an empty one that is to be read so often at first.
    pub fn new(columns: Vec<CourseColumn>, every: Duration) -> Course {
        Course { columns, every, seconds: Vec::new(), rows: Vec::new() }
    }

    /// How long to wait before the next row is read.
    pub fn every(&self) -> Duration {
        self.every
    }

    /// Adds a row. A time that is not later than the last one replaces it; missing values are 0.
    pub fn push(&mut self, seconds: f64, values: &[f64]) {
        let wide = self.columns.len();
        if self.seconds.last().is_some_and(|last| seconds <= *last) {
            self.seconds.pop();
            self.rows.truncate(self.seconds.len() * wide);
        }
        if self.seconds.len() >= Course::MAX_ROWS {
            self.halve();
        }
        self.seconds.push(seconds);
        self.rows.extend((0..wide).map(|at| values.get(at).copied().unwrap_or(0.0)));
    }

    /// Adds the row of the end. If it came so soon after the one before that the interval between
    /// them is shorter than half of the others, both become one: a rate over a few milliseconds
    /// says nothing, and would be the highest peak of the picture.
    pub fn push_last(&mut self, seconds: f64, values: &[f64]) {
        let wide = self.columns.len();
        let is_short = match self.seconds[..] {
            [.., _, last] => seconds - last < self.every.as_secs_f64() / 2.0,
            _ => false,
        };
        let mut values = values.to_vec();
        if is_short {
            self.seconds.pop();
            let last = self.rows.split_off(self.seconds.len() * wide);
            let peaks = self.columns.iter().zip(last).enumerate().filter(|(_, (kind, _))| **kind == CourseColumn::Peak);
            peaks.for_each(|(at, (_, last))| values.iter_mut().skip(at).take(1).for_each(|v| *v = v.max(last)));
        }
        self.push(seconds, &values);
    }

    /// Puts each two rows together. The first row stays as it is: it is where everything begins.
    fn halve(&mut self) {
        let wide = self.columns.len();
        let mut kept = 1;
        for at in (1..self.seconds.len()).step_by(2) {
            let last = (at + 1).min(self.seconds.len() - 1);
            self.seconds[kept] = self.seconds[last];
            for (column, kind) in self.columns.iter().enumerate() {
                let (one, other) = (self.rows[at * wide + column], self.rows[last * wide + column]);
                self.rows[kept * wide + column] = match kind {
                    CourseColumn::Sum => other,
                    CourseColumn::Peak => one.max(other),
                };
            }
            kept += 1;
        }
        self.seconds.truncate(kept);
        self.rows.truncate(kept * wide);
        self.every = self.every.saturating_mul(2);
    }

    /// When the rows were read.
    pub fn seconds(&self) -> &[f64] {
        &self.seconds
    }

    /// The values of a column, one for each row; none where there is no such column.
    pub fn values(&self, column: usize) -> Vec<f64> {
        let wide = self.columns.len();
        if column >= wide {
            return Vec::new();
        }
        (0..self.seconds.len()).map(|row| self.rows[row * wide + column]).collect()
    }

    /// What a column grew by in a second, from each row to the next. A sum that became smaller
    /// grew by 0.
    pub fn rates(&self, column: usize) -> Vec<f64> {
        let values = self.values(column);
        let spans = self.seconds.windows(2).map(|pair| pair[1] - pair[0]);
        values.windows(2).zip(spans).map(|(pair, span)| ((pair[1] - pair[0]) / span).max(0.0)).collect()
    }

    /// The larger value of each row and the one before it.
    pub fn peaks(&self, column: usize) -> Vec<f64> {
        self.values(column).windows(2).map(|pair| pair[0].max(pair[1])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_course_keeps_its_sums_and_its_peaks_in_bounded_memory() {
        let mut course = Course::new(vec![CourseColumn::Sum, CourseColumn::Peak], Duration::from_millis(10));
        // As a thread reads it: when it is time to.
        let (mut now, mut peaked) = (0.0, false);
        while now < 1000.0 {
            let peak = now > 543.0 && !std::mem::replace(&mut peaked, now > 543.0);
            course.push(now, &[now * 100.0, if peak { 7.0 } else { 1.0 }]);
            now += course.every().as_secs_f64();
        }
        assert!((Course::MAX_ROWS / 2..=Course::MAX_ROWS).contains(&course.seconds().len()));
        assert_eq!(course.every(), Duration::from_millis(10 * 256));
        assert_eq!((course.seconds()[0], course.values(0)[0]), (0.0, 0.0));
        assert!(course.seconds().is_sorted() && course.seconds().windows(2).all(|pair| pair[0] < pair[1]));
        // The rate is 100 a second everywhere, however coarse the rows became.
        assert!(course.rates(0).iter().all(|rate| (rate - 100.0).abs() < 1e-6));
        assert_eq!(course.peaks(1).into_iter().fold(0.0, f64::max), 7.0);
        assert_eq!(course.values(1).iter().filter(|v| **v == 7.0).count(), 1);
    }

    #[test]
    fn a_short_interval_at_the_end_is_joined_to_the_one_before() {
        let mut course = Course::new(vec![CourseColumn::Sum, CourseColumn::Peak], Duration::from_millis(50));
        for (at, sum, peak) in [(0.0, 0.0, 1.0), (0.05, 10.0, 1.0), (0.1, 20.0, 9.0)] {
            course.push(at, &[sum, peak]);
        }
        // 6 more in 2 ms would be 3,000 a second.
        let mut ended = course.clone();
        ended.push_last(0.102, &[26.0, 2.0]);
        assert_eq!((ended.seconds(), ended.values(0)), (&[0.0, 0.05, 0.102][..], vec![0.0, 10.0, 26.0]));
        assert_eq!(ended.peaks(1), [1.0, 9.0]);
        assert!(ended.rates(0).iter().all(|rate| *rate < 310.0), "{:?}", ended.rates(0));
        // One that is long enough stays, and so does the only one.
        course.push_last(0.13, &[26.0, 2.0]);
        assert_eq!(course.seconds(), [0.0, 0.05, 0.1, 0.13]);
        let mut short = Course::new(vec![CourseColumn::Sum], Duration::from_millis(50));
        short.push(0.0, &[0.0]);
        short.push_last(0.001, &[5.0]);
        assert_eq!((short.seconds(), short.values(0)), (&[0.0, 0.001][..], vec![0.0, 5.0]));
    }

    #[test]
    fn a_row_of_the_same_time_replaces_the_last_one() {
        let mut course = Course::new(vec![CourseColumn::Sum], Duration::from_millis(10));
        for (at, value) in [(0.0, 1.0), (0.5, 2.0), (0.5, 3.0), (0.4, 4.0)] {
            course.push(at, &[value]);
        }
        assert_eq!((course.seconds(), course.values(0)), (&[0.0, 0.4][..], vec![1.0, 4.0]));
        course.push(1.0, &[]);
        assert_eq!((course.rates(0).last(), course.values(9)), (Some(&0.0), vec![]));
    }
}
