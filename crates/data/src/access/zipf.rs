//! Zipf's law, sampled in constant time and memory.

use super::Random;

/// Ranks `0..count`, where rank r has a probability proportional to `(r + 1)^-exponent`.
///
/// It uses rejection-inversion (Hörmann and Derflinger, *Rejection-inversion to generate variates
/// from monotone discrete distributions*, ACM TOMACS 6(3), 1996): the area under `x^-exponent` is
/// inverted in closed form, and about one draw in a hundred is rejected. There is no table: 33
/// million ranks cost as much as ten. Exponent 0 is uniform, 1 is allowed.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    count: f64,
    exponent: f64,
    /// The area up to 1.5, less the first rank, and the area up to `count + 0.5`.
    area: (f64, f64),
    /// Closer to a rank than this, nothing is rejected.
    sure: f64,
}

impl Zipf {
    /// Makes a distribution over this many ranks (at least one). A negative exponent is taken as 0.
    pub fn new(count: u64, exponent: f64) -> Zipf {
        let exponent = exponent.max(0.0);
        let mut zipf = Zipf { count: count.max(1) as f64, exponent, area: (0.0, 0.0), sure: 0.0 };
        zipf.area = (zipf.area_to(1.5) - 1.0, zipf.area_to(zipf.count + 0.5));
        zipf.sure = 2.0 - zipf.inverse(zipf.area_to(2.5) - zipf.density(2.0));
        zipf
    }

    /// Draws the next rank.
    #[inline]
    pub(super) fn draw(&self, random: &mut Random) -> u64 {
        loop {
            let area = self.area.1 + random.unit() * (self.area.0 - self.area.1);
            let x = self.inverse(area);
            let rank = (x + 0.5).floor().clamp(1.0, self.count);
            if rank - x <= self.sure || area >= self.area_to(rank + 0.5) - self.density(rank) {
                return rank as u64 - 1;
            }
        }
    }

    fn density(&self, x: f64) -> f64 {
        libm::exp(-self.exponent * libm::log(x))
    }

    /// The integral of the density from 1 to `x`.
    fn area_to(&self, x: f64) -> f64 {
        let log = libm::log(x);
        expm1_over((1.0 - self.exponent) * log) * log
    }

    fn inverse(&self, area: f64) -> f64 {
        // Rounding may give a value slightly below -1, where there is no logarithm.
        let t = (area * (1.0 - self.exponent)).max(-1.0);
        libm::exp(log1p_over(t) * area)
    }
}

/// `(e^x - 1) / x`, accurate near 0 too.
fn expm1_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { libm::expm1(x) / x } else { 1.0 + x / 2.0 * (1.0 + x / 3.0) }
}

/// `ln(1 + x) / x`, accurate near 0 too.
fn log1p_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { libm::log1p(x) / x } else { 1.0 - x * (0.5 - x / 3.0) }
}
