//! Sorted parts that are kept where they were made: a sort in tasks, some of which read blocks as
//! files and some by connections, and what happens where blocks are lost.
//!
//! Every failure prints the seed; `DATAPIPES_SEED` replays it.
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod scene;

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;

use datapipes_core::{Error, ErrorKind, Result, Ssd};
use datapipes_sort::text::{KeySpec, TextOptions};
use datapipes_sort::{
    BlockClient, BlockKeeper, BlockTicket, Input, Output, PlacedRecord, RecordBorders, RecordFormat, RecordTally,
    ShuffleOrder, SortReport, UnnamedOutput, merge,
};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, socket_with};
use scene::{Folder, Random, assert_same, seed, sort, usual_machine};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const TICKET: [u8; 32] = [9; 32];

fn keeper() -> BlockKeeper {
    let keeper = BlockKeeper::start(HERE).unwrap();
    keeper.admit(BlockTicket::new(TICKET));
    keeper
}

fn client() -> BlockClient {
    BlockClient::new(BlockTicket::new(TICKET))
}

fn lines(options: &TextOptions) -> RecordFormat {
    RecordFormat::Lines { order: options.compile().unwrap(), terminator: b'\n' }
}

fn formats() -> Vec<(&'static str, RecordFormat, bool)> {
    let keyed = TextOptions::default().keys(vec![KeySpec::parse(b"2,2n").unwrap()]).separator(b' ');
    vec![
        ("lines", lines(&TextOptions::default()), false),
        ("keyed", lines(&keyed), false),
        ("stable", lines(&keyed.clone().stable(true)), false),
        ("unique keys", lines(&keyed.unique(true)), true),
        ("records", RecordFormat::Records { len: 7, key_at: 2, key_len: 3, reverse: false }, false),
    ]
}

fn file_of(random: &mut Random, format: &RecordFormat) -> Vec<u8> {
    let many = random.pick(&[1, 300, 30_000]);
    let values = random.pick(&[1, 3, 1 << 30]);
    match format {
        RecordFormat::Records { len, .. } => random.bytes(many * len),
        _ => (0..many).flat_map(|i| format!("{i} {} x\n", random.below(values)).into_bytes()).collect(),
    }
}

/// Sorts a part into a file without a name, has it kept, and returns its number and cuts.
fn kept_part(
    folder: &Folder,
    (format, unique): (&RecordFormat, bool),
    order: &ShuffleOrder,
    bytes: &[u8],
    (part, splitters): (u64, &[PlacedRecord]),
    keeper: &BlockKeeper,
) -> (u64, Vec<u64>, SortReport) {
    let path = folder.put("in/part", bytes);
    fs::create_dir_all(folder.path("kept")).unwrap();
    let output = Arc::new(UnnamedOutput::in_folder(&folder.path("kept"), bytes.len() as u64 + 1).unwrap());
    let job = folder.job(format.clone(), &[path]).unique(unique).output(Output::Place(output.clone()));
    let report = sort(job).unwrap();
    let borders = RecordBorders::over(order, output.file().unwrap(), Path::new("a part")).unwrap();
    let cuts = order.cuts_of_file(&borders, part, splitters).unwrap();
    let mut sorted = vec![0; report.bytes_out as usize];
    std::os::unix::fs::FileExt::read_exact_at(&output.file().unwrap(), &mut sorted, 0).unwrap();
    let in_memory: Vec<u64> = order.cuts(&sorted, part, splitters).unwrap().into_iter().map(|cut| cut as u64).collect();
    assert_eq!(cuts, in_memory);
    let number = client().keep(keeper.local_name(), output.file().unwrap()).unwrap();
    (number, cuts, report)
}

fn opened(keeper: &BlockKeeper, file: u64, from: u64, to: u64) -> Input {
    let ssd = Ssd::from_fd(client().open(keeper.local_name(), file).unwrap().into(), "a part").unwrap();
    Input::Range { ssd, from, to }
}

fn merged(folder: &Folder, format: &RecordFormat, unique: bool, inputs: Vec<Input>, name: &str) -> Result<SortReport> {
    let job = folder.job(format.clone(), &[]).inputs(inputs).output(Output::file(folder.path(name)));
    merge(usual_machine(), job.unique(unique).in_order(true))
}

fn add(sum: &mut (u64, u64, u64), tally: RecordTally) {
    *sum = (sum.0 + tally.records, sum.1 + tally.bytes, sum.2.wrapping_add(tally.sum));
}

#[test]
fn ranges_of_kept_parts_are_what_one_sort_gives() {
    let seed = seed(41);
    println!("DATAPIPES_SEED={seed}");
    let random = &mut Random(seed);
    for (name, format, unique) in formats() {
        let order = ShuffleOrder::new(&format, unique).unwrap();
        for round in 0..3 {
            let folder = Folder::new();
            let nodes = [keeper(), keeper()];
            let parts: Vec<Vec<u8>> = (0..1 + random.below(9)).map(|_| file_of(random, &format)).collect();
            let ranges = 1 + random.below(5);
            let case = format!("{name}, round {round}: {} parts, {ranges} ranges", parts.len());
            let mut samples = Vec::new();
            for (part, bytes) in parts.iter().enumerate() {
                let borders = RecordBorders::open(&order, &folder.put("in/part", bytes)).unwrap();
                let near = (0..bytes.len() as u64).step_by(1 + bytes.len() / 50);
                let found = near.filter_map(|at| borders.sample(at).unwrap());
                samples.extend(found.map(|(_, record)| PlacedRecord { record, part: part as u64 }));
            }
            let splitters = order.splitters(samples, ranges);
            let (mut read, mut written) = ((0, 0, 0), (0, 0, 0));
            let mut kept = Vec::new();
            for (part, bytes) in parts.iter().enumerate() {
                let node = &nodes[part % 2];
                let at = (part as u64, &splitters[..]);
                let (number, cuts, report) = kept_part(&folder, (&format, unique), &order, bytes, at, node);
                add(&mut read, report.written);
                kept.push((part % 2, number, cuts));
            }
            let mut whole = Vec::new();
            for range in 0..=splitters.len() {
                let here = range % 2;
                let blocks = kept.iter().map(|(node, file, cuts)| (*node, *file, cuts[range], cuts[range + 1]));
                let inputs: Vec<Input> = blocks
                    .filter(|(_, _, from, to)| from < to)
                    .map(|(node, file, from, to)| match node == here {
                        true => opened(&nodes[node], file, from, to),
                        false => client().fetch(nodes[node].address(), file, from, to).unwrap(),
                    })
                    .collect();
                if inputs.is_empty() {
                    continue;
                }
                let name = format!("out/{range}");
                let report = merged(&folder, &format, unique, inputs, &name).unwrap();
                add(&mut written, report.written);
                add(&mut written, report.dropped);
                let bound = |i: usize| splitters.get(i).map(|splitter| &splitter.record[..]);
                let between = [range.checked_sub(1).and_then(bound), bound(range)];
                let borders = RecordBorders::open(&order, &folder.path(&name)).unwrap();
                assert!(order.file_lies_between(&borders, between).unwrap(), "{case}");
                whole.extend(fs::read(folder.path(&name)).unwrap());
            }
            assert_eq!(read, written, "{case}");
            let all = folder.put("in/all", &parts.concat());
            sort(folder.job(format.clone(), &[all]).unique(unique)).unwrap();
            assert_same(&whole, &folder.sorted(), &case);
            assert_eq!(nodes[0].kept() + nodes[1].kept(), parts.len());
            assert_eq!(fs::read_dir(folder.path("kept")).unwrap().count(), 0, "{case}: a part has a name");
        }
    }
}

#[test]
fn cuts_of_a_file_are_those_of_its_bytes_also_where_lines_are_long() {
    let folder = Folder::new();
    let order = ShuffleOrder::new(&lines(&TextOptions::default()), false).unwrap();
    let mut text: Vec<Vec<u8>> = (0..40_u8).map(|i| vec![b'a' + i % 20; usize::from(i) * 1777]).collect();
    text.sort();
    let sorted: Vec<u8> = text.iter().flat_map(|line| [&line[..], b"\n"].concat()).collect();
    let borders = RecordBorders::open(&order, &folder.put("in/x", &sorted)).unwrap();
    let record = |record: &[u8]| PlacedRecord { record: record.to_vec(), part: 1 };
    let splitters = [record(b"\n"), record(b"aa\n"), record(b"ccc\n"), record(b"m\n"), record(b"zz\n")];
    for part in 0..3 {
        let cuts = order.cuts_of_file(&borders, part, &splitters).unwrap();
        let want: Vec<u64> = order.cuts(&sorted, part, &splitters).unwrap().iter().map(|cut| *cut as u64).collect();
        assert_eq!(cuts, want);
    }
    assert!(order.file_lies_between(&borders, [Some(b"\n"), Some(b"z\n")]).unwrap());
    assert!(!order.file_lies_between(&borders, [Some(b"a\n"), None]).unwrap());
    assert!(!order.file_lies_between(&borders, [None, Some(b"t\n")]).unwrap());
}

/// A file that is kept, of so many lines.
fn some_lines(folder: &Folder, keeper: &BlockKeeper, count: usize) -> (u64, u64) {
    let text: Vec<u8> = (0..count).flat_map(|i| format!("{i:09}\n").into_bytes()).collect();
    let file = fs::File::open(folder.put("in/kept", &text)).unwrap();
    (client().keep(keeper.local_name(), file).unwrap(), text.len() as u64)
}

fn kind<T>(outcome: Result<T>) -> ErrorKind {
    outcome.err().unwrap().kind()
}

#[test]
fn what_is_not_there_is_told_and_no_ticket_opens_nothing() {
    let (folder, keeper) = (Folder::new(), keeper());
    let (file, len) = some_lines(&folder, &keeper, 100);
    let stranger = BlockClient::new(BlockTicket::new([8; 32]));
    assert_eq!(kind(stranger.open(keeper.local_name(), file)), ErrorKind::PermissionDenied);
    assert_eq!(kind(stranger.fetch(keeper.address(), file, 0, len)), ErrorKind::PermissionDenied);
    assert_eq!(
        kind(stranger.keep(keeper.local_name(), fs::File::open("/dev/null").unwrap())),
        ErrorKind::PermissionDenied
    );
    assert_eq!(keeper.kept(), 1);
    assert_eq!(kind(client().open(keeper.local_name(), file + 1)), ErrorKind::NotFound);
    assert_eq!(kind(client().fetch(keeper.address(), file + 1, 0, 10)), ErrorKind::NotFound);
    for (from, to) in [(0, len + 1), (20, 10), (u64::MAX, u64::MAX)] {
        assert_eq!(kind(client().fetch(keeper.address(), file, from, to)), ErrorKind::InvalidInput, "{from} {to}");
    }
    assert!(client().has(keeper.address(), file).unwrap());
    assert!(!client().has(keeper.address(), file + 1).unwrap());
    // What is kept for one sort is not there for another, and goes with it.
    keeper.admit(BlockTicket::new([8; 32]));
    assert_eq!(kind(stranger.open(keeper.local_name(), file)), ErrorKind::NotFound);
    assert_eq!(kind(stranger.fetch(keeper.address(), file, 0, len)), ErrorKind::NotFound);
    let its = stranger.keep(keeper.local_name(), fs::File::open("/dev/null").unwrap()).unwrap();
    assert_eq!((kind(client().open(keeper.local_name(), its)), keeper.kept()), (ErrorKind::NotFound, 2));
    keeper.dismiss(&BlockTicket::new([8; 32]));
    assert_eq!((kind(stranger.open(keeper.local_name(), its)), keeper.kept()), (ErrorKind::PermissionDenied, 1));
    assert!(client().open(keeper.local_name(), file).is_ok());
    // Somebody who says nothing that makes sense is left alone, and others are served.
    let mut garbage = TcpStream::connect(keeper.address()).unwrap();
    garbage.write_all(&[0xff; 200]).unwrap();
    let silent = TcpStream::connect(keeper.address()).unwrap();
    assert!(client().fetch(keeper.address(), file, 0, len).is_ok());
    drop((garbage, silent));
    let (name, address) = (keeper.local_name().to_owned(), keeper.address());
    drop(keeper);
    assert_eq!(kind(client().open(&name, file)), ErrorKind::Unavailable);
    assert_eq!(kind(client().fetch(address, file, 0, len)), ErrorKind::Unavailable);
    assert_eq!(kind(client().has(address, file)), ErrorKind::Unavailable);
}

#[test]
fn those_who_say_nothing_keep_nobody_waiting() {
    let (folder, keeper) = (Folder::new(), keeper());
    let name = SocketAddrUnix::new_abstract_name(keeper.local_name().as_bytes()).unwrap();
    let task = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        connect(&socket, &name).unwrap();
        socket
    };
    let silent_tasks = [task(), task()];
    let (file, len) = some_lines(&folder, &keeper, 100);
    // They are still waited for, and the one that asked was served all the same.
    for socket in &silent_tasks {
        let heard = recv(socket, &mut [0u8; 16][..], RecvFlags::empty());
        assert_eq!(heard.map(|(_, got)| got), Err(rustix::io::Errno::AGAIN));
    }
    // Of other machines, the first one is sent away before its time.
    let mut silent: Vec<TcpStream> = (0..129).map(|_| TcpStream::connect(keeper.address()).unwrap()).collect();
    assert_eq!(silent[0].read(&mut [0; 1]).unwrap(), 0);
    silent[128].set_nonblocking(true).unwrap();
    assert_eq!(silent[128].read(&mut [0; 1]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    assert!(client().fetch(keeper.address(), file, 0, len).is_ok());
}

/// Passes on a request, and so many bytes of what follows the answer.
fn cutting_proxy(to: SocketAddr, bytes: usize) -> SocketAddr {
    let listener = TcpListener::bind((HERE, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut near, _) = listener.accept().unwrap();
        let mut far = TcpStream::connect(to).unwrap();
        let mut request = [0; 72];
        near.read_exact(&mut request).unwrap();
        far.write_all(&request).unwrap();
        let mut passed = vec![0; 24 + bytes];
        far.read_exact(&mut passed).unwrap();
        near.write_all(&passed).unwrap();
    });
    address
}

#[test]
fn a_connection_that_ends_early_is_an_error_and_nothing_is_left() {
    let (folder, keeper) = (Folder::new(), keeper());
    let (file, len) = some_lines(&folder, &keeper, 100_000);
    let format = lines(&TextOptions::default());
    // Within a line, between two lines, and before the first.
    for passed in [0, 12_345, 500_000, len as usize - 10] {
        let proxy = cutting_proxy(keeper.address(), passed);
        let sent = client().fetch(proxy, file, 0, len).unwrap();
        let name = sent.name().display().to_string();
        let error: Error =
            merged(&folder, &format, false, vec![sent, opened(&keeper, file, 0, len)], "out/x").err().unwrap();
        assert!(error.context().contains(&name), "{error}");
        assert_eq!(error.kind(), ErrorKind::EndOfFile, "{error}");
        assert!(error.to_string().contains(&format!("{} bytes early", len as usize - passed)), "{error}");
        assert!(!folder.path("out/x").exists());
    }
}

#[test]
fn a_keeper_that_ends_breaks_what_it_sends() {
    let (folder, keeper) = (Folder::new(), keeper());
    let (file, len) = some_lines(&folder, &keeper, 3_000_000);
    let Input::Counted { fd, .. } = client().fetch(keeper.address(), file, 0, len).unwrap() else { panic!() };
    drop(keeper);
    // Much less than all of it is on the way.
    let mut got = Vec::new();
    let _ = TcpStream::from(fd).read_to_end(&mut got);
    assert!((got.len() as u64) < len, "{}", got.len());
}

#[test]
fn files_out_of_order_are_refused_where_order_was_promised() {
    let folder = Folder::new();
    let format = lines(&TextOptions::default());
    let good: Vec<u8> = (0..50_000).flat_map(|i| format!("{i:09}\n").into_bytes()).collect();
    let mut bad = good.clone();
    bad[400_000] = b'!';
    for count in [1, 5] {
        let mut inputs = vec![Input::open(&folder.put("in/bad", &bad)).unwrap()];
        inputs.extend((0..count).map(|i| Input::open(&folder.put(&format!("in/{i}"), &good)).unwrap()));
        assert_eq!(kind(merged(&folder, &format, false, inputs, "out/x")), ErrorKind::InvalidInput);
        assert!(!folder.path("out/x").exists());
    }
}
