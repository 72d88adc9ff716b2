//! Tables 2 to 4 and figures 6 to 9: our figures beside the paper's.

use datapipes_core::{Error, ErrorKind, Result, threads};
use datapipes_data::access::{Popularity, Workload};

use super::experiment::{
    ApplicationRun, FittedParameters, MemoryBudget, SIZES, Scale, ZIPF, application, latencies, recommender,
    recommender_by_table, social_graph, synthetic,
};
use super::library::budget_for;
use super::published::{Application, RECOMMENDER, SOCIAL_GRAPH, TABLE_2, TABLE_3, Traffic};
use super::report::{Agreement, Cell, Grid, ModelReport, Relation, ReportRow};
use super::system::{SystemCounters, SystemKind};

/// The name of the library's row.
const LIBRARY: &str = "Our library";

/// The results of one workload: the five systems of the paper, and the library.
pub type Column = [SystemCounters; 6];

/// Runs everything and compares it with the paper. It takes seconds with the paper's 2.5 million
/// reads.
///
/// # Errors
/// Errors of the library on the modelled device; `Corrupt` if it returns wrong bytes.
pub fn report(fit: &FittedParameters, scale: &Scale) -> Result<ModelReport> {
    let budget = budget_for(fit.fine_items, fit.small_bytes, fit.policy)?;
    let columns = |popularity: Popularity| {
        let fit = fit.for_reads(popularity);
        let column = |workload| synthetic(&fit, workload, popularity, scale, budget);
        Workload::ALL.into_iter().map(column).collect::<Result<Vec<Column>>>()
    };
    let run = |published: &'static Application, nth: usize| {
        let memory = MemoryBudget { page_mib: published.block.1, fine_mib: published.pipette.1 };
        match nth {
            0 => application(recommender(scale), memory, fit, scale),
            1 => application(social_graph(scale), memory, fit, scale),
            _ => application(recommender_by_table(scale), memory, fit, scale),
        }
    };
    // Each part has its own seed and its own devices, so running them in parallel changes no
    // figure.
    let uniform = || columns(Popularity::Uniform);
    let zipf = || columns(ZIPF);
    let applications = [0, 1, 2].map(|nth| move || run([&RECOMMENDER, &SOCIAL_GRAPH, &RECOMMENDER][nth], nth));
    let (uniform, zipf, by_size, runs) = std::thread::scope(|scope| {
        let (uniform, zipf) = (Part::start(scope, &uniform), Part::start(scope, &zipf));
        let applications = applications.each_ref().map(|run| Part::start(scope, run));
        let by_size: Vec<_> = SIZES.iter().map(|&size| latencies(fit, size, scale)).collect();
        (uniform.end(), zipf.end(), by_size, applications.map(Part::end))
    });
    let (uniform, zipf) = (uniform??, zipf??);
    let [recommender, social, by_table] = runs;
    let runs = [recommender??, social??, by_table??];
    let grids = vec![
        traffic(&TABLE_2, &uniform, false),
        traffic(&TABLE_3, &zipf, true),
        throughput(&uniform, false),
        throughput(&zipf, true),
        figure_8(&by_size),
        table_4(&runs),
        figure_9a(&runs),
        figure_9b(&runs),
    ];
    Ok(ModelReport { grids, relations: relations(&by_size) })
}

/// A part of the work. It runs on a thread of its own or, if the system gives none, on the thread
/// that wants the result.
enum Part<'scope, 'work, T> {
    Begun(std::thread::ScopedJoinHandle<'scope, T>),
    Left(&'work (dyn Fn() -> T + Sync)),
}

impl<'scope, 'work: 'scope, T: Send + 'scope> Part<'scope, 'work, T> {
    fn start(scope: &'scope std::thread::Scope<'scope, '_>, work: &'work (dyn Fn() -> T + Sync)) -> Self {
        threads::spawn_scoped(scope, "model", work).map_or(Part::Left(work), Part::Begun)
    }

    /// Returns the result. If the part panicked, which is a bug of ours, it returns an error
    /// instead of panicking too.
    fn end(self) -> Result<T> {
        match self {
            Part::Left(work) => Ok(work()),
            Part::Begun(thread) => {
                thread.join().map_err(|_| Error::new(ErrorKind::System, "model", "a part of the model panicked"))
            }
        }
    }
}

fn names() -> impl Iterator<Item = String> {
    SystemKind::ALL.into_iter().map(|k| k.name().to_owned()).chain([LIBRARY.to_owned()])
}

fn workloads() -> Vec<String> {
    Workload::ALL.iter().map(|w| format!("{w:?}")).collect()
}

fn cell(published: impl Into<Option<f64>>, ours: f64, standing: Agreement) -> Cell {
    let published = published.into();
    Cell { published, ours, standing: if published.is_some() { standing } else { Agreement::Unpublished } }
}

fn traffic(published: &Traffic, columns: &[Column], is_zipf: bool) -> Grid {
    let row = |(nth, name): (usize, String)| {
        let kind = SystemKind::ALL.get(nth).copied().unwrap_or(SystemKind::Pipette);
        let standing = match kind {
            SystemKind::Mmio | SystemKind::Dma | SystemKind::PipetteUncached => Agreement::Exact,
            SystemKind::BlockIo | SystemKind::Pipette => Agreement::Calibrated,
        };
        let cells = columns.iter().enumerate();
        let cells = cells.map(|(at, c)| cell(published.row(kind)[at], c[nth].traffic_mib(), standing)).collect();
        ReportRow { name, cells }
    };
    let (title, note) = match is_zipf {
        false => (
            "Table 2: I/O traffic, uniform",
            "Exact: the rows without cache (2.5e6 reads x their bytes). Calibrated within 3.1 % (the library within 3.4 %): 160,000 places of a page each, a \
             warm page cache of 111,280 pages that never changes and is asked first (workload E begins with an empty one), \
             a fine-grained cache of 122,880 items, least recently used, admitted at the first read.",
        ),
        true => (
            "Table 3: I/O traffic, zipf 0.8",
            "The same parameters, but small reads do not ask the page cache; calibrated within 2.5 %. Where they ask, as the text says and \
             as table 2 needs, B to D are 671, 378 and 81 MiB: one set for both tables is out of reach. The page cache must hold the \
             pages that are read most, and no other: any that learns gives 861 MiB or more.",
        ),
    };
    Grid { title, unit: "MiB", columns: workloads(), rows: names().enumerate().map(row).collect(), note }
}

fn throughput(columns: &[Column], is_zipf: bool) -> Grid {
    // The paper's text has these numbers for Pipette; for the others it only gives the order.
    let published = match is_zipf {
        false => [Some(1.0), None, None, None, Some(31.2)],
        true => [Some(1.0), Some(1.1), None, None, Some(1.4)],
    };
    let row = |(nth, name): (usize, String)| {
        let cells = columns.iter().enumerate().map(|(at, c)| {
            let ours = c[nth].reads_per_s() / c[0].reads_per_s();
            let standing = if is_zipf && at == 4 { Agreement::OutOfReach } else { Agreement::Calibrated };
            cell(published[at].filter(|_| nth >= 4), ours, standing)
        });
        ReportRow { name, cells: cells.collect() }
    };
    let (title, note) = match is_zipf {
        false => (
            "Figure 6: throughput over block I/O's, uniform",
            "Calibrated within 7 %: Pipette's 1 at A and 31.2 at E, by a flash of 3.2 us a page of 2 KiB, of which a block's read-ahead reads \
             64 one after the other. The others' figures are not printed: with these costs reading without cache is many times faster \
             than block I/O at E, where the text says \"slightly\".",
        ),
        true => (
            "Figure 7: throughput over block I/O's, zipf 0.8",
            "Calibrated: 1 at A, and 1.1 at B within 2 %. Out of reach: 1.4 at E together with figure 6's 31.2, by one set of costs. With \
             table 3's hit ratios 1.4 allows a miss of block I/O 14 us; with table 2's 31.2 needs 185 us.",
        ),
    };
    Grid { title, unit: "times", columns: workloads(), rows: names().enumerate().map(row).collect(), note }
}

fn figure_8(by_size: &[[SystemCounters; 5]]) -> Grid {
    let row = |(nth, kind): (usize, &SystemKind)| {
        let published = match kind {
            SystemKind::Pipette => Some(2.0),
            SystemKind::BlockIo => Some(33.8 * 2.0),
            _ => None,
        };
        let cells = by_size.iter().map(|c| cell(published, c[nth].latency_us(), Agreement::Calibrated)).collect();
        ReportRow { name: kind.name().to_owned(), cells }
    };
    Grid {
        title: "Figure 8: mean latency of workload E, uniform",
        unit: "us",
        columns: SIZES.iter().map(|s| format!("{s} B")).collect(),
        rows: SystemKind::ALL.iter().enumerate().map(row).collect(),
        note: "Calibrated within 10 %: a flash page of 2 KiB in 3.2 us, commands of 8 us (block) and 2.5 us (bytes), a mapping of 23.4 us, hits of \
               0.5 us, and a read-ahead of 64 flash pages one after the other. Pipette's line is level but for the link's 1.3 us for \
               4 KiB. The cache holds as many items at every size.",
    }
}

/// Returns the numbers that the text gives for figure 8.
pub(super) fn relations(by_size: &[[SystemCounters; 5]]) -> Vec<Relation> {
    let latency = |size: usize, kind: usize| by_size[size][kind].latency_us();
    let over = |a: usize, b: usize| {
        let differences = (0..SIZES.len()).map(move |s| latency(s, a) - latency(s, b));
        differences.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), d| (low.min(d), high.max(d)))
    };
    let crossing = |a: usize, b: usize| {
        let above = (0..SIZES.len()).find(|&s| latency(s, a) > latency(s, b)).unwrap_or(SIZES.len() - 1);
        (f64::from(SIZES[above.saturating_sub(1)]), f64::from(SIZES[above]))
    };
    let slope = (latency(9, 1) - latency(0, 1)) / ((4096.0 - 8.0) / 8.0);
    let ratio = |s: usize| latency(s, 0) / latency(s, 4);
    let relation = |what, published, ours, standing| Relation { what, published, ours, standing };
    use Agreement::{Calibrated, Exact};
    vec![
        relation("2B-SSD MMIO, for each 8 B (us)", (0.18, 0.20), (slope, slope), Exact),
        relation("2B-SSD DMA over Pipette w/o cache (us)", (21.79, 25.06), over(2, 3), Calibrated),
        relation("block I/O over 2B-SSD DMA (us)", (14.56, 38.89), over(0, 2), Calibrated),
        relation("2B-SSD MMIO passes Pipette w/o cache between (B)", (32.0, 32.0), crossing(1, 3), Calibrated),
        relation("2B-SSD MMIO passes 2B-SSD DMA between (B)", (1024.0, 1024.0), crossing(1, 2), Calibrated),
        relation("block I/O over Pipette (times)", (33.8, 33.8), (ratio(9), ratio(0)), Calibrated),
    ]
}

const APPLICATIONS: [Application; 2] = [RECOMMENDER, SOCIAL_GRAPH];

fn application_columns() -> Vec<String> {
    let names = APPLICATIONS.iter().map(|a| a.name.to_owned());
    names.chain(["Recommender by table".to_owned()]).collect()
}

fn table_4(runs: &[ApplicationRun; 3]) -> Grid {
    let row = |name: &str, nth: usize, held: fn(&ApplicationRun) -> f64, of: fn(&Application) -> (f64, f64)| {
        let cells = runs.iter().enumerate().flat_map(|(at, run)| {
            let published = APPLICATIONS.get(at).map(of);
            let (hits, mib) = (published.map(|p| p.0), published.map(|p| p.1));
            let ours = run.columns()[nth].cache_percent();
            [cell(hits, ours, Agreement::OutOfReach), cell(mib, held(run), Agreement::OutOfReach)]
        });
        ReportRow { name: name.to_owned(), cells: cells.collect() }
    };
    Grid {
        title: "Table 4: page cache and fine-grained read cache",
        unit: "hit %, MiB",
        columns: ["Recsys", "Social", "By table"]
            .iter()
            .flat_map(|n| [format!("{n} hit %"), format!("{n} MiB")])
            .collect(),
        rows: vec![
            row("Block I/O", 0, |run| run.page_mib, |a| a.block),
            row("Pipette", 4, |run| run.fine_mib, |a| a.pipette),
            row(LIBRARY, 5, |run| run.library_mib, |a| a.pipette),
        ],
        note: "Exact: 33,762,577 rows x 128 B = 4121 MiB of tables; 1 - 33.3/305.18 = 89.09 %, table 3's E, is the social graph's. \
               Inputs: the published memory as the limit of each cache. Out of reach: the text says neither how many \
               requests there were nor how skewed they were, and these hit ratios contradict figure 9(b), by 175 to 22.7; \
               ours are 2.5 million with the skew of public DLRM traces and LinkBench's mix. `By table` is ours: one row of each \
               of the 26 tables a sample, zipf 1.05.",
    }
}

fn figure_9a(runs: &[ApplicationRun; 3]) -> Grid {
    let row = |(nth, name): (usize, String)| {
        let cells = runs.iter().enumerate().map(|(at, run)| {
            let columns = run.columns();
            let published = APPLICATIONS.get(at).filter(|_| nth >= 4).map(|a| a.speed_up);
            cell(published, columns[nth].reads_per_s() / columns[0].reads_per_s(), Agreement::OutOfReach)
        });
        ReportRow { name, cells: cells.collect() }
    };
    Grid {
        title: "Figure 9(a): throughput over block I/O's",
        unit: "times",
        columns: application_columns(),
        rows: names().enumerate().map(row).collect(),
        note: "Only the order is met: Pipette is first. Out of reach with these costs, as in figure 7.",
    }
}

fn figure_9b(runs: &[ApplicationRun; 3]) -> Grid {
    let row = |(nth, name): (usize, String)| {
        let cells = runs.iter().enumerate().map(|(at, run)| {
            let columns = run.columns();
            let published = APPLICATIONS.get(at).filter(|_| nth >= 4).map(|a| a.traffic_part);
            cell(published, columns[nth].traffic_mib() / columns[0].traffic_mib(), Agreement::OutOfReach)
        });
        ReportRow { name, cells: cells.collect() }
    };
    Grid {
        title: "Figure 9(b): I/O traffic, as a fraction of block I/O's",
        unit: "part",
        columns: application_columns(),
        rows: names().enumerate().map(row).collect(),
        note: "Only the order is met: Pipette moves least. The paper contradicts itself: 95.6 % less is a factor of 22.7, table 4's hit ratios give \
               35.5 % x 4096 B over 6.5 % x 128 B = 175.",
    }
}
