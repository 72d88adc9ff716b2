//! A newcomer's path: an empty crate outside the workspace adds `datapipes` with features, and runs
//! README's ten lines, a sort, a cached read and a log. The examples of the documents compile in
//! it.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use datapipes_testkit::TempFolder;

/// Returns README's example, over an existing file.
fn snippet(input: &Path) -> String {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let code = readme.split("```rust\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(code.lines().count() <= 12 && code.contains("pipe.transfer"), "README's example has changed:\n{code}");
    assert!(code.contains("\"/data/input\""), "the example opens another file:\n{code}");
    code.replace("/data/input", input.to_str().unwrap())
}

/// Returns functions that nobody calls: the Rust examples of each page of docs/.
fn examples_of_documents() -> String {
    let mut code = String::new();
    let mut pages: Vec<PathBuf> =
        std::fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    pages.sort();
    for page in pages.iter().filter(|page| page.extension().is_some_and(|is| is == "md")) {
        let name = page.file_stem().unwrap().to_str().unwrap().replace('-', "_");
        // The feature `object` would bring a hundred crates into this build.
        if name == "objects" {
            continue;
        }
        let text = std::fs::read_to_string(page).unwrap();
        for (at, block) in text.split("```rust\n").skip(1).enumerate() {
            let block = block.split("```").next().unwrap();
            code += &format!(
                "#[allow(dead_code, unused)]\nfn {name}_{at}() -> datapipes::Result<()> {{\n{block}\nOk(()) }}\n"
            );
        }
    }
    for page in ["cache", "durable", "fabric", "remote_memory", "service"] {
        assert!(code.contains(&format!("fn {page}_0()")), "docs has no example of {page}");
    }
    code
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(|dir| dir.join("Cargo.lock").exists()).unwrap().to_path_buf()
}

const REST: &str = r#"
fn sorted(input: &str, output: &str) -> datapipes::Result<()> {
    use datapipes::sort::{RecordFormat, SortJob, sort};
    let machine = datapipes::discover();
    let mut job = SortJob::new(&machine, RecordFormat::SORT_BENCHMARK, input, output)?;
    job.memory_bytes = 32 << 20;
    sort(&machine, job)?;
    Ok(())
}

fn cached(path: &str) -> datapipes::Result<Vec<u8>> {
    use datapipes::cache::{CacheOptions, FineGrained};
    let machine = datapipes::discover();
    let file = datapipes::Ssd::open(path)?;
    let fine = FineGrained::over(&file, CacheOptions::new(&machine).budget(4 << 20))?;
    let mut row = vec![0; 100];
    fine.read(1000, &mut row)?;
    fine.read(1000, &mut row)?;
    assert_eq!(fine.metrics().hits, 1);
    Ok(row)
}

fn logged(dir: &str) -> datapipes::Result<()> {
    use datapipes::durable::log::{Log, LogFolder, LogOptions};
    let machine = datapipes::discover();
    let options = LogOptions::default().segment_bytes(1 << 20).batch_bytes(64 << 10);
    let log = Log::open(&machine, LogFolder::at(&machine, dir), options)?;
    log.append(b"one")?.wait()?;
    log.close()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    ten_lines()?;
    sorted(&args[1], &args[2])?;
    assert_eq!(cached(&args[2])?, std::fs::read(&args[2])?[1000..1100]);
    logged(&args[3])?;
    println!("done");
    Ok(())
}
"#;

#[test]
fn an_empty_crate_uses_the_library() {
    let folder = TempFolder::under(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = folder.at();
    std::fs::create_dir(dir.join("src")).unwrap();
    // 700,000 records of 100 bytes are more than README's 64 MiB, and more than the memory of the
    // sort.
    let mut random = 1u64;
    let bytes: Vec<u8> = std::iter::repeat_with(|| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) as u8
    })
    .take(70_000_000)
    .collect();
    let (input, output) = (dir.join("input"), dir.join("output"));
    std::fs::write(&input, &bytes).unwrap();
    let manifest = format!(
        "[package]\nname = \"newcomer\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n[dependencies]\n\
         datapipes = {{ path = {:?}, features = [\"sort\", \"cache\", \"log\", \"fabric\", \"service\", \"net\"] }}\n",
        env!("CARGO_MANIFEST_DIR")
    );
    std::fs::write(dir.join("Cargo.toml"), manifest).unwrap();
    // The versions are those of the workspace: nothing is fetched.
    std::fs::copy(root().join("Cargo.lock"), dir.join("Cargo.lock")).unwrap();
    let code = format!(
        "fn ten_lines() -> datapipes::Result<()> {{\n{}\nlet _ = bytes; Ok(())\n}}\n{}{REST}",
        snippet(&input),
        examples_of_documents()
    );
    std::fs::write(dir.join("src/main.rs"), code).unwrap();
    let mut command = Command::new(env!("CARGO"));
    command.args(["run", "--offline", "--quiet", "--"]).arg(&input).arg(&output).arg(dir.join("log"));
    let target = root().join("target/newcomer");
    // Nobody debugs it, and it is built once.
    command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_INCREMENTAL", "0");
    let ran = command.current_dir(dir).env("CARGO_TARGET_DIR", target).env_remove("RUSTFLAGS").output().unwrap();
    let (said, why) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && said.ends_with("done\n"), "{}\n{said}\n{why}", ran.status);
    let sorted = std::fs::read(&output).unwrap();
    assert_eq!(sorted.len(), bytes.len());
    let keys: Vec<&[u8]> = sorted.chunks(100).map(|record| &record[..10]).collect();
    assert!(keys.is_sorted());
}
