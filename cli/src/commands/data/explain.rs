//! `dpipe explain`: the way that bytes would take.

mod picture;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use datapipes::locator::parent_dir;
use datapipes::{Endpoint, Error, FileAccess, Locator, Machine, Result, Route, Ssd, Uri};

use super::constraints::Demands;
use crate::any_locator::{AnyLocator, Memory, with_access};
use crate::arguments::ending::Ending;
use crate::arguments::units::parse_size;
use crate::outcome::{CommandStatus, print, print_json};
use crate::table::save;

const TYPICAL: u64 = 64 << 20;

const ENDING: Ending = Ending {
    notes: "\
Nothing is moved or created, but for the picture. It is an error (2) if no route meets the demands.",
    zero: "a route is shown",
    one: None,
    examples: &[
        "dpipe explain data.bin dram:",
        "dpipe explain dram:1M new.bin --bypass-page-cache",
        "dpipe explain data.bin dram: --size 1G --deny uring-direct --json",
        "dpipe explain data.bin dram: --plot route.svg",
    ],
};

/// Shows which way bytes would take from one place to another, and why not another.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.text())]
pub(crate) struct Args {
    /// Place that the bytes would come from
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    source: String,
    /// Place that they would go to; for a file that does not exist its folder counts
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    target: String,
    /// Bytes of a typical transfer [default: all of the source, or 64M]
    #[arg(long, alias = "len", value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    #[command(flatten)]
    demands: Demands,
    /// Print the route as JSON: source, target, hops (from, to, backend, primitive, why, quality),
    /// rejected, tried_on (by primitive)
    #[arg(long)]
    json: bool,
    /// Draw the places, the candidates with their costs, and the reasons, as SVG
    #[arg(long, alias = "svg", value_name = "FILE")]
    plot: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    let machine = datapipes::discover();
    let source = args.source.parse::<Uri>()?;
    let target = args.target.parse::<Uri>()?;
    let open_len = args.size.unwrap_or(TYPICAL);
    let source = AnyLocator::source(&machine, &source, Memory { len_bytes: open_len, prefault: false })?;
    let typical = args.size.unwrap_or(source.len()?).max(1);
    let target = stand_in(&machine, &target, typical.min(TYPICAL))?;
    let route = machine.explain(&source, &target, &args.demands.constraints(typical))?;
    if let Some(path) = &args.plot {
        save(path, &picture::svg(&route, typical))?;
    }
    if args.json {
        print_json(&Explained { route: &route, tried_on: tried_on(&route) })?
    } else {
        let tried: String = tried_on(&route).iter().map(|(name, on)| format!("  {name} was tried on {on}\n")).collect();
        print(&format!("{route}{tried}"))?
    }
    Ok(CommandStatus::Good)
}

#[derive(serde::Serialize)]
struct Explained<'a> {
    #[serde(flatten)]
    route: &'a Route,
    tried_on: BTreeMap<&'static str, &'static str>,
}

/// What the primitives of a route were tried on.
fn tried_on(route: &Route) -> BTreeMap<&'static str, &'static str> {
    route.primitives().into_iter().map(|name| (name, datapipes::tried_on(name).words())).collect()
}

/// A place that has the target's properties, and leaves the target alone.
fn stand_in(machine: &Machine, uri: &Uri, len: u64) -> Result<Named> {
    let Uri::Ssd { path, access } = uri else {
        return Ok(Named {
            place: AnyLocator::memory_place(machine, uri, Memory { len_bytes: len, prefault: false })?,
            name: None,
        });
    };
    if path.exists() && !path.is_dir() {
        return Ok(Named { place: AnyLocator::Ssd(with_access(Ssd::open_rw(path)?, *access)?), name: None });
    }
    let dir = if path.is_dir() { path.clone() } else { parent_dir(path) };
    Ok(Named { place: AnyLocator::Ssd(nameless(&dir, *access)?), name: Some(format!("ssd:{}", path.display())) })
}

/// A file without a name in a directory.
fn nameless(dir: &Path, access: FileAccess) -> Result<Ssd> {
    with_access(Ssd::unlinked_in(dir).map_err(|e| explain_absence(e, dir))?, access)
}

fn explain_absence(error: Error, dir: &Path) -> Error {
    match error.errno() {
        Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL) => Error::new(
            error.kind(),
            "explain",
            format!(
                "{}: its file system has no nameless files, so there is nothing to try the route on",
                dir.display()
            ),
        )
        .with_advice("name a file that exists"),
        _ => error,
    }
}

/// A place under the name that the user knows.
struct Named {
    place: AnyLocator,
    name: Option<String>,
}

impl Locator for Named {
    fn endpoint(&self) -> Endpoint {
        let mut endpoint = self.place.endpoint();
        if let Some(name) = &self.name {
            let mut facts = (*endpoint.facts).clone();
            facts.name.clone_from(name);
            endpoint.facts = std::sync::Arc::new(facts);
        }
        endpoint
    }
}
