//! The event model compared with the closed forms and with the paper, and what must hold for every
//! platform and load.

use proptest::prelude::*;

use super::*;
use crate::time::Time;

fn links() -> impl Strategy<Value = PcieLink> {
    (0usize..6, any::<bool>(), 0u32..5, 7u32..13, 7u32..13, 1u32..40).prop_map(
        |(generation, is_cxl, lanes, payload, read, outstanding_reads)| PcieLink {
            generation: PcieGeneration::ALL[generation],
            is_cxl,
            lanes: 1 << lanes,
            max_payload_bytes: 1 << payload,
            max_read_bytes: 1 << read,
            outstanding_reads,
            ..PcieLink::x8(PcieGeneration::Gen1)
        },
    )
}

fn habits() -> impl Strategy<Value = QueueHabits> {
    (1u64..4, 1u64..9, 0u64..9, 0u64..9).prop_map(
        |(descriptors_per_frame, per_doorbell, frames_per_interrupt, frames_per_write_back)| QueueHabits {
            descriptors_per_frame,
            per_doorbell,
            frames_per_interrupt,
            frames_per_write_back,
        },
    )
}

fn practices() -> impl Strategy<Value = DriverPractice> {
    (4u64..80, 1u64..40, 0u64..80, 100u64..5000, habits(), habits()).prop_map(
        |(descriptor_bytes, descriptors_per_fetch, frame_header_bytes, frame_payload_bytes, transmit, receive)| {
            DriverPractice {
                name: "drawn",
                descriptor_bytes,
                line_bytes: 64,
                descriptors_per_fetch,
                frame_header_bytes,
                frame_payload_bytes,
                transmit,
                receive,
            }
        },
    )
}

fn platforms() -> impl Strategy<Value = DmaPlatform> {
    (links(), practices(), 256u64..20_000, 256u64..20_000).prop_map(
        |(link, practice, host_buffer_bytes, device_buffer_bytes)| DmaPlatform {
            link,
            practice,
            host_buffer_bytes,
            device_buffer_bytes,
            ..DmaPlatform::throughput()
        },
    )
}

fn streams() -> impl Strategy<Value = MessageStream> {
    let load = prop_oneof![
        (8u64..40).prop_map(MessageLoad::InFlight),
        (0u64..3000).prop_map(|gap| MessageLoad::Every(Time::ns(gap)))
    ];
    (any::<bool>(), 0u8..4, 0u64..9000, 1u64..60, load).prop_map(|(receives, priority, message_bytes, count, load)| {
        let way = if receives { MessageWay::Receive } else { MessageWay::Transmit };
        MessageStream { way, priority, message_bytes, count, load }
    })
}

fn rules() -> impl Strategy<Value = QueueArbitration> {
    prop::sample::select(QueueArbitration::ALL.to_vec())
}

fn movers() -> impl Strategy<Value = DataMover> {
    prop::sample::select(DataMover::ALL.to_vec())
}

/// Without what depends on times.
fn packets_of(traffic: LinkTraffic) -> LinkTraffic {
    LinkTraffic { link_layer: 0, flits: 0, ..traffic }
}

proptest! {
    /// Whatever the platform and the load, the link carries the bytes of the sum, class by class.
    #[test]
    fn the_link_carries_what_the_closed_form_says(
        platform in platforms(), mover in movers(), arbitration in rules(), stream in streams(),
    ) {
        let result = simulate(&platform, mover, arbitration, &[stream]);
        let sum = closed_form_traffic(&platform, mover, &stream);
        prop_assert_eq!((packets_of(result.down), packets_of(result.up)), (sum.down, sum.up));
    }

    /// Nothing is lost or sent twice with several queues, few credits and few tags, and each byte
    /// of the link is payload or overhead.
    #[test]
    fn every_message_arrives_and_every_byte_is_accounted_for(
        platform in platforms(), mover in movers(), arbitration in rules(),
        all in prop::collection::vec(streams(), 1..5),
    ) {
        let result = simulate(&platform, mover, arbitration, &all);
        let mut payload = 0;
        for (stream, seen) in all.iter().zip(&result.streams) {
            prop_assert_eq!(seen.messages, stream.count);
            prop_assert!(seen.mean_latency <= seen.max_latency && seen.max_latency <= result.elapsed);
            let frames = stream.message_bytes.div_ceil(platform.practice.frame_payload_bytes).max(1);
            payload += stream.count * (stream.message_bytes + frames * platform.practice.frame_header_bytes);
        }
        let both = result.both();
        prop_assert_eq!(both.payload, payload);
        let by_class: u64 = TrafficClass::ALL.into_iter().map(|class| both.of(class)).sum();
        prop_assert_eq!(by_class, both.total());
        prop_assert_eq!(both.packets() + both.link_layer + both.flits, both.total());
        if mover == DataMover::Integrated {
            prop_assert_eq!(both.control(), 0);
        }
        let framing = platform.link.framing();
        prop_assert_eq!(framing == LinkFraming::Packets, both.flits == 0);
        prop_assert_eq!(framing == LinkFraming::Flits, both.link_layer == 0);
        let unit = [(LinkFraming::Flits, 256), (LinkFraming::CxlFlits, 68)].into_iter().find(|(f, _)| *f == framing);
        for way in [result.down, result.up] {
            prop_assert_eq!(way.total() % unit.map_or(1, |(_, bytes)| bytes), 0);
            // No direction carried more than its rate allows.
            let least = way.total() as f64 / platform.link.bytes_per_s();
            let spare = 2e-6 + 1e-12 * (way.total() as f64);
            prop_assert!(mover == DataMover::Descriptors || least <= result.elapsed.as_s() + spare);
        }
        prop_assert!(result.max_buffered_bytes <= platform.host_buffer_bytes.max(platform.link.max_payload_bytes) + 15);
    }

    /// One message with nothing else on the link takes the time of the sum, to the picosecond.
    #[test]
    fn one_message_takes_what_the_closed_form_says(
        link in links(), mover in movers(), bytes in 1u64..1500, descriptor in 4u64..33, one_way in 0u64..2000,
        turnaround in 0u64..2000,
    ) {
        let link = PcieLink { acknowledge_after: None, is_cxl: false, max_read_bytes: 2048, ..link };
        prop_assume!(link.generation != PcieGeneration::Gen6);
        let practice = DriverPractice {
            descriptor_bytes: descriptor,
            frame_header_bytes: 0,
            frame_payload_bytes: 1500,
            ..DriverPractice::text()
        };
        let mut platform = DmaPlatform { link, practice, device_buffer_bytes: 4096, ..DmaPlatform::throughput() };
        platform.costs.one_way = Time::ns(one_way);
        platform.costs.payload_turnaround = Time::ns(turnaround);
        let stream = MessageStream::one_by_one(MessageWay::Transmit, bytes, 3);
        let result = simulate(&platform, mover, QueueArbitration::Fifo, &[stream]);
        let sum = closed_form_latency(&platform, mover, bytes);
        prop_assert_eq!((result.streams[0].mean_latency, result.streams[0].max_latency), (sum, sum));
    }

    /// A larger message of as many frames never has a larger share of control.
    #[test]
    fn a_larger_message_never_has_a_larger_share_of_control(
        platform in platforms(), receives in any::<bool>(), frames in 1u64..6, less in 0u64..5000, more in 0u64..5000,
    ) {
        let way = if receives { MessageWay::Receive } else { MessageWay::Transmit };
        let full = platform.practice.frame_payload_bytes;
        let share = |message_bytes| {
            // As many as complete every group.
            let stream = MessageStream {
                load: MessageLoad::InFlight(8),
                ..MessageStream::one_by_one(way, message_bytes, 840)
            };
            let sum = closed_form_traffic(&platform, DataMover::Descriptors, &stream);
            sum.down.and(&sum.up).control_share()
        };
        let (less, more) = (less.min(more) % full + 1, less.max(more) % full + 1);
        let (less, more) = ((frames - 1) * full + less.min(more), (frames - 1) * full + less.max(more));
        prop_assert!(share(more) <= share(less), "{} B: {}, {} B: {}", less, share(less), more, share(more));
    }

    /// Nor do twice as many full frames, where fetches fill their lines.
    #[test]
    fn twice_as_many_frames_never_have_a_larger_share_of_control(
        link in links(), receives in any::<bool>(), frames in 1u64..40, batch in 1u64..30,
    ) {
        let way = if receives { MessageWay::Receive } else { MessageWay::Transmit };
        let sum = |frames: u64, per_doorbell| {
            let mut platform = DmaPlatform { link, ..DmaPlatform::throughput() };
            platform.practice.transmit.per_doorbell = per_doorbell;
            let bytes = frames * platform.practice.frame_payload_bytes;
            let sum = closed_form_traffic(&platform, DataMover::Descriptors, &MessageStream::one_by_one(way, bytes, 960));
            sum.down.and(&sum.up)
        };
        prop_assert!(sum(2 * frames, 1).control_share() <= sum(frames, 1).control_share());
        // Doorbells for more messages at a time are never more control.
        prop_assert!(sum(frames, 2 * batch).control() <= sum(frames, batch).control());
    }

    /// The link never carries more than its rate.
    #[test]
    fn rates_are_bounded(platform in platforms(), mover in movers(), bytes in 1u64..20_000) {
        let stream = MessageStream { load: MessageLoad::InFlight(64), ..MessageStream::one_by_one(MessageWay::Transmit, bytes, 240) };
        let platform = DmaPlatform { device_buffer_bytes: 64 << 10, ..platform };
        let result = simulate(&platform, mover, QueueArbitration::Fifo, &[stream]);
        let most = max_rate(&platform, mover, &stream);
        // What is under way when the first quarter has arrived counts in full.
        prop_assert!(result.streams[0].bytes_per_s <= most * 1.6, "{} of {most}", result.streams[0].bytes_per_s);
    }
}

/// The sums of the text, in events: to the picosecond.
#[test]
fn the_latencies_of_figures_8_and_9_are_the_paper_s() {
    let platform = DmaPlatform::latency();
    let alone = |platform: &DmaPlatform, mover| {
        let stream = MessageStream::one_by_one(MessageWay::Transmit, 64, 1);
        simulate(platform, mover, QueueArbitration::Fifo, &[stream]).streams[0].mean_latency
    };
    assert_eq!(DataMover::ALL.map(|mover| alone(&platform, mover)), [Time::ns(1770), Time::ns(350)]);
    // With bytes on the link that the delays were measured on, the path by descriptors is the same;
    // the push has 88 bytes where the doorbell had 24, of half a nanosecond each.
    let link = DmaPlatform::measured_link();
    let costs = MeasuredDelays::paper().on(&link);
    let bytes = DmaPlatform { link, costs, ..platform };
    assert_eq!(DataMover::ALL.map(|mover| alone(&bytes, mover)), [Time::ns(1770), Time::ns(350 + 32)]);
}

/// By hand, on 8 lanes of generation 6 (64 bytes a nanosecond): a flit takes 4 ns, however little
/// is in it, and packets of 272 and 60 bytes need two flits of 236.
#[test]
fn packets_wait_for_the_end_of_their_flit() {
    let link = PcieLink::x8(PcieGeneration::Gen6);
    let platform = DmaPlatform { link, ..DmaPlatform::latency() };
    for (bytes, flits) in [(1, 1), (64, 1), (300, 2)] {
        let stream = MessageStream::one_by_one(MessageWay::Transmit, bytes, 1);
        let result = simulate(&platform, DataMover::Integrated, QueueArbitration::Fifo, &[stream]);
        assert_eq!(result.streams[0].mean_latency, Time::ns(350) + Time::ns(4) * flits);
        assert_eq!((result.down.total(), result.up.total()), (256 * flits, 0));
    }
}

/// By hand, on 8 lanes of generation 1 (half a nanosecond a byte): 88 bytes of data, and behind
/// them 24 of an interrupt, or 64 bytes into memory of 8.53 GB/s (7.503 ns), 50 ns and 20 ns.
#[test]
fn received_messages_are_told_of() {
    let link = DmaPlatform::measured_link();
    let costs = MeasuredDelays::paper().on(&link);
    let mut platform = DmaPlatform { link, costs, ..DmaPlatform::latency() };
    platform.practice.receive.frames_per_interrupt = 1;
    let stream = MessageStream::one_by_one(MessageWay::Receive, 64, 1);
    let latencies = DataMover::ALL
        .map(|mover| simulate(&platform, mover, QueueArbitration::Fifo, &[stream]).streams[0].mean_latency);
    let data = Time::ns(218 + 44);
    assert_eq!(latencies, [data + Time::ns(12), data + Time::ps(7_503) + Time::ns(70)]);
}

#[test]
fn every_published_number_is_met_within_its_tolerance() {
    let figures = paper_figures();
    let mut seen = 0;
    for figure in &figures.figures {
        for DmaFinding { what, unit, published, ours, standing } in &figure.findings {
            let Some(published) = published else { continue };
            // Exact to what the paper prints: its percentages are whole, and 2.5 has one digit.
            let tolerance = match (standing, *unit) {
                (FindingStanding::Input, _) => 1e-9,
                (_, "%") if what.ends_with("(paper: below)") => {
                    assert!(ours < published, "{what}: {ours} %");
                    continue;
                }
                (FindingStanding::Calibrated, "%") => 1.0,
                (_, "%") => 0.5,
                (_, "Gb/s") => 0.05,
                _ => 1e-6 * published,
            };
            assert!((ours - published).abs() <= tolerance, "{}: {what}: {ours}, not {published}", figure.title);
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen} numbers");
    // Small messages by size and direction: descriptors and doorbells go down, requests and notices
    // up.
    let transmit = figures.shares.iter().find(|s| s.way == MessageWay::Transmit && s.message_bytes == 64).unwrap();
    let each = |bytes: u64| bytes as f64 / 2048.0;
    assert_eq!([transmit.down, transmit.up].map(|t| each(t.descriptors)), [84.0, 24.0]);
    assert_eq!((each(transmit.down.doorbells), each(transmit.up.interrupts)), (24.0, 24.0));
    assert_eq!([transmit.down, transmit.up].map(|t| each(t.payload)), [118.0, 0.0]);
}

/// The shares depend on choices that the text leaves open: with write-backs 16 % is out of reach.
#[test]
fn write_backs_are_more_control_than_the_paper_saw() {
    let platform = DmaPlatform { practice: DriverPractice::with_write_backs(), ..DmaPlatform::throughput() };
    let shares = link_shares(&platform, &[64]);
    // Control and all, by hand: 27 fetched, 22 written back, 48 for 64 frames; 144 of payload.
    let told = 48.0 / 64.0;
    assert!((shares[0].control - (49.0 + told) / (193.0 + told)).abs() < 1e-9, "{}", shares[0].control);
    // A doorbell 24, a line 108, a write-back 40, an interrupt for 64; reads of 100 and 108.
    let told = 24.0 / 64.0;
    assert!((shares[1].control - (172.0 + told) / (380.0 + told)).abs() < 1e-9, "{}", shares[1].control);
}

/// Priorities in the device's engine leave a small message behind the answers to the bulk
/// transfer's requests; those of the integrated engine leave it behind one packet.
#[test]
fn the_integrated_engine_keeps_priorities() {
    let rows = priorities(&DmaPlatform::throughput(), 64);
    let row = |mover, arbitration| *rows.iter().find(|r| r.mover == mover && r.arbitration == arbitration).unwrap();
    for mover in DataMover::ALL {
        let (fifo, first) = (row(mover, QueueArbitration::Fifo), row(mover, QueueArbitration::Priority));
        assert!(first.alone <= first.mean && first.mean < fifo.mean && first.max <= fifo.max, "{rows:#?}");
        assert!(first.bulk_bytes_per_s > 0.9 * first.bulk_alone_bytes_per_s);
        // First come, first served means behind most of four messages of 64 KiB at 4 GB/s (66 us).
        assert!(fifo.mean > Time::ns(50_000), "{rows:#?}");
    }
    let (device, engine) = (
        row(DataMover::Descriptors, QueueArbitration::Priority),
        row(DataMover::Integrated, QueueArbitration::Priority),
    );
    let waits = |r: PriorityRow| r.mean - r.alone;
    assert!(waits(engine) * 4 < waits(device), "{:?} {:?}", waits(engine), waits(device));
}

#[test]
fn the_questions_have_the_answers_that_the_sizes_suggest() {
    let all = questions(&DmaPlatform::throughput(), 64);
    let of = |question: &str| &all.iter().find(|q| q.question.starts_with(question)).unwrap().answers;
    let falls = |answers: &[DmaAnswer], value: fn(&DmaAnswer) -> f64| {
        assert!(answers.windows(2).all(|w| value(&w[1]) <= value(&w[0]) + 1e-12), "{answers:#?}");
    };
    falls(of("bytes of a message"), |a| a.transmit_control);
    falls(of("messages a doorbell"), |a| a.transmit_control);
    falls(of("descriptors a fetch"), |a| a.transmit_control);
    falls(of("lanes"), |a| a.latency[1].as_us());
    falls(of("lanes"), |a| -a.bulk_bytes_per_s[1]);
    falls(of("bytes of the device's buffer"), |a| -a.bulk_bytes_per_s[1]);
    falls(of("largest payload"), |a| -a.bulk_bytes_per_s[0]);
    let generations = of("generation");
    assert_eq!(generations.len(), 9);
    falls(&generations[..3], |a| a.latency[0].as_us());
    // Packets in flits of 256 bytes have no frames of their own, of which control has many.
    let (fifth, sixth) = (&generations[6], &generations[8]);
    assert!(sixth.choice.contains("flits") && sixth.transmit_control < fifth.transmit_control);
}
