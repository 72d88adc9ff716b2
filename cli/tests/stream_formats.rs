//! What `dpipe stream` compresses is read by the tools of the formats, and what they write is read
//! by it: under every placement.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::fs;
use std::process::{Command, Stdio};

use scene::streams::{bad, bytes, from_file, good, stream};
use scene::{folder, on_path};

/// The tool, how it compresses, our names of the two ways, and the ways in which the tool may
/// compress.
const FORMATS: [(&str, &str, &str, &[&str]); 3] = [
    ("lz4", "lz4", "unlz4", &["-c", "-1 -c -BD", "-9 -c -B4", "-c --content-size", "-c -l"]),
    ("zstd", "zstd=6", "unzstd", &["-c", "-19 -c", "-c --no-check", "-1 -c --fast"]),
    ("gzip", "gzip=1", "gunzip", &["-c", "-9 -c", "-1 -c -n"]),
];
const PLACEMENTS: [&str; 3] = ["application", "central", "distributed"];

/// Bytes that compress, and bytes that do not.
fn sample() -> Vec<u8> {
    let text = (0..400_000u32).flat_map(|n| (n / 3).to_le_bytes());
    text.chain(bytes(9, 500_000)).collect()
}

fn tool(program: &str, arguments: &str, file: &std::path::Path) -> Vec<u8> {
    let output = Command::new(program).args(arguments.split(' ')).arg(file).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn each_tool_reads_ours_and_we_read_theirs() {
    for (program, pack, unpack, ways) in FORMATS {
        if !on_path(program) {
            println!("SKIPPED: {pack} and {unpack}: there is no {program}");
            continue;
        }
        let folder = folder();
        let (input, out, back) = (folder.path("in"), folder.path("out"), folder.path("back"));
        for data in [sample(), Vec::new(), b"x".to_vec()] {
            fs::write(&input, &data).unwrap();
            for (placement, blocks) in PLACEMENTS.iter().zip(["1M", "100000", "65537"]) {
                let mut command = stream(&from_file(&input), pack, &out);
                let report = good(command.args(["--placement", placement, "--block-size", blocks]));
                assert_eq!((&report["verified"], &report["runs"][0]["due_from"]), (&true.into(), &"replay".into()));
                assert!(tool(program, "-d -c", &out) == data, "{program} -d of {placement} {blocks}");
            }
            for (at, way) in ways.iter().enumerate() {
                let packed = tool(program, way, &input);
                // Two frames are one stream.
                fs::write(&out, packed.repeat(2)).unwrap();
                let mut command = stream(&from_file(&out), unpack, &back);
                let report = good(command.args(["--placement", PLACEMENTS[at % 3], "--block-size", "300000"]));
                assert_eq!(report["verified"], true);
                assert!(fs::read(&back).unwrap() == data.repeat(2), "{unpack} of {program} {way}");
            }
        }
        // All of it in one: what goes in comes out.
        fs::write(&input, sample()).unwrap();
        good(&mut stream(&from_file(&input), &format!("crc32,{pack},xor=9,xor=9,{unpack}"), &back));
        assert!(fs::read(&back).unwrap() == sample());
    }
}

#[test]
fn what_is_damaged_cut_or_followed_by_something_else_gets_no_name() {
    for (_, pack, unpack, _) in FORMATS {
        let folder = folder();
        let (input, packed, out) = (folder.path("in"), folder.path("packed"), folder.path("out"));
        fs::write(&input, sample()).unwrap();
        fs::write(&out, "what was there before").unwrap();
        good(&mut stream(&from_file(&input), pack, &packed));
        let whole = fs::read(&packed).unwrap();
        let mut damaged = whole.clone();
        damaged[whole.len() / 2] ^= 4;
        let wrong: [(&str, &[u8]); 5] = [
            ("cut", &whole[..whole.len() - 1]),
            ("cut", &whole[..whole.len() / 2]),
            ("followed", &[&whole[..], b"and more"].concat()),
            ("damaged", &damaged),
            ("nothing", b""),
        ];
        for (at, (what, data)) in wrong.into_iter().enumerate() {
            fs::write(&packed, data).unwrap();
            // Found before anything is started, and by the device.
            for more in [&["--credits", "4"][..], &["--no-verify", "--placement", PLACEMENTS[at % 3]]] {
                let error = bad(stream(&from_file(&packed), unpack, &out).args(more));
                assert!(error.contains("compress"), "{unpack}, {what}, {more:?}: {error}");
                assert_eq!(fs::read(&out).unwrap(), b"what was there before", "{unpack}, {what}");
            }
        }
        assert_eq!(folder.names().unwrap(), ["in", "out", "packed"]);
    }
}
