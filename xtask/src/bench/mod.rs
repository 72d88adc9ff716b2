//! `cargo xtask bench`: definitions, and how their measurements are taken and recorded.
//!
//! Each definition is one file here. It describes its contestants; `turns` measures them side by side, `verify`
//! looks at what they wrote, `record` and `report` keep it.

mod checkpoint;
mod context;
mod copy_file;
mod copy_memory;
mod fabric;
mod fine;
mod fine_limit;
mod fine_readers;
mod fio;
mod flavors;
mod floor;
mod log;
mod machine;
mod measure;
mod options;
mod page_cache;
mod peers;
mod qos;
mod record;
mod report;
mod rows;
mod sort_fits;
mod sort_job;
mod sort_lines;
mod sort_records;
mod sort_u64;
mod turns;
mod verify;

use crate::TaskResult;
use context::Context;
use options::Options;
use record::Record;

struct Definition {
    name: &'static str,
    about: &'static str,
    run: fn(&Context) -> TaskResult<Record>,
}

const DEFINITIONS: [Definition; 12] = [
    Definition { name: "sort-records", about: sort_records::ABOUT, run: sort_records::run },
    Definition { name: "sort-lines", about: sort_lines::ABOUT, run: sort_lines::run },
    Definition { name: "sort-u64", about: sort_u64::ABOUT, run: sort_u64::run },
    Definition { name: "sort-fits", about: sort_fits::ABOUT, run: sort_fits::run },
    Definition { name: "copy-file", about: copy_file::ABOUT, run: copy_file::run },
    Definition { name: "copy-memory", about: copy_memory::ABOUT, run: copy_memory::run },
    Definition { name: "log", about: log::ABOUT, run: log::run },
    Definition { name: "checkpoint", about: checkpoint::ABOUT, run: checkpoint::run },
    Definition { name: "flavors", about: flavors::ABOUT, run: flavors::run },
    Definition { name: "fine", about: fine::ABOUT, run: fine::run },
    Definition { name: "fabric", about: fabric::ABOUT, run: fabric::run },
    Definition { name: "qos", about: qos::ABOUT, run: qos::run },
];

pub(crate) fn run(args: &[String]) -> TaskResult<()> {
    if args.iter().any(|a| a == "--help" || a == "-h") {
        print!("{}", options::HELP);
        for definition in &DEFINITIONS {
            println!("  {:<14}{}", definition.name, definition.about);
        }
        return Ok(());
    }
    let options = Options::parse(args)?;
    let unknown = options.names.iter().find(|name| DEFINITIONS.iter().all(|d| d.name != **name));
    if let Some(name) = unknown {
        return Err(format!("no benchmark `{name}`; `bench --help` lists them").into());
    }
    let context = Context::new(options)?;
    let mut troubles = Vec::new();
    for definition in &DEFINITIONS {
        if !context.options.names.is_empty() && !context.options.names.iter().any(|n| n == definition.name) {
            continue;
        }
        println!("==> {}: {}", definition.name, definition.about);
        match (definition.run)(&context) {
            Ok(mut record) => {
                record.benchmark = definition.name.to_string();
                record.about = definition.about.to_string();
                troubles.extend(record.troubles().into_iter().map(|t| format!("{}: {t}", definition.name)));
                let path = report::write(&context, &record)?;
                println!("\n{}", report::markdown_summary(&record));
                println!("written: {} and .md", path.display());
            }
            Err(why) => troubles.push(format!("{}: {why}", definition.name)),
        }
    }
    if troubles.is_empty() { Ok(()) } else { Err(troubles.join("\n       ").into()) }
}
