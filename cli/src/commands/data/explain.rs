//! `dpipe explain`: the way that bytes would take.

mod picture;

use std::collections::BTreeMap;
use std::path::Path;

use datapipes::locator::parent_dir;
use datapipes::{Endpoint, Error, FileAccess, Locator, Machine, Result, Route, Ssd, Uri};

use super::constraints::Demands;
use super::share::TransferShareArgs;
use crate::any_locator::{AnyLocator, Memory, NamedPlace, with_access};
use crate::arguments::ending::Ending;
use crate::arguments::units::parse_size;
use crate::objects;
use crate::outcome::{CommandStatus, print, print_json, shown_path};
use crate::system::side_files::{CommandPlaces, SideFileArgument, SideFiles};
use crate::table::save;

const TYPICAL: u64 = 64 << 20;

const ENDING: Ending = Ending {
    notes: "\
Nothing is moved or created, but for the picture. With --share the group is made, tried on this
thread, and removed. It is an error (2) if no route meets the demands.",
    zero: "a route is shown",
    one: None,
    examples: &[
        "dpipe explain data.bin dram:",
        "dpipe explain dram:1M new.bin --bypass-page-cache",
        "dpipe explain data.bin dram: --size 1G --deny uring-direct --json",
        "dpipe explain data.bin dram: --plot route.svg",
        "dpipe explain dram:1M dram:1M --share share.l3='0=f'  # needs root, and a processor with CAT",
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
    #[command(flatten)]
    share: TransferShareArgs,
    /// Print the route as JSON: source, target, hops (from, to, backend, primitive, why, quality),
    /// rejected, transfer_share (with --share), tried_on (by primitive)
    #[arg(long)]
    json: bool,
    /// Draw the places, the candidates with their costs, and the reasons, as SVG
    #[arg(long, alias = "svg", value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    plot: Option<SideFileArgument>,
}

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    let machine = datapipes::discover();
    let (source, target) = (NamedPlace::parse(&args.source)?, NamedPlace::parse(&args.target)?);
    if matches!(target, NamedPlace::Object(_)) {
        objects::refuse("explain", &[&args.target])?;
    }
    let files = [&source, &target].into_iter().flat_map(|end| end.path().into_iter().chain(end.ticket()));
    let plot = SideFiles::beside(CommandPlaces::of("explain").files(files)).begin("--plot", args.plot.as_ref())?;
    let open_len = args.size.unwrap_or(TYPICAL);
    let source = AnyLocator::source(&machine, &source, Memory { len_bytes: open_len, prefault: false })?;
    let typical = args.size.unwrap_or(source.len()?).max(1);
    let target = stand_in(&machine, &target, typical.min(TYPICAL))?;
    let constraints = args.demands.constraints(typical);
    let route = match args.share.is_asked() {
        // Whether threads get the share is known once one has had it.
        true => args.share.connect(&machine, (&source, &target), &constraints)?.route().clone(),
        false => machine.explain(&source, &target, &constraints)?,
    };
    if let Some(file) = plot {
        save(file, &picture::svg(&route, typical))?;
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
fn stand_in(machine: &Machine, place: &NamedPlace, len: u64) -> Result<Named> {
    let (path, access) = match place {
        NamedPlace::Uri(Uri::Ssd { path, access }) => (path, access),
        NamedPlace::Uri(uri) => {
            let memory = Memory { len_bytes: len, prefault: false };
            return Ok(Named { place: AnyLocator::memory_place(machine, uri, memory)?, name: None });
        }
        // Only its length is asked for.
        other => {
            let memory = Memory { len_bytes: len, prefault: false };
            return Ok(Named { place: AnyLocator::source(machine, other, memory)?, name: None });
        }
    };
    if path.exists() && !path.is_dir() {
        return Ok(Named { place: AnyLocator::Ssd(with_access(Ssd::open_rw(path)?, *access)?), name: None });
    }
    let dir = if path.is_dir() { path.clone() } else { parent_dir(path) };
    Ok(Named { place: AnyLocator::Ssd(nameless(&dir, *access)?), name: Some(format!("ssd:{}", shown_path(path))) })
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
