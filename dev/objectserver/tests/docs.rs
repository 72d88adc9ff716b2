//! The example of docs/objects.md: it is the one below, and it runs.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use datapipes_objectserver::S3Server;
use datapipes_testkit::{Random, TempFolder, output_of};

/// The example, between the marks. What is indented here is not on the page.
fn example() -> datapipes::Result<()> {
    // The page begins here.
    use datapipes::object::{CreateOptions, ObjectClient};
    use datapipes::{Dram, Span};

    let client = ObjectClient::from_environment()?; // credentials and endpoint as the clouds' tools have them
    let machine = datapipes::discover();
    let source = client.open("s3://bucket/data")?; // pinned: if the object changes, reads of it fail
    let memory = Dram::allocate(source.len() as usize)?;
    let all = Span { source: 0, target: 0, len: source.len() };
    machine.connect(&source, &memory)?.transfer(all)?;

    let target = client.create("s3://bucket/copy", CreateOptions::default().expected_len(source.len()))?;
    machine.connect(&memory, &target)?.transfer(all)?;
    let object = target.publish(source.len())?; // now it is visible, as a whole
    println!("{object:?} {:?}", target.report());
    // The page ends here.
    Ok(())
}

fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

#[test]
fn the_page_has_the_example_that_is_compiled() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/objects.md")).unwrap();
    let block = page.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block of Rust");
    let source = include_str!("docs.rs");
    let (begin, end) = ("// The page begins here.\n", "// The page ends here.\n");
    let ours = source.split(begin).nth(1).and_then(|rest| rest.split(end).next()).unwrap();
    assert_eq!(lines(block), lines(ours));
}

#[test]
fn the_example_runs() {
    let folder = TempFolder::under(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let server = S3Server::start(&folder.path("buckets")).unwrap();
    server.make_bucket("bucket").unwrap();
    let bytes = Random(1).bytes(9_000_001);
    server.put("bucket", "data", &bytes).unwrap();
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "runs_the_example", "--ignored", "--nocapture"]);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
        again.env_remove(name);
    }
    let output = output_of(again.envs(server.settings()).env("HOME", folder.at())).unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("checksum_verified: true"), "{text}");
    assert!(server.bytes("bucket", "copy").unwrap() == bytes);
}

#[test]
#[ignore = "run by the_example_runs"]
fn runs_the_example() {
    example().unwrap();
}
