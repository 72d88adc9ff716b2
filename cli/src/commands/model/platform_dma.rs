//! `dpipe model platform-dma`: table 1 and figures 7 to 10 of *Platform IO DMA Transaction
//! Acceleration*, and what other links and drivers would change.

use datapipes::{Error, ErrorKind, Result};
use datapipes_models::platform_dma::{
    DataMover, DmaFigure, DmaFinding, DmaPlatform, DmaQuestion, DriverPractice, FindingStanding, LinkFraming,
    LinkShare, MessageWay, PaperFigures, PcieGeneration, PriorityRow, TrafficClass, link_shares, paper_figures,
    priorities, questions,
};
use serde::Serialize;

use super::pipette::wrapped;
use crate::arguments::ending::Ending;
use crate::arguments::units::{self, parse_size};
use crate::outcome::{CommandStatus, print, print_json};
use crate::system::side_files::{CommandPlaces, SideFileArgument, SideFiles};
use crate::table::{Table, save};
use datapipes_picture::chart::{Form, Panel, Series, svg};

const ENDING: Ending = Ending {
    notes: "\
It compares an engine in the device, which fetches descriptors, with an integrated one beside the
cores, which pushes data. First come the paper's figures on its own platforms. The rest is for
the link and the driver of the options. Each number says whether it is an input.",
    zero: "the figures are shown",
    one: None,
    examples: &[
        "dpipe model platform-dma",
        "dpipe model platform-dma --generation 5 --lanes 16 --max-payload 512 --json",
        "dpipe model platform-dma --practice write-backs --plot platform-dma.svg",
    ],
};

/// Models messages to and from a device over PCI Express.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.text())]
pub(crate) struct Args {
    /// Generation of PCI Express, from 1 to 6
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=6))]
    generation: u8,
    /// Lanes: 1, 2, 4, 8, 12, 16 or 32
    #[arg(long, default_value_t = 8, value_name = "N")]
    lanes: u32,
    /// Carry packets as CXL.io in flits of 68 bytes (generations 3 to 5)
    #[arg(long)]
    cxl: bool,
    /// Largest payload of a packet: a power of 2 from 128 to 4096 bytes
    #[arg(long, default_value = "256", value_name = "SIZE", value_parser = parse_size)]
    max_payload: u64,
    /// Largest read request: a power of 2 from 128 to 4096 bytes
    #[arg(long, default_value = "512", value_name = "SIZE", value_parser = parse_size)]
    max_read: u64,
    /// What drivers do: text (what the paper names) or write-backs (descriptors, too)
    #[arg(long, default_value = "text", value_name = "NAME")]
    practice: String,
    /// Bytes of a descriptor, up to 4096
    #[arg(long, default_value = "16", value_name = "SIZE", value_parser = parse_size)]
    descriptor_size: u64,
    /// Descriptors that one fetch brings
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    descriptors_per_fetch: u64,
    /// Messages that one doorbell announces
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=512))]
    messages_per_doorbell: u64,
    /// Bytes of a small message, up to 64 KiB
    #[arg(long, default_value = "64", value_name = "SIZE", value_parser = parse_size)]
    message_size: u64,
    /// Bytes of the device's buffer for what is pushed to it
    #[arg(long, default_value = "3000", value_name = "SIZE", value_parser = parse_size)]
    device_buffer: u64,
    /// Print JSON: paper (figures, shares), platform, shares, priorities, questions; times in us
    #[arg(long)]
    json: bool,
    /// Draw the charts as SVG
    #[arg(long, alias = "svg", value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    plot: Option<SideFileArgument>,
}

/// Everything that is shown.
#[derive(Debug, Serialize)]
struct Report {
    /// On the paper's platforms.
    paper: PaperFigures,
    /// As chosen, and what it gives.
    platform: DmaPlatform,
    message_bytes: u64,
    shares: Vec<LinkShare>,
    priorities: Vec<PriorityRow>,
    questions: Vec<DmaQuestion>,
}

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    let places = CommandPlaces::of("model platform-dma");
    let plot = SideFiles::beside(places).begin("--plot", args.plot.as_ref())?;
    let report = report(args)?;
    if let Some(file) = plot {
        save(file, &picture(&report))?;
    }
    if args.json {
        print_json(&report)?;
    } else {
        show(&report)?;
    }
    Ok(CommandStatus::Good)
}

fn refused(why: String, advice: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "model", why).with_advice(advice.to_owned())
}

fn platform(args: &Args) -> Result<DmaPlatform> {
    let practices = DriverPractice::all();
    let Some(practice) = practices.into_iter().find(|p| p.name == args.practice) else {
        let names = practices.map(|p| p.name).join(", ");
        return Err(refused(format!("there is no practice `{}`", args.practice), &format!("take one of {names}")));
    };
    if ![1, 2, 4, 8, 12, 16, 32].contains(&args.lanes) {
        return Err(refused(format!("a link does not have {} lanes", args.lanes), "take 1, 2, 4, 8, 12, 16 or 32"));
    }
    for (what, bytes) in [("payload of a packet", args.max_payload), ("read request", args.max_read)] {
        if !bytes.is_power_of_two() || !(128..=4096).contains(&bytes) {
            let why = format!("PCI Express has no largest {what} of {bytes} bytes");
            return Err(refused(why, "take 128, 256, 512, 1024, 2048 or 4096"));
        }
    }
    for (what, bytes, most) in [
        ("a descriptor", args.descriptor_size, 4096),
        ("a message", args.message_size, 64 << 10),
        ("the device's buffer", args.device_buffer, 1 << 30),
    ] {
        if bytes == 0 || bytes > most {
            let advice = format!("take 1 to {most} bytes");
            return Err(refused(format!("{what} of {bytes} bytes is not modelled"), &advice));
        }
    }
    let mut platform = DmaPlatform { practice, device_buffer_bytes: args.device_buffer, ..DmaPlatform::throughput() };
    let Some(generation) = PcieGeneration::of(args.generation) else {
        return Err(refused(format!("there is no generation {}", args.generation), "take one from 1 to 6"));
    };
    if args.cxl && !(PcieGeneration::Gen3..=PcieGeneration::Gen5).contains(&generation) {
        let why = format!("CXL.io has no flits of 68 bytes on generation {}", args.generation);
        return Err(refused(why, "take generation 3, 4 or 5; generation 6 always has flits of 256 bytes"));
    }
    let link = &mut platform.link;
    link.generation = generation;
    link.lanes = args.lanes;
    link.is_cxl = args.cxl;
    link.max_payload_bytes = args.max_payload;
    link.max_read_bytes = args.max_read;
    platform.practice.descriptor_bytes = args.descriptor_size;
    platform.practice.descriptors_per_fetch = args.descriptors_per_fetch;
    platform.practice.transmit.per_doorbell = args.messages_per_doorbell;
    Ok(platform)
}

fn report(args: &Args) -> Result<Report> {
    let platform = platform(args)?;
    let mut sizes = vec![args.message_size, 1 << 10, 4 << 10, 64 << 10];
    sizes.sort_unstable();
    sizes.dedup();
    Ok(Report {
        paper: paper_figures(),
        shares: link_shares(&platform, &sizes),
        priorities: priorities(&platform, args.message_size),
        questions: questions(&platform, args.message_size),
        message_bytes: args.message_size,
        platform,
    })
}

fn show(report: &Report) -> Result<()> {
    print(
        "A MODEL, in virtual time: messages over PCI Express, by descriptors that the device fetches, or integrated:\n\
         pushed by an engine beside the cores. Ours (the paper's):\n  i input   = exact   ~ calibrated   ! out of reach \
         of the text; without a mark, the model's own\n",
    )?;
    for figure in &report.paper.figures {
        show_figure(figure)?;
    }
    print("\nBehind figure 10: bytes a message on the link, by descriptors (8 lanes of generation 2)\n")?;
    show_bytes(&report.paper.shares)?;
    print(&chosen(report))?;
    print("\nControl traffic and rates by size\n")?;
    show_shares(&report.shares)?;
    show_priorities(report)?;
    for question in &report.questions {
        show_question(question, report.message_bytes)?;
    }
    print(KNOWN)
}

const KNOWN: &str = "
From the paper: 230, 759, 781, 20, 50 ns, 8.8 us, 2.1 Gb/s, 16 bytes a descriptor, 4 of them a line, 256 bytes of
payload, buffers of 8 KiB and of two frames. From specifications: rates, encodings, sizes of packets and flits.
Assumed: headers of 54 bytes, reads of 512 bytes, 32 requests under way, acknowledgements after 300 ns, memory of
8.53 GB/s. Calibrated to figure 10: how often doorbells and interrupts come. On another link all delays stay as
they were measured; only the time of bytes changes. A fast link waits for round trips: descriptors for the answers
to 32 reads, pushes for room in the device's buffer (--device-buffer).
";

fn show_figure(figure: &DmaFigure) -> Result<()> {
    print(&format!("\n{}\n", figure.title))?;
    let mut table = Table::default();
    for DmaFinding { what, unit, published, ours, standing } in &figure.findings {
        let paper = published.map_or(String::new(), |p| format!("({}{})", mark(*standing), digits(p)));
        let paper =
            if published.is_none() && *standing == FindingStanding::OutOfReach { "(!)".to_owned() } else { paper };
        table.row([what.clone(), digits(*ours), (*unit).to_owned(), paper]);
    }
    table.print(2)?;
    print(&wrapped(figure.note))
}

fn mark(standing: FindingStanding) -> &'static str {
    match standing {
        FindingStanding::Input => "i",
        FindingStanding::Exact => "=",
        FindingStanding::Calibrated => "~",
        FindingStanding::OutOfReach => "!",
        FindingStanding::Own => "",
    }
}

/// At most four digits that say something.
fn digits(value: f64) -> String {
    match value {
        v if v == v.trunc() => format!("{v:.0}"),
        v if v >= 1000.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

fn gb_s(bytes_per_s: f64) -> String {
    format!("{:.2}", bytes_per_s / 1e9)
}

fn way_name(way: MessageWay) -> &'static str {
    match way {
        MessageWay::Receive => "receive",
        MessageWay::Transmit => "transmit",
    }
}

fn show_bytes(shares: &[LinkShare]) -> Result<()> {
    let mut table = Table::default();
    let classes = TrafficClass::ALL.into_iter().filter(|c| shares.iter().any(|s| s.down.and(&s.up).of(*c) > 0));
    let classes: Vec<TrafficClass> = classes.collect();
    table.row(["".to_owned(), "".to_owned()].into_iter().chain(classes.iter().map(|c| c.name().to_owned())));
    for share in shares {
        // The payload says how many messages there were: each frame has its headers.
        let messages = messages_of(share);
        for (direction, traffic) in [("to the device", &share.down), ("to the host", &share.up)] {
            let what = format!("{}, {}", way_name(share.way), units::memory(share.message_bytes));
            let bytes = classes.iter().map(|c| format!("{:.1}", traffic.of(*c) as f64 / messages));
            table.row([what, direction.to_owned()].into_iter().chain(bytes));
        }
    }
    table.print(2)
}

fn messages_of(share: &LinkShare) -> f64 {
    let practice = DmaPlatform::throughput().practice;
    let frames = share.message_bytes.div_ceil(practice.frame_payload_bytes).max(1);
    let each = share.message_bytes + frames * practice.frame_header_bytes;
    (share.down.payload + share.up.payload) as f64 / each as f64
}

fn chosen(report: &Report) -> String {
    let DmaPlatform { link, practice, device_buffer_bytes, .. } = &report.platform;
    let framing = match link.framing() {
        LinkFraming::Packets => "packets",
        LinkFraming::Flits => "flits of 256 bytes",
        LinkFraming::CxlFlits => "CXL.io in flits of 68 bytes",
    };
    format!(
        "\nAS CHOSEN: {} lanes of generation {}, {:.2} GB/s each way, {framing}, payload {} B, reads {} B\n  practice \
         `{}`: descriptors of {} B, {} a fetch, {} message(s) a doorbell; device's buffer {} B\n",
        link.lanes,
        link.generation.number(),
        link.bytes_per_s() / 1e9,
        link.max_payload_bytes,
        link.max_read_bytes,
        practice.name,
        practice.descriptor_bytes,
        practice.descriptors_per_fetch,
        practice.transmit.per_doorbell,
        device_buffer_bytes
    )
}

fn show_shares(shares: &[LinkShare]) -> Result<()> {
    let mut table = Table::default();
    table.row(["", "control", "to device", "to host", "of all bytes", "descriptors GB/s", "integrated GB/s"]);
    for share in shares {
        table.row([
            format!("{}, {}", way_name(share.way), units::memory(share.message_bytes)),
            percent(share.control),
            percent(share.down.control_share()),
            percent(share.up.control_share()),
            percent(share.control_of_all),
            gb_s(share.bytes_per_s),
            gb_s(share.integrated_bytes_per_s),
        ]);
    }
    table.print(2)
}

fn show_priorities(report: &Report) -> Result<()> {
    print(&format!(
        "\nAn urgent message of {} to the device every 5 us beside messages of 64 KiB (us; bulk in GB/s)\n",
        units::memory(report.message_bytes)
    ))?;
    let mut table = Table::default();
    table.row(["", "alone", "beside: mean", "longest", "bulk alone", "bulk beside"]);
    for row in &report.priorities {
        table.row([
            format!("{}, {}", row.mover.name(), row.arbitration.name()),
            format!("{:.2}", row.alone.as_us()),
            format!("{:.2}", row.mean.as_us()),
            format!("{:.2}", row.max.as_us()),
            gb_s(row.bulk_alone_bytes_per_s),
            gb_s(row.bulk_bytes_per_s),
        ]);
    }
    table.print(2)?;
    print(&wrapped(
        "The device's engine can choose among its queues, but the answers to what it asked for already come in that \
         order. The integrated engine chooses before each packet that it pushes.",
    ))
}

fn show_question(question: &DmaQuestion, message_bytes: u64) -> Result<()> {
    print(&format!(
        "\nWhat if: {} (control and latency for {}, bulk for 64 KiB)\n",
        question.question,
        units::memory(message_bytes)
    ))?;
    let mut table = Table::default();
    table.row(["", "receive", "transmit", "descr. us", "integr. us", "descr. GB/s", "integr. GB/s"]);
    for answer in &question.answers {
        let [before, after] = answer.latency.map(|t| format!("{:.3}", t.as_us()));
        let [slow, fast] = answer.bulk_bytes_per_s.map(gb_s);
        let row = [percent(answer.receive_control), percent(answer.transmit_control), before, after, slow, fast];
        table.row(std::iter::once(answer.choice.clone()).chain(row));
    }
    table.print(2)
}

fn picture(report: &Report) -> String {
    let mut panels = vec![shares_panel(&report.paper.shares), priorities_panel(&report.priorities)];
    panels.extend(report.questions.iter().flat_map(question_panels));
    let remark = format!(
        "{} lanes of generation {}, practice `{}`; hollow: the paper's numbers",
        report.platform.link.lanes,
        report.platform.link.generation.number(),
        report.platform.practice.name
    );
    svg(
        "Messages over PCI Express by descriptors and by an integrated engine: a model in virtual time",
        &remark,
        &panels,
    )
}

fn series(name: &str, color: usize, values: impl Iterator<Item = f64>) -> Series {
    Series { name: name.to_owned(), color, is_published: false, values: values.map(Some).collect() }
}

/// Figure 10, as far as the text prints it.
fn shares_panel(shares: &[LinkShare]) -> Panel {
    let published = |share: &LinkShare| share.published_control.map(|part| part * 100.0);
    let paper =
        Series { name: "paper".into(), color: 0, is_published: true, values: shares.iter().map(published).collect() };
    Panel {
        title: "Figure 10: control traffic on the link, generation 2".into(),
        unit: "% of packets' bytes".into(),
        form: Form::Bars,
        is_logarithmic: false,
        labels: shares.iter().map(|s| format!("{}, {}", way_name(s.way), units::memory(s.message_bytes))).collect(),
        series: vec![series("model", 0, shares.iter().map(|s| s.control * 100.0)), paper],
    }
}

fn priorities_panel(rows: &[PriorityRow]) -> Panel {
    Panel {
        title: "An urgent message beside a bulk transfer (d: descriptors, i: integrated)".into(),
        unit: "us".into(),
        form: Form::Bars,
        is_logarithmic: true,
        labels: rows.iter().map(|r| format!("{}: {}", &r.mover.name()[..1], r.arbitration.name())).collect(),
        series: vec![
            series("alone", 0, rows.iter().map(|r| r.alone.as_us())),
            series("mean", 1, rows.iter().map(|r| r.mean.as_us())),
            series("longest", 2, rows.iter().map(|r| r.max.as_us())),
        ],
    }
}

/// A panel of shares and one of rates.
fn question_panels(question: &DmaQuestion) -> [Panel; 2] {
    let answers = &question.answers;
    let panel = |what: &str, unit: &str, series| Panel {
        title: format!("{what}: {}", question.question),
        unit: unit.to_owned(),
        form: Form::Lines,
        is_logarithmic: false,
        labels: answers.iter().map(|a| a.choice.clone()).collect(),
        series,
    };
    let rate = |nth: usize| {
        series(DataMover::ALL[nth].name(), nth + 2, answers.iter().map(move |a| a.bulk_bytes_per_s[nth] / 1e9))
    };
    [
        panel(
            "Control",
            "% of packets' bytes",
            vec![
                series("receive", 0, answers.iter().map(|a| a.receive_control * 100.0)),
                series("transmit", 1, answers.iter().map(|a| a.transmit_control * 100.0)),
            ],
        ),
        panel("Bulk", "GB/s", vec![rate(0), rate(1)]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_say_something() {
        assert_eq!([1770.0, 7.38, 80.2259, 2.53012, 3456.7].map(digits), ["1770", "7.38", "80.2", "2.53", "3457"]);
    }
}
