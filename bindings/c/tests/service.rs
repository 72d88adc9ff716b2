//! The client of `dpiped` in C and in C++, against a service in this process.
#![allow(clippy::unwrap_used)]

mod building;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use building::{Build, Built, C, CPP, SANITIZERS, has};
use datapipes::service::server::{Listener, Server, ServerOptions, ServiceLog};
use datapipes_testkit::{PATIENCE, TempFolder, bounded, ended};

/// Runs a program, and ends the service when the program asks for it.
fn run(build: &Build<'_>, source: &str) {
    let built = Built::from(build, source);
    // The path of a socket is short.
    let folder = TempFolder::new().unwrap();
    let socket = folder.path("s");
    let options = ServerOptions::default().log(ServiceLog::to(std::io::sink()));
    let server = Server::start(&datapipes::discover(), Listener::bind(&socket, 0o600).unwrap(), options).unwrap();
    let mut command = built.command();
    command.env("SOCKET", &socket).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let stdout = child.stdout.take().unwrap();
    let (mut said, line) = bounded(source, move || {
        let (mut said, mut line) = (BufReader::new(stdout), String::new());
        said.read_line(&mut line).unwrap();
        (said, line)
    });
    assert_eq!(line, "end it\n", "{source}: {:?}", ended(&mut child));
    assert!(server.stop(PATIENCE));
    child.stdin.take().unwrap().write_all(b"x").unwrap();
    let status = ended(&mut child);
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert!(status.success() && rest == "everything holds\n", "{source}: {status}\n{rest}");
}

#[test]
fn the_client_in_c() {
    if has("cc", "the_client_in_c") {
        run(&C, "client.c");
    }
}

#[test]
fn the_client_under_the_sanitizers() {
    if has("cc", "the_client_under_the_sanitizers") {
        run(&Build { flags: SANITIZERS, ..C }, "client.c");
    }
}

#[test]
fn the_client_in_cpp() {
    if has("c++", "the_client_in_cpp") {
        run(&CPP, "client.cpp");
    }
}
