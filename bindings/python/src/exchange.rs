//! The tasks of a sort on several machines whose sorted parts stay on the node that made them, in
//! files without names, and are sent in ranges. Who runs them is `datapipes.ray`.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use datapipes::sort::{
    BlockClient, BlockKeeper, BlockTicket, Input, Output, RecordBorders, SortReport, UnnamedOutput, merge,
};
use datapipes::{Error, ErrorKind, Ssd};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::errors::{detached, invalid, json};
use crate::machine;
use crate::order::Order;
use crate::shuffle::{Task, TaskMemory, another_range, borders_of, open_pieces, output_of, placed, told};

fn ticket(py: Python<'_>, bytes: &[u8]) -> PyResult<BlockTicket> {
    let bytes = bytes.try_into().map_err(|_| invalid(py, "sort", "a ticket has 32 bytes"))?;
    Ok(BlockTicket::new(bytes))
}

/// Keeps sorted parts of this node, and sends ranges of them to others.
#[pyclass(frozen, module = "datapipes._datapipes", name = "Keeper")]
pub(crate) struct Keeper(BlockKeeper);

#[pymethods]
impl Keeper {
    /// Other nodes connect to this address.
    #[new]
    fn new(py: Python<'_>, address: &str) -> PyResult<Keeper> {
        let address = address.parse().map_err(|e| invalid(py, "listen", format!("{address}: {e}")))?;
        Ok(Keeper(detached(py, || BlockKeeper::start(address))?))
    }

    /// Takes parts of the sort with this ticket from now on.
    fn admit(&self, py: Python<'_>, ticket: &[u8]) -> PyResult<()> {
        self.0.admit(self::ticket(py, ticket)?);
        Ok(())
    }

    /// Lets go of the parts of the sort with this ticket, and takes no more of them.
    fn dismiss(&self, py: Python<'_>, ticket: &[u8]) -> PyResult<()> {
        self.0.dismiss(&self::ticket(py, ticket)?);
        Ok(())
    }

    /// Where other nodes connect, as text.
    #[getter]
    fn address(&self) -> String {
        self.0.address().to_string()
    }

    /// The name of the socket for tasks of this node.
    #[getter]
    fn name(&self) -> &str {
        self.0.local_name()
    }

    /// How many parts are kept.
    #[getter]
    fn kept(&self) -> usize {
        self.0.kept()
    }
}

/// Sorts a part of the input into a file without a name in `folder`, cuts it at the splitters, and
/// gives it to the keeper of this node. Returns the number that it has there (0 if the part has no
/// records), where it is cut, and the report as JSON.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // Arguments of one function of Python.
pub(crate) fn sort_part_kept(
    py: Python<'_>,
    order: Order,
    pieces: Vec<(PathBuf, u64, u64)>,
    part: u64,
    splitters: Vec<(PyBackedBytes, u64)>,
    memory: u64,
    folder: PathBuf,
    keeper: &str,
    ticket: &[u8],
) -> PyResult<(u64, Vec<u64>, String)> {
    let (task, splitters) = (Task::of(py, &order)?, placed(&splitters));
    let client = BlockClient::new(self::ticket(py, ticket)?);
    let (inputs, most) = detached(py, || open_pieces(&task.shuffle, pieces))?;
    if inputs.is_empty() {
        return Ok((0, vec![0; splitters.len() + 2], json(py, &SortReport::default())?));
    }
    let memory = TaskMemory { uses: memory, keeps: memory };
    let (sorted, job) = detached(py, || {
        let sorted = Arc::new(UnnamedOutput::in_folder(&folder, most)?);
        let job = task.job(inputs, Output::Place(sorted.clone()), memory, Some(folder.clone()))?;
        Ok((sorted, job))
    })?;
    let report = told(py, job)?;
    let (number, cuts) = detached(py, || {
        let borders = RecordBorders::over(&task.shuffle, sorted.file()?, &folder)?;
        let cuts = task.shuffle.cuts_of_file(&borders, part, &splitters)?;
        Ok((client.keep(keeper, sorted.file()?)?, cuts))
    })?;
    Ok((number, cuts, json(py, &report)?))
}

/// Bytes of a sorted part.
#[derive(FromPyObject)]
pub(crate) struct Block {
    /// Whether its keeper is that of this node.
    local: bool,
    /// The keeper: the name of its socket on this node, or its address.
    keeper: String,
    /// The number of the part's file there.
    file: u64,
    start: u64,
    end: u64,
}

/// The blocks of a range, as inputs of a merge.
struct Opened {
    inputs: Vec<Input>,
    /// The names of those that come from other nodes.
    sent: Vec<String>,
    /// The numbers of blocks that could not be had, and why the first could not.
    lost: Vec<usize>,
    why: Option<Error>,
}

/// Opens the blocks that can be had. Of the others it is noted that they are lost.
fn open(client: BlockClient, blocks: &[Block]) -> datapipes::Result<Opened> {
    let mut opened = Opened { inputs: Vec::with_capacity(blocks.len()), sent: Vec::new(), lost: Vec::new(), why: None };
    // A keeper that is gone is not waited for more than once.
    let mut gone = HashSet::new();
    for (i, block) in blocks.iter().enumerate() {
        let got = match block.local {
            _ if gone.contains(&block.keeper) => Err(Error::new(ErrorKind::NotFound, "get blocks", "")),
            true => client.open(&block.keeper, block.file).and_then(|file| {
                let ssd = Ssd::from_fd(file.into(), format!("sorted part {} of this node", block.file))?;
                Ok(Input::Range { ssd, from: block.start, to: block.end })
            }),
            false => client.fetch(address_of(block)?, block.file, block.start, block.end),
        };
        match got {
            Ok(input) => {
                if !block.local {
                    opened.sent.push(input.name().display().to_string());
                }
                opened.inputs.push(input);
            }
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Unavailable) => {
                if e.kind() == ErrorKind::Unavailable {
                    gone.insert(block.keeper.clone());
                }
                opened.lost.push(i);
                opened.why.get_or_insert(e);
            }
            Err(e) => return Err(e),
        }
    }
    Ok(opened)
}

fn address_of(block: &Block) -> datapipes::Result<SocketAddr> {
    block
        .keeper
        .parse()
        .map_err(|e| Error::new(ErrorKind::InvalidInput, "get blocks", format!("{}: {e}", block.keeper)))
}

/// Asks which blocks of other nodes are still there. Returns the numbers of the others.
fn missing(client: BlockClient, blocks: &[Block]) -> datapipes::Result<Vec<usize>> {
    let mut gone = HashSet::new();
    let mut lost = Vec::new();
    for (i, block) in blocks.iter().enumerate().filter(|(_, block)| !block.local) {
        let there = !gone.contains(&block.keeper)
            && client.has(address_of(block)?, block.file).unwrap_or_else(|_| {
                gone.insert(block.keeper.clone());
                false
            });
        if !there {
            lost.push(i);
        }
    }
    Ok(lost)
}

/// Merges blocks of sorted parts, in the order of the parts, into a file. All records must lie
/// between two splitters, where these are given. Returns the report as JSON; or, if blocks could
/// not be had, none, their numbers, and why. If no number is given then, the blocks are there, and
/// the way to them failed. `memory` is what the merge gets, and what this process keeps for the
/// next sort or merge.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // Arguments of one function of Python.
pub(crate) fn merge_kept(
    py: Python<'_>,
    order: Order,
    blocks: Vec<Block>,
    output: PathBuf,
    lower: Option<PyBackedBytes>,
    upper: Option<PyBackedBytes>,
    memory: (u64, u64),
    folder: PathBuf,
    ticket: &[u8],
) -> PyResult<(Option<String>, Vec<usize>, String)> {
    let memory = TaskMemory { uses: memory.0, keeps: memory.1 };
    let task = Task::of(py, &order)?;
    let client = BlockClient::new(self::ticket(py, ticket)?);
    let outcome = detached(py, || {
        let Opened { inputs, sent, lost, why } = open(client, &blocks)?;
        if let Some(why) = why {
            return Ok(Err((lost, why.to_string())));
        }
        let len = blocks.iter().map(|block| block.end.saturating_sub(block.start)).sum();
        let job = task.job(inputs, output_of(output.clone(), len)?, memory, Some(folder))?;
        match merge(machine(), job.in_order(true)) {
            Ok(report) => {
                // All of them are in order, so its ends tell of all blocks.
                let (borders, _) = borders_of(&task.shuffle, &output)?;
                if !task.shuffle.file_lies_between(&borders, [lower.as_deref(), upper.as_deref()])? {
                    return Err(another_range());
                }
                Ok(Ok(report))
            }
            Err(e) if sent.iter().any(|name| e.context().contains(name)) => {
                Ok(Err((missing(client, &blocks)?, e.to_string())))
            }
            Err(e) => Err(e),
        }
    })?;
    match outcome {
        Ok(report) => Ok((Some(json(py, &report)?), Vec::new(), String::new())),
        Err((lost, why)) => Ok((None, lost, why)),
    }
}
