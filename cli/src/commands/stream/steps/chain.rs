//! The chain of a stream: devices, channels and programs.
//!
//! ```text
//! source -> crc32 -> into sort | sort | out of sort -> zstd -> sink
//! ```

use std::os::fd::OwnedFd;

use datapipes::{Error, ErrorKind, Result};
use datapipes_fabric::channel::ChannelShape;
use datapipes_fabric::device::{DeviceArguments, DevicePlace, DeviceRole, Spread, StreamReport};
use datapipes_fabric::placement::{DeviceGraph, DeviceNode};

use super::bodies::{functions, recode, with_meter};
use super::codecs::{Codec, NAMES};
use super::device_progress::ProgressReader;
use super::program::Program;
use super::trust::TrustLevel;

/// A transform that was asked for.
#[derive(Debug)]
pub(in crate::commands::stream) struct Step {
    /// The name as the user gave it.
    pub(in crate::commands::stream) name: String,
    pub(in crate::commands::stream) work: Work,
}

#[derive(Debug)]
pub(in crate::commands::stream) enum Work {
    /// A function of the fabric: a block becomes a block.
    Function { function: String, arguments: DeviceArguments },
    /// A stream becomes a stream.
    Codec(Codec),
    /// A program of the user's.
    Program(String),
}

impl Step {
    /// `NAME`, `NAME=ARGUMENT` or `exec:COMMAND`.
    pub(in crate::commands::stream) fn parse(name: &str) -> Result<Step> {
        let wrong = |what: String| Error::new(ErrorKind::InvalidInput, "stream", what);
        if let Some(command) = name.strip_prefix(EXEC) {
            if command.trim().is_empty() {
                return Err(wrong(format!("`{name}`: which program?")));
            }
            return Ok(Step { name: name.into(), work: Work::Program(command.into()) });
        }
        let (first, argument) = name.split_once('=').map_or((name, None), |(first, rest)| (first, Some(rest)));
        if let Some(codec) = Codec::named(first, argument) {
            let codec = codec.map_err(|e| wrong(format!("`{name}`: {e}")))?;
            return Ok(Step { name: name.into(), work: Work::Codec(codec) });
        }
        let arguments = match (first, argument) {
            (_, None) => DeviceArguments::default(),
            ("xor", Some(key)) => DeviceArguments::of(&serde_json::json!({ "key": key.parse::<u8>().ok() }))?,
            (function, Some(_)) => return Err(wrong(format!("`{name}`: {function} takes no argument"))),
        };
        functions().function(first, &arguments).map_err(|e| match e.kind() {
            ErrorKind::NotFound => e.with_advice(format!("there are {NAMES}, exec:COMMAND, and what --help names")),
            _ => e,
        })?;
        Ok(Step { name: name.into(), work: Work::Function { function: first.into(), arguments } })
    }

    /// Whether the step passes its bytes on unchanged.
    pub(in crate::commands::stream) fn keeps_bytes(&self) -> bool {
        matches!(&self.work, Work::Function { function, .. } if matches!(function.as_str(), "forward" | "crc32"))
    }
}

/// The prefix of a program. All text behind it is the command.
const EXEC: &str = "exec:";

/// The names in a list: separated by commas, but all behind `exec:` is one.
pub(in crate::commands::stream) fn names(list: &str) -> Vec<&str> {
    let (mut rest, mut names) = (list, Vec::new());
    loop {
        rest = rest.trim_start();
        if rest.starts_with(EXEC) {
            names.push(rest);
            return names;
        }
        let (name, more) = rest.split_once(',').map_or((rest, None), |(name, more)| (name, Some(more)));
        if !name.trim().is_empty() {
            names.push(name.trim());
        }
        match more {
            Some(more) => rest = more,
            None => return names,
        }
    }
}

/// A device of a stream.
pub(in crate::commands::stream) struct Device {
    pub(in crate::commands::stream) name: String,
    pub(in crate::commands::stream) node: DeviceNode,
    pub(in crate::commands::stream) report: Option<StreamReport>,
    /// Whose standard input it writes, by its place among the programs.
    pub(in crate::commands::stream) feeds: Option<usize>,
}

/// A channel, from the n-th device to the next; its meter is the sender's.
pub(in crate::commands::stream) struct Link {
    pub(in crate::commands::stream) from: usize,
    pub(in crate::commands::stream) credits: u32,
    pub(in crate::commands::stream) meter: ProgressReader,
}

/// All of a stream, in order.
pub(in crate::commands::stream) struct Chain {
    pub(in crate::commands::stream) devices: Vec<Device>,
    pub(in crate::commands::stream) links: Vec<Link>,
    pub(in crate::commands::stream) programs: Vec<Program>,
    /// The device that sends what the steps behind the last program get: the source, where there is
    /// no program.
    pub(in crate::commands::stream) last_source: usize,
    /// Whether devices measure how long their blocks are on their way.
    measures: bool,
}

/// The steps of a stream and the channels between them.
pub(in crate::commands::stream) struct ChannelPlan<'a> {
    pub(in crate::commands::stream) steps: &'a [Step],
    /// One for each channel: into each transform, and into the sink.
    pub(in crate::commands::stream) shapes: &'a [ChannelShape],
    pub(in crate::commands::stream) trust: TrustLevel,
    pub(in crate::commands::stream) measures: bool,
}

/// The two ends of a stream.
pub(in crate::commands::stream) struct Ends {
    pub(in crate::commands::stream) from: (OwnedFd, DevicePlace),
    pub(in crate::commands::stream) to: (OwnedFd, DevicePlace),
}

impl Chain {
    /// Starts the programs, and adds the devices to a graph.
    pub(in crate::commands::stream) fn build(plan: &ChannelPlan<'_>, ends: Ends) -> Result<(Chain, DeviceGraph)> {
        let mut graph = DeviceGraph::new(plan.shapes[0], plan.trust.trust());
        let (devices, links, programs) = (Vec::new(), Vec::new(), Vec::new());
        let mut chain = Chain { devices, links, programs, last_source: 0, measures: plan.measures };
        let (from, place) = ends.from;
        chain.sends(&mut graph, "source", &DeviceRole::Source { place, sum: true }, Some(from))?;
        for (at, step) in plan.steps.iter().enumerate() {
            match &step.work {
                Work::Function { function, arguments } => {
                    let (function, arguments) = (function.clone(), arguments.clone());
                    let role = DeviceRole::Transform { function, arguments, spread: Spread::Turns };
                    chain.sends(&mut graph, &step.name, &role, None)?;
                }
                Work::Codec(codec) => chain.sends(&mut graph, &step.name, &recode(*codec)?, None)?,
                Work::Program(command) => {
                    let (program, pipes) = Program::start(command)?;
                    let name = program.name.clone();
                    chain.programs.push(program);
                    let place = DevicePlace::Stream { descriptor: 0, whole_blocks: true };
                    let into = DeviceRole::Sink { place: place.clone() };
                    chain.add(&mut graph, &format!("into {name}"), into, vec![pipes.into]);
                    chain.connect(&mut graph, plan, at)?;
                    if let Some(device) = chain.devices.last_mut() {
                        device.feeds = Some(chain.programs.len() - 1);
                    }
                    chain.last_source = chain.devices.len();
                    let out_of = DeviceRole::Source { place, sum: true };
                    chain.sends(&mut graph, &format!("out of {name}"), &out_of, Some(pipes.out_of))?;
                    continue;
                }
            }
            chain.connect(&mut graph, plan, at)?;
        }
        let (to, place) = ends.to;
        chain.add(&mut graph, "sink", DeviceRole::Sink { place }, vec![to]);
        chain.connect(&mut graph, plan, plan.steps.len())?;
        Ok((chain, graph))
    }

    fn add(&mut self, graph: &mut DeviceGraph, name: &str, role: DeviceRole, given: Vec<OwnedFd>) {
        let node = graph.device(name, role, given);
        self.devices.push(Device { name: name.into(), node, report: None, feeds: None });
    }

    /// A device with a meter, and the beginning of its channel.
    fn sends(&mut self, graph: &mut DeviceGraph, name: &str, role: &DeviceRole, given: Option<OwnedFd>) -> Result<()> {
        let meter = ProgressReader::new(self.measures)?;
        let given = given.into_iter().chain([meter.for_device()?]).collect();
        self.links.push(Link { from: self.devices.len(), credits: 0, meter });
        self.add(graph, name, with_meter(role, self.measures)?, given);
        Ok(())
    }

    /// Connects the last device to the sender before it.
    fn connect(&mut self, graph: &mut DeviceGraph, plan: &ChannelPlan<'_>, shape: usize) -> Result<()> {
        let to = self.devices.len() - 1;
        let (from, shape) = (to.saturating_sub(1), plan.shapes[shape]);
        if let Some(link) = self.links.iter_mut().find(|link| link.from == from) {
            link.credits = shape.credits;
        }
        graph.connect_with(self.devices[from].node, self.devices[to].node, shape, plan.trust.trust())
    }

    /// The names of a channel's two devices.
    pub(in crate::commands::stream) fn names(&self, link: &Link) -> (String, String) {
        (self.devices[link.from].name.clone(), self.devices[link.from + 1].name.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_cut_at_commas_and_commands_are_not() {
        assert_eq!(names("crc32, xor=1,,lz4"), ["crc32", "xor=1", "lz4"]);
        assert_eq!(names("crc32,exec:cut -d, -f1,2"), ["crc32", "exec:cut -d, -f1,2"]);
        assert!(names("").is_empty());
        for (wrong, why) in [("exec: ", "which program"), ("zstd=99", "from 1 to 19"), ("rot13", "unzstd")] {
            let error = Step::parse(wrong).unwrap_err();
            assert!(format!("{error}").contains(why), "{error}");
        }
    }
}
