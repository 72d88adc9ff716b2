//! `cargo xtask bench`: definitions, and how their measurements are taken and recorded.
//!
//! Each definition is one file below `definitions`. It describes its contestants; `turns` measures
//! them side by side, `verify` looks at what they wrote, `record` and `report` keep it.

mod contestants;
mod context;
mod definitions;
mod measuring;
mod options;
mod records;

use crate::TaskResult;
use context::Context;
use options::Options;
use records::record::Record;

struct Definition {
    name: &'static str,
    about: &'static str,
    run: fn(&Context) -> TaskResult<Record>,
}

const DEFINITIONS: [Definition; 15] = [
    Definition { name: "sort-records", about: definitions::sort::records::ABOUT, run: definitions::sort::records::run },
    Definition { name: "sort-lines", about: definitions::sort::lines::ABOUT, run: definitions::sort::lines::run },
    Definition { name: "sort-u64", about: definitions::sort::u64::ABOUT, run: definitions::sort::u64::run },
    Definition { name: "sort-fits", about: definitions::sort::fits::ABOUT, run: definitions::sort::fits::run },
    Definition {
        name: "sort-sizes",
        about: definitions::sort::curves::SIZES_ABOUT,
        run: definitions::sort::curves::sizes,
    },
    Definition {
        name: "sort-memories",
        about: definitions::sort::curves::MEMORIES_ABOUT,
        run: definitions::sort::curves::memories,
    },
    Definition {
        name: "sort-slow-disk",
        about: definitions::sort::slow_disk::ABOUT,
        run: definitions::sort::slow_disk::run,
    },
    Definition { name: "copy-file", about: definitions::copy::file::ABOUT, run: definitions::copy::file::run },
    Definition { name: "copy-memory", about: definitions::copy::memory::ABOUT, run: definitions::copy::memory::run },
    Definition { name: "log", about: definitions::durable::log::ABOUT, run: definitions::durable::log::run },
    Definition {
        name: "checkpoint",
        about: definitions::durable::checkpoint::ABOUT,
        run: definitions::durable::checkpoint::run,
    },
    Definition {
        name: "flavors",
        about: definitions::runtime::flavors::ABOUT,
        run: definitions::runtime::flavors::run,
    },
    Definition { name: "fine", about: definitions::fine::ABOUT, run: definitions::fine::run },
    Definition { name: "fabric", about: definitions::fabric::ABOUT, run: definitions::fabric::run },
    Definition { name: "qos", about: definitions::runtime::qos::ABOUT, run: definitions::runtime::qos::run },
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
    let objections = match options.small {
        true => Vec::new(),
        false => measuring::conditions::check(options.runs, options.anyway)?,
    };
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
                record.objections.clone_from(&objections);
                troubles.extend(record.troubles().into_iter().map(|t| format!("{}: {t}", definition.name)));
                let path = records::report::write(&context, &record)?;
                println!("\n{}", records::report::markdown_summary(&record));
                println!("written: {} and .md", path.display());
            }
            Err(why) => troubles.push(format!("{}: {why}", definition.name)),
        }
    }
    if troubles.is_empty() { Ok(()) } else { Err(troubles.join("\n       ").into()) }
}

#[cfg(test)]
mod tests {
    use super::DEFINITIONS;

    #[test]
    fn the_benchmarks_page_has_a_row_for_each_definition() {
        let page = std::fs::read_to_string(crate::steps::root().join("benchmarks/README.md")).unwrap();
        let rows: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
        for definition in &DEFINITIONS {
            assert!(rows.contains(&definition.name), "benchmarks/README.md says nothing of {}", definition.name);
        }
    }
}
