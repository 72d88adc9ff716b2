//! Metrics over HTTP: what honest clients get, and what hostile ones cannot do.
#![allow(clippy::unwrap_used)]

mod scene;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use datapipes_core::{ConnectFdOptions, ErrorKind};
use datapipes_service::ClientPlace;
use scene::{Dir, PATIENCE, Service, others_are_served};

/// The port at which a service says that its metrics are.
fn port(service: &Service) -> u16 {
    let log = service.log();
    let line = log.lines().find(|line| line.contains("metrics at http://")).unwrap();
    line.rsplit_once(':').unwrap().1.trim_end_matches("/metrics").parse().unwrap()
}

/// Sends bytes and reads until the service closes the connection.
fn answer(mut stream: impl Read + Write, request: &[u8]) -> String {
    // The service may answer, and close, before it has all.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(len @ 1..) = stream.read(&mut buffer) {
        answer.extend_from_slice(&buffer[..len]);
    }
    String::from_utf8(answer).unwrap()
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

fn value(text: &str, series: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(series) && line[series.len()..].starts_with(' '));
    line.unwrap_or_else(|| panic!("no {series} in {text}")).rsplit_once(' ').unwrap().1.parse().unwrap()
}

/// Fetches until a value is right: a text is given to all who ask within a moment.
fn until(service: &Service, series: &str, right: impl Fn(f64) -> bool) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        let text = answer(connect(port(service)), GET);
        if right(value(&text, series)) {
            return text;
        }
        assert!(Instant::now() < until, "{text}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn metrics_are_fetched_over_tcp_and_show_no_client() {
    let service = Service::start(&["--metrics", "0"]);
    others_are_served(&service);
    let _client = service.client();
    let text = until(&service, "datapipes_service_clients", |clients| clients == 1.0);
    assert!(
        text.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"),
        "{text}"
    );
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())) && head.contains("Connection: close"));
    assert_eq!(value(body, "datapipes_runtime_transfers_total{outcome=\"completed\"}"), 1.0);
    assert!(value(body, "datapipes_runtime_transfer_seconds_count{class=\"normal\"}") >= 1.0, "times are measured");
    assert!(!body.contains("datapipes_client_") && !body.contains("datapipes_flow_"), "{body}");
    let head = answer(connect(port(&service)), b"HEAD /metrics HTTP/1.0\r\n\r\n");
    assert!(
        head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n") && !head.contains("# HELP"),
        "{head}"
    );
    let other = answer(connect(port(&service)), b"GET /other HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(other.starts_with("HTTP/1.1 404 ") && other.contains("/metrics"), "{other}");
    // Only this machine reaches it.
    let listening = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let ours = format!("0100007F:{:04X}", port(&service));
    assert!(listening.lines().any(|line| line.contains(&ours) && line.contains(" 0A ")), "{listening}");
}

#[test]
fn a_unix_socket_shows_clients_to_those_who_may_open_it() {
    let dir = Dir::new();
    let path = dir.0.join("m");
    let flag = path.to_str().unwrap().to_owned();
    let service = Service::start(&["--metrics", &flag]);
    let _client = service.client();
    let fetch = || answer(UnixStream::connect(&path).unwrap(), GET);
    assert!(fetch().contains("datapipes_client_pipes{client=\""), "{}", fetch());
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    // Another service does not take it, and a service that ends removes it.
    let mut second = Command::new(env!("CARGO_BIN_EXE_dpiped"));
    second.arg("--socket").arg(dir.0.join("s")).args(["--metrics", &flag]);
    let refused = second.output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("another service is there"), "{refused:?}");
    service.signal(15);
    assert_eq!(service.end().0.code(), Some(0));
    assert!(!path.exists());
    assert!(!dir.0.join("s").exists(), "what could not start leaves no socket");
}

#[test]
fn hostile_clients_hold_neither_the_service_nor_its_memory() {
    let service = Service::start(&["--metrics", "0"]);
    let port = port(&service);
    answer(connect(port), GET);
    let memory = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", service.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let before = memory();
    // Many that say nothing, or one byte and no more: the oldest give way to one that asks.
    let mut silent: Vec<TcpStream> = (0..100).map(|_| connect(port)).collect();
    silent.iter_mut().step_by(2).for_each(|stream| {
        // It may have been closed already.
        let _ = stream.write_all(b"G");
    });
    assert!(answer(connect(port), GET).starts_with("HTTP/1.1 200"), "beside silent clients");
    // All of those end, those that were kept by their time.
    for mut stream in silent {
        let mut buffer = [0; 16];
        while let Ok(1..) = stream.read(&mut buffer) {}
    }
    // One that sends without an end, and reads nothing.
    let mut endless = connect(port);
    let mut sent = 0;
    while let Ok(len) = endless.write(&[b'x'; 1 << 16]) {
        sent += len;
        assert!(sent < 1 << 36, "nobody stops it");
    }
    // Garbage, a head that is too long, and another protocol.
    let long = [b"GET /metrics HTTP/1.1\r\nX: ", &[b'a'; 9000][..]].concat();
    assert!(answer(connect(port), &long).starts_with("HTTP/1.1 431 "));
    assert!(answer(connect(port), b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\n\0\xff").starts_with("HTTP/1.1 400 "));
    assert!(answer(connect(port), b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    // Clients that leave without reading.
    for _ in 0..50 {
        drop(connect(port).write_all(GET));
    }
    let text = until(&service, "datapipes_service_scrapes_total{outcome=\"refused\"}", |refused| refused >= 4.0);
    assert!(value(&text, "datapipes_service_scrapes_total{outcome=\"cut\"}") >= 80.0, "{text}");
    let grown = memory().saturating_sub(before);
    assert!(grown < 4 << 10, "{grown} KiB more");
    others_are_served(&service);
}

#[test]
fn metrics_at_a_passed_socket_need_no_network_of_their_own() {
    let dir = Dir::new();
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let socket = dir.0.join("s");
    let start = |names: &str, passed: Stdio| {
        let mut command = Command::new("sh");
        let script =
            format!("export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES={names}; exec \"$0\" \"$@\" 3<&0 </dev/null");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_dpiped"), "--socket"]).arg(&socket).stdin(passed);
        command
    };
    let passed = Stdio::from(std::os::fd::OwnedFd::from(listener.try_clone().unwrap()));
    let service = Service::of(start("metrics", passed), socket.clone(), Dir::new());
    assert!(answer(connect(port), GET).contains("datapipes_service_up_seconds"));
    assert!(service.client().status().is_ok());
    drop(service);
    let wrong = start("metrics", Stdio::from(std::fs::File::open("/dev/null").unwrap())).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("LISTEN_FDS, metrics"), "{wrong:?}");
}

#[test]
fn prometheus_itself_reads_the_metrics_and_answers_the_dashboard() {
    let (service, dir) = (Service::start(&["--metrics", "0", "--metrics-clients"]), Dir::new());
    others_are_served(&service);
    let _client = service.client();
    let Some(prometheus) = datapipes_testkit::Prometheus::start(&dir.0, port(&service)) else {
        println!("SKIPPED: prometheus_itself_reads_the_metrics_and_answers_the_dashboard: no program `prometheus`");
        return;
    };
    let ask = |query: &str| -> Option<serde_json::Value> { serde_json::from_str(&prometheus.query(query)?).ok() };
    let until = Instant::now() + PATIENCE;
    let scraped = || {
        // Two samples, so that there are rates.
        let answer = ask("count_over_time(datapipes_service_up_seconds[1m])")?;
        let count = answer["data"]["result"][0]["value"][1].as_str()?.parse::<f64>().ok()?;
        (count >= 3.0).then_some(())
    };
    while scraped().is_none() {
        assert!(Instant::now() < until, "it reads nothing: {:?}", ask("up"));
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("docs/grafana.json");
    let dashboard: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(page).unwrap()).unwrap();
    let (mut queries, mut with_result) = (0, Vec::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let asked = target["expr"].as_str().unwrap().replace("$__rate_interval", "1m").replace("$instance", ".*");
            let answer = ask(&asked).unwrap();
            assert_eq!(answer["status"], "success", "{asked}: {answer}");
            assert!(answer.get("warnings").is_none(), "{asked}: {answer}");
            if !answer["data"]["result"].as_array().unwrap().is_empty() {
                with_result.push(asked);
            }
            queries += 1;
        }
    }
    assert!(queries > 20 && ask("sum(").is_some_and(|answer| answer["status"] == "error"), "an error would be seen");
    // Of the queries about the service, those whose series exist have values.
    for name in ["datapipes_service_clients", "datapipes_client_mapped_bytes", "runtime_transfer_seconds_bucket"] {
        assert!(with_result.iter().any(|query| query.contains(name)), "nothing for {name}: {with_result:?}");
    }
}

#[test]
fn promtool_finds_nothing_wrong_with_the_metrics() {
    let service = Service::start(&["--metrics", "0", "--metrics-clients"]);
    others_are_served(&service);
    let _client = service.client();
    let text = answer(connect(port(&service)), GET);
    let body = text.split_once("\r\n\r\n").unwrap().1;
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        println!("SKIPPED: promtool_finds_nothing_wrong_with_the_metrics: no program `promtool`");
        return;
    };
    child.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_path_that_is_refused_has_nothing_left_beside_it() {
    let dir = Dir::new();
    let places = dir.0.join("places");
    std::fs::create_dir(&places).unwrap();
    std::fs::write(places.join("file"), "precious").unwrap();
    std::fs::create_dir(places.join("folder")).unwrap();
    std::os::unix::fs::symlink("nowhere", places.join("dangling")).unwrap();
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(rustix::fs::CWD, places.join("fifo"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    for name in ["file", "folder", "dangling", "fifo"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dpiped"));
        command.arg("--socket").arg(dir.0.join("s")).arg("--metrics").arg(places.join(name));
        let refused = command.output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{name}: {refused:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("not a socket"), "{name}: {refused:?}");
    }
    let mut left: Vec<_> = std::fs::read_dir(&places).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["dangling", "fifo", "file", "folder"]);
    assert_eq!(std::fs::read(places.join("file")).unwrap(), b"precious");
}

#[test]
fn a_client_is_seen_with_its_rate_class_queue_and_times() {
    let service = Service::start(&[]);
    let client = service.client();
    let (source, target) = (scene::file_of(&[7; 4096]), scene::memory_of(&[0; 4096]));
    let (source, target) = (ClientPlace::file(&source), ClientPlace::memory(&target));
    let mut pipe = client.connect_pipe(&source, &target, &ConnectFdOptions::default()).unwrap();
    pipe.transfer(scene::whole(4096)).unwrap();
    assert_eq!(pipe.transfer(scene::whole(5000)).unwrap_err().kind(), ErrorKind::OutOfRange);
    let status = client.status().unwrap();
    let own = status.clients.iter().find(|other| other.pid == std::process::id().cast_signed() && other.pipes > 0);
    let own = own.unwrap_or_else(|| panic!("{status:#?}"));
    let [transfers] = &own.transfers[..] else { panic!("{own:#?}") };
    assert_eq!(transfers.class.name(), "normal");
    assert_eq!((transfers.of.completed, transfers.of.failed, transfers.of.under_way), (1, 0, 0));
    assert_eq!((transfers.of.bytes, transfers.of.times.count()), (4096, 1), "{transfers:#?}");
    let samples = status.samples();
    let text = datapipes_metrics::prometheus(&samples);
    let series = format!("client=\"{}\"", own.number);
    assert!(text.lines().any(|line| line.starts_with("datapipes_client_bytes_total{") && line.contains(&series)));
    assert!(text.contains("datapipes_client_transfer_seconds_count{"), "{text}");
    // What it moved is not forgotten with its pipe.
    drop(pipe);
    service.until("its pipe has ended", |status| {
        let own = status.clients.iter().find(|other| other.number == own.number).unwrap();
        own.pipes == 0 && own.transfers == [transfers.clone()]
    });
}
