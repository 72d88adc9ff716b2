//! The kinds of data that `gen` writes and `check` knows: those of the testkit, with their orders.

use clap::builder::{PossibleValuesParser, TypedValueParser};
pub(crate) use datapipes_data::generate::DataKind;
use datapipes_data::generate::NumberType;
use datapipes_data::validate::DataFormat;

/// Returns the parser of a kind's name. Shells complete the names.
pub(crate) fn parser() -> impl TypedValueParser<Value = DataKind> {
    PossibleValuesParser::new(DataKind::all().map(|kind| kind.to_string())).try_map(|name| name.parse::<DataKind>())
}

/// Returns the format by which `check` checks a kind. For lines it is the plain order of bytes.
pub(crate) fn format(kind: DataKind) -> DataFormat {
    match kind {
        DataKind::Records(_) => DataFormat::benchmark_records(),
        DataKind::Numbers(NumberType::U32, _) => DataFormat::u32(),
        DataKind::Numbers(NumberType::U64, _) => DataFormat::u64(),
        DataKind::Numbers(NumberType::I64, _) => DataFormat::i64(),
        DataKind::Numbers(NumberType::F64, _) => DataFormat::f64(),
        DataKind::Lines(_) => DataFormat::lines(),
    }
}

/// The kinds, for `--help`.
pub(crate) fn help() -> String {
    const WIDTH: usize = 100;
    let mut text = String::from(
        "Kinds:\n  records...   sort-benchmark records of 100 bytes with a 10-byte key, as gensort writes them; -ascii: \
         its -a form\n  u32... f64...  little-endian numbers\n  lines...     text lines\nAll of them:",
    );
    let mut width = WIDTH;
    for kind in DataKind::all() {
        let name = kind.to_string();
        if width + name.len() + 1 > WIDTH {
            text += "\n ";
            width = 1;
        }
        width += name.len() + 1;
        text += &format!(" {name}");
    }
    text
}
