//! The kinds of data that `gen` writes and `check` knows: those of the testkit, with their orders.

pub(crate) use datapipes_data::generate::DataKind;
use datapipes_data::generate::{NumberType, UnknownKind};
use datapipes_data::validate::DataFormat;

/// The kind of a name.
pub(crate) fn parse(name: &str) -> Result<DataKind, String> {
    name.parse().map_err(|e: UnknownKind| e.to_string())
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
