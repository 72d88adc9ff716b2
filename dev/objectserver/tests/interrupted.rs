//! Signals to `dpipe` while a server says nothing: it ends soon, and leaves no upload.
#![allow(clippy::unwrap_used)]

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use datapipes_objectserver::{FaultProxy, ProxyFault, ProxyRequest, S3Server};
use datapipes_testkit::{Random, TempFolder, until};

fn built(test: &str) -> Option<std::path::PathBuf> {
    let program = std::env::current_exe().unwrap();
    let dpipe = program.parent().and_then(Path::parent).unwrap().join("dpipe");
    let has_objects = dpipe.exists()
        && !String::from_utf8_lossy(&Command::new(&dpipe).args(["copy", "s3://", "x"]).output().unwrap().stderr)
            .contains("built without objects");
    if !has_objects {
        println!("SKIPPED: {test}: dpipe was built without `--features object`");
    }
    has_objects.then_some(dpipe)
}

fn ask_to_stop(child: &Child, signal: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
}

/// Whether a request is one that the server never answers.
type Silent = fn(&ProxyRequest) -> bool;

#[test]
fn a_signal_ends_what_waits_for_a_server() {
    let Some(dpipe) = built("a_signal_ends_what_waits_for_a_server") else { return };
    let folder = TempFolder::under(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let server = S3Server::start(&folder.path("buckets")).unwrap();
    server.make_bucket("box").unwrap();
    let bytes = Random(5).bytes(20 << 20);
    server.put("box", "there", &bytes).unwrap();
    server.put("box", "target", b"old").unwrap();
    std::fs::write(folder.path("data"), &bytes).unwrap();
    let part: Silent = |request| request.method == "PUT" && request.target.contains("partNumber=2");
    let range: Silent = |request| request.method == "GET" && request.ranged;
    let begin: Silent = |request| request.method == "HEAD";
    let cases: [(&[&str], Silent, &str); 7] = [
        (&["copy", "data", "s3://box/target"], part, "-INT"),
        (&["sort", "data", "-o", "s3://box/target", "-S", "64M"], part, "-TERM"),
        (&["copy", "s3://box/there", "s3://box/target"], part, "-HUP"),
        (&["copy", "s3://box/there", "out"], range, "-INT"),
        (&["sort", "s3://box/there", "-o", "out"], range, "-INT"),
        (&["copy", "s3://box/there", "s3://box/target"], range, "-INT"),
        (&["copy", "s3://box/there", "out"], begin, "-INT"),
    ];
    for (words, silent, signal) in cases {
        // The proxy is asked for each request; that the silent one came is seen by a file.
        let (came, asked) = (folder.path("came"), folder.path("came"));
        let _ = std::fs::remove_file(&came);
        let proxy = FaultProxy::start(server.address(), move |request| match silent(request) {
            true => {
                std::fs::write(&asked, b"").unwrap();
                ProxyFault::Swallow
            }
            false => ProxyFault::Pass,
        })
        .unwrap();
        let mut command = Command::new(&dpipe);
        command.args(words).current_dir(&folder).envs(S3Server::settings_at(proxy.address())).env("HOME", folder.at());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until("the server was asked", || came.exists());
        ask_to_stop(&child, signal);
        // Without an end to the requests, this takes minutes, and the upload stays.
        let mut status = None;
        until(&format!("{words:?} has ended"), || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.unwrap().signal().is_some(), "{words:?}: {status:?}");
        assert_eq!(server.unfinished(), 0, "{words:?}");
        assert!(server.bytes("box", "target").unwrap() == b"old", "{words:?}");
        assert!(!folder.path("out").exists(), "{words:?}");
    }
}
