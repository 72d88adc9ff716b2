//! The names of the kinds of data.

use std::fmt;
use std::str::FromStr;

use super::{Distribution, LineForm, NumberType, RECORD_LEN, RecordForm};

/// A kind of generated data.
///
/// Kinds are parsed from and printed as the names that the command line uses; `-` and `:` are
/// interchangeable.
///
/// ```
/// use datapipes_data::generate::{Distribution, DataKind, NumberType};
///
/// let kind: DataKind = "u64:zipf".parse()?;
/// assert_eq!(kind, DataKind::Numbers(NumberType::U64, Distribution::Zipf));
/// assert_eq!(kind.to_string(), "u64:zipf");
/// assert!("u65".parse::<DataKind>().is_err_and(|error| error.to_string().contains("u64:zipf")));
/// # Ok::<(), datapipes_data::generate::UnknownKind>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataKind {
    /// Sort-benchmark records: 100 bytes with a key of 10 bytes.
    Records(RecordForm),
    /// Little-endian numbers.
    Numbers(NumberType, Distribution),
    /// Lines of text, each ended by a newline.
    Lines(LineForm),
}

const RECORDS: [(&str, RecordForm); 10] = [
    ("records", RecordForm::Binary),
    ("records-ascii", RecordForm::Ascii),
    ("records-skewed", RecordForm::Skewed),
    ("records-ascii-skewed", RecordForm::AsciiSkewed),
    ("records-duplicates", RecordForm::Duplicates),
    ("records-hot", RecordForm::Hot),
    ("records-sorted", RecordForm::Sorted),
    ("records-reverse", RecordForm::Reverse),
    ("records-nearly-sorted", RecordForm::NearlySorted),
    ("records-equal", RecordForm::AllEqual),
];

const NUMBERS: [(&str, NumberType); 4] =
    [("u32", NumberType::U32), ("u64", NumberType::U64), ("i64", NumberType::I64), ("f64", NumberType::F64)];

const DISTRIBUTIONS: [(&str, Distribution); 8] = [
    ("", Distribution::Uniform),
    (":zipf", Distribution::Zipf),
    (":few", Distribution::FewDistinct),
    (":hot", Distribution::Hot),
    (":sorted", Distribution::Sorted),
    (":reverse", Distribution::Reverse),
    (":nearly-sorted", Distribution::NearlySorted),
    (":equal", Distribution::AllEqual),
];

const LINES: [(&str, LineForm); 13] = [
    ("lines", LineForm::Words),
    ("lines:urls", LineForm::Urls),
    ("lines:numbers", LineForm::Numbers),
    ("lines:fields", LineForm::Fields),
    ("lines:duplicates", LineForm::Duplicates),
    ("lines:hot", LineForm::Hot),
    ("lines:sorted", LineForm::Sorted),
    ("lines:reverse", LineForm::Reverse),
    ("lines:nearly-sorted", LineForm::NearlySorted),
    ("lines:equal", LineForm::AllEqual),
    ("lines:long", LineForm::Long),
    ("lines:nul", LineForm::Nul),
    ("lines:bytes", LineForm::Bytes),
];

impl DataKind {
    /// Returns all kinds, in the order in which help texts list them.
    pub fn all() -> impl Iterator<Item = Self> {
        let records = RECORDS.into_iter().map(|(_, form)| Self::Records(form));
        let numbers = NUMBERS.into_iter().flat_map(|(_, number)| {
            DISTRIBUTIONS.into_iter().map(move |(_, distribution)| Self::Numbers(number, distribution))
        });
        records.chain(numbers).chain(LINES.into_iter().map(|(_, form)| Self::Lines(form)))
    }

    /// Returns the bytes of a record, or `None` if records differ in length.
    pub const fn record_len(self) -> Option<usize> {
        match self {
            Self::Records(_) => Some(RECORD_LEN),
            Self::Numbers(number, _) => Some(number.len_bytes()),
            Self::Lines(LineForm::AllEqual) => Some(super::lines::EQUAL_LEN),
            Self::Lines(_) => None,
        }
    }

    /// Returns the bytes of a record; the mean if records differ in length.
    pub const fn mean_record_len(self) -> usize {
        match self {
            Self::Records(_) => RECORD_LEN,
            Self::Numbers(number, _) => number.len_bytes(),
            Self::Lines(form) => form.mean_len(),
        }
    }
}

fn name_of<T: Copy + PartialEq>(table: &[(&'static str, T)], wanted: T) -> &'static str {
    table.iter().find(|(_, value)| *value == wanted).map_or("?", |(name, _)| name)
}

impl fmt::Display for DataKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Self::Records(form) => name_of(&RECORDS, form).to_owned(),
            Self::Lines(form) => name_of(&LINES, form).to_owned(),
            Self::Numbers(number, distribution) => {
                format!("{}{}", name_of(&NUMBERS, number), name_of(&DISTRIBUTIONS, distribution))
            }
        };
        f.pad(&name)
    }
}

impl FromStr for DataKind {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Self, UnknownKind> {
        let plain = |name: &str| name.to_ascii_lowercase().replace(':', "-");
        let wanted = plain(name);
        Self::all().find(|kind| plain(&kind.to_string()) == wanted).ok_or_else(|| UnknownKind { name: name.to_owned() })
    }
}

/// An unknown name of a kind; the message lists the known names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownKind {
    name: String,
}

impl fmt::Display for UnknownKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown kind of data '{}'; there are: ", self.name)?;
        for (index, kind) in DataKind::all().enumerate() {
            write!(f, "{}{kind}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl std::error::Error for UnknownKind {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_unique_and_parses_back() {
        let names: Vec<String> = DataKind::all().map(|kind| kind.to_string()).collect();
        assert!(names.iter().all(|name| !name.contains('?')));
        for (kind, name) in DataKind::all().zip(&names) {
            assert_eq!(name.parse(), Ok(kind));
            assert_eq!(name.replace('-', ":").to_uppercase().parse(), Ok(kind));
            assert_eq!(names.iter().filter(|other| *other == name).count(), 1);
        }
    }
}
