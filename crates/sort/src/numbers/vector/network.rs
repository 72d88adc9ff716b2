//! Small inputs: a sorting network over rows of registers, without branches or memory accesses
//! between load and store.
//!
//! ```text
//! load     row r = lanes 0..L of the input from r*L on, MAX behind its end
//! columns  each lane's R elements sorted down the rows: registers against registers, no shuffles
//! lanes    columns merged in pairs, fours, .. (bitonic): lane c holds elements c*R .. c*R+R
//! zip      columns become rows, in memory order; store
//! ```
//! Because columns are sorted first, only a few stages need the costly exchanges within a register.
#![allow(unsafe_code)]

use super::instructions::{Instructions, Work};
use super::lanes::Lanes;

/// The most rows of any network. Smaller networks leave the rest unused, and the compiler drops it.
const MAX_ROWS: usize = 16;

type Rows<L> = [<L as Lanes>::Vector; MAX_ROWS];

/// Compares and exchanges the named pairs of rows.
macro_rules! exchange {
    ($lanes:ident, $rows:ident: $($low:literal $high:literal),* $(,)?) => {{
        $(($rows[$low], $rows[$high]) = $lanes.exchange($rows[$low], $rows[$high]);)*
    }};
}

/// Sorts at most `ROWS * LANES` elements.
#[inline(always)]
pub(super) fn sort_small<L: Lanes>(lanes: L, values: &mut [L::Element]) {
    lanes.instructions().run(SortSmall { lanes, values });
}

struct SortSmall<'a, L: Lanes> {
    lanes: L,
    values: &'a mut [L::Element],
}

impl<L: Lanes> Work for SortSmall<'_, L> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        sort_small_inline(self.lanes, self.values);
    }
}

#[inline(always)]
fn sort_small_inline<L: Lanes>(lanes: L, values: &mut [L::Element]) {
    let len = values.len();
    if len <= 1 {
    } else if len <= L::LANES {
        sort_rows::<L, 1>(lanes, values);
    } else if len <= 2 * L::LANES {
        sort_rows::<L, 2>(lanes, values);
    } else if len <= 4 * L::LANES {
        sort_rows::<L, 4>(lanes, values);
    } else if len <= 8 * L::LANES {
        sort_rows::<L, 8>(lanes, values);
    } else if L::ROWS == 16 {
        assert!(len <= L::ROWS * L::LANES, "the network has as many places as the input");
        sort_rows::<L, 16>(lanes, values);
    } else {
        unreachable!("the network has as many places as the input");
    }
}

/// Sorts at most `R * LANES` elements.
#[inline(always)]
fn sort_rows<L: Lanes, const R: usize>(lanes: L, values: &mut [L::Element]) {
    let fill = lanes.splat(L::MAX);
    let mut rows = [fill; MAX_ROWS];
    for (r, row) in rows.iter_mut().enumerate().take(R) {
        let start = (r * L::LANES).min(values.len());
        let count = (values.len() - start).min(L::LANES);
        // SAFETY: `start + count` is at most the length, by the two minima above.
        *row = unsafe { lanes.load_first(values.as_ptr().add(start), count, fill) };
    }
    network::<L, R>(lanes, &mut rows);
    columns_to_rows::<L, R>(lanes, &mut rows);
    for (r, row) in rows.iter().enumerate().take(R) {
        let start = (r * L::LANES).min(values.len());
        let count = (values.len() - start).min(L::LANES);
        // SAFETY: `start + count` is at most the length, by the two minima above.
        unsafe { lanes.store_first(values.as_mut_ptr().add(start), count, *row) };
    }
}

/// Returns the median of `R` vectors spread over `values`, which holds at least `R * LANES`
/// elements.
#[inline(always)]
pub(super) fn sample<L: Lanes, const R: usize>(lanes: L, values: &[L::Element]) -> L::Element {
    assert!(R <= MAX_ROWS && R > 1 && values.len() >= R * L::LANES, "a vector for each row");
    let step = (values.len() - L::LANES) / (R - 1);
    let mut rows = [lanes.splat(L::MAX); MAX_ROWS];
    for (r, row) in rows.iter_mut().enumerate().take(R) {
        // SAFETY: `r` is below `R`, so a vector at `r * step` ends within the length (asserted
        // above).
        *row = unsafe { lanes.load(values.as_ptr().add(r * step)) };
    }
    network::<L, R>(lanes, &mut rows);
    lanes.lane(rows[0], L::LANES / 2)
}

/// Sorts the rows such that lane `c` holds the sorted elements from `c * R` on, down its `R` rows.
#[inline(always)]
fn network<L: Lanes, const R: usize>(lanes: L, rows: &mut Rows<L>) {
    sort_columns::<L, R>(lanes, rows);
    merge_lanes::<L, R, 2>(lanes, rows);
    merge_lanes::<L, R, 4>(lanes, rows);
    if L::LANES >= 8 {
        merge_lanes::<L, R, 8>(lanes, rows);
    }
    if L::LANES >= 16 {
        merge_lanes::<L, R, 16>(lanes, rows);
    }
}

/// Sorts each column with the known network of fewest exchanges (Knuth, TAOCP 3, 5.3.4; for 16
/// rows: Green, 60 exchanges).
#[inline(always)]
fn sort_columns<L: Lanes, const R: usize>(lanes: L, rows: &mut Rows<L>) {
    match R {
        1 => {}
        2 => exchange!(lanes, rows: 0 1),
        4 => exchange!(lanes, rows: 0 2, 1 3, 0 1, 2 3, 1 2),
        8 => exchange!(lanes, rows:
            0 2, 1 3, 4 6, 5 7,
            0 4, 1 5, 2 6, 3 7,
            0 1, 2 3, 4 5, 6 7,
            2 4, 3 5,
            1 4, 3 6,
            1 2, 3 4, 5 6),
        16 => exchange!(lanes, rows:
            0 1, 2 3, 4 5, 6 7, 8 9, 10 11, 12 13, 14 15,
            0 2, 4 6, 8 10, 12 14, 1 3, 5 7, 9 11, 13 15,
            0 4, 8 12, 1 5, 9 13, 2 6, 10 14, 3 7, 11 15,
            0 8, 1 9, 2 10, 3 11, 4 12, 5 13, 6 14, 7 15,
            5 10, 6 9, 3 12, 13 14, 4 8, 7 11, 1 2,
            1 4, 7 13, 2 8, 11 14,
            2 4, 5 6, 9 10, 11 13, 3 8, 7 12,
            6 8, 10 12, 3 5, 7 9,
            3 4, 5 6, 7 8, 9 10, 11 12,
            6 7, 8 9),
        _ => unreachable!("rows are a power of two up to 16"),
    }
}

/// Merges groups of `WIDTH / 2` sorted columns into groups of `WIDTH`.
#[inline(always)]
fn merge_lanes<L: Lanes, const R: usize, const WIDTH: usize>(lanes: L, rows: &mut Rows<L>) {
    mirror_lanes::<L, R, WIDTH>(lanes, rows);
    if WIDTH >= 16 {
        swap_lanes::<L, R, 4>(lanes, rows);
    }
    if WIDTH >= 8 {
        swap_lanes::<L, R, 2>(lanes, rows);
    }
    if WIDTH >= 4 {
        swap_lanes::<L, R, 1>(lanes, rows);
    }
    if R >= 16 {
        exchange!(lanes, rows: 0 8, 1 9, 2 10, 3 11, 4 12, 5 13, 6 14, 7 15);
    }
    if R >= 8 {
        exchange!(lanes, rows: 0 4, 1 5, 2 6, 3 7);
    }
    if R >= 16 {
        exchange!(lanes, rows: 8 12, 9 13, 10 14, 11 15);
    }
    if R >= 4 {
        exchange!(lanes, rows: 0 2, 1 3);
    }
    if R >= 8 {
        exchange!(lanes, rows: 4 6, 5 7);
    }
    if R >= 16 {
        exchange!(lanes, rows: 8 10, 9 11, 12 14, 13 15);
    }
    if R >= 2 {
        exchange!(lanes, rows: 0 1);
    }
    if R >= 4 {
        exchange!(lanes, rows: 2 3);
    }
    if R >= 8 {
        exchange!(lanes, rows: 4 5, 6 7);
    }
    if R >= 16 {
        exchange!(lanes, rows: 8 9, 10 11, 12 13, 14 15);
    }
}

/// Exchanges each element with its mirror image in its group; both halves become bitonic.
#[inline(always)]
fn mirror_lanes<L: Lanes, const R: usize, const WIDTH: usize>(lanes: L, rows: &mut Rows<L>) {
    for r in 0..R.div_ceil(2) {
        let (top, bottom) = (rows[r], rows[R - 1 - r]);
        rows[r] = pick_half::<L, WIDTH>(lanes, top, lanes.mirror::<WIDTH>(bottom));
        if R > 1 {
            rows[R - 1 - r] = pick_half::<L, WIDTH>(lanes, bottom, lanes.mirror::<WIDTH>(top));
        }
    }
}

/// Returns the smaller elements in the lower half of each group, the larger ones in the upper half.
/// (`WIDTH / 2` cannot be a const argument yet.)
#[inline(always)]
fn pick_half<L: Lanes, const WIDTH: usize>(lanes: L, a: L::Vector, b: L::Vector) -> L::Vector {
    match WIDTH {
        2 => lanes.pick::<1>(a, b),
        4 => lanes.pick::<2>(a, b),
        8 => lanes.pick::<4>(a, b),
        _ => lanes.pick::<8>(a, b),
    }
}

/// Exchanges each element with the one `DISTANCE` columns away.
#[inline(always)]
fn swap_lanes<L: Lanes, const R: usize, const DISTANCE: usize>(lanes: L, rows: &mut Rows<L>) {
    for row in rows.iter_mut().take(R) {
        *row = lanes.pick::<DISTANCE>(*row, lanes.swap::<DISTANCE>(*row));
    }
}

/// Turns columns into rows: `log2(R)` times, the halves of the rows are zipped. If a vector is
/// shorter than a column, blocks of four rows are zipped twice instead.
#[inline(always)]
fn columns_to_rows<L: Lanes, const R: usize>(lanes: L, rows: &mut Rows<L>) {
    if L::LANES == 4 && R > 4 {
        let before = *rows;
        for block in 0..R / 4 {
            let mut four = before;
            for r in 0..4 {
                four[r] = before[4 * block + r];
            }
            zip_halves::<L, 4>(lanes, &mut four);
            zip_halves::<L, 4>(lanes, &mut four);
            for (column, row) in four.iter().enumerate().take(4) {
                rows[column * (R / 4) + block] = *row;
            }
        }
        return;
    }
    if R >= 2 {
        zip_halves::<L, R>(lanes, rows);
    }
    if R >= 4 {
        zip_halves::<L, R>(lanes, rows);
    }
    if R >= 8 {
        zip_halves::<L, R>(lanes, rows);
    }
    if R >= 16 {
        zip_halves::<L, R>(lanes, rows);
    }
}

#[inline(always)]
fn zip_halves<L: Lanes, const R: usize>(lanes: L, rows: &mut Rows<L>) {
    let before = *rows;
    for r in 0..R / 2 {
        (rows[2 * r], rows[2 * r + 1]) = lanes.zip(before[r], before[r + R / 2]);
    }
}
