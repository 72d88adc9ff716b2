//! `dpiped`: a machine's one coordinator, for other processes.
//!
//! Exit codes: 0 if it was asked to stop and every transfer was carried out; 1 if transfers were
//! still in flight when its time to stop was over, or a process that it needs was killed; 2 if it
//! could not start, or the command line makes no sense.
#![deny(unsafe_code)]

mod exports;
mod flags;
mod notify;
mod signals;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use clap::Parser;
use datapipes_core::locks::Mutex;
use datapipes_core::runtime::RuntimeOptions;
use datapipes_core::{Error, Result, threads};
use datapipes_service::server::{
    InheritedSockets, Listener, LogEvent, MetricsListener, Server, ServerOptions, ServiceLog,
};
use datapipes_service::{Client, default_paths};

use exports::MemoryExports;
use flags::Flags;
use notify::ServiceManager;
use signals::{Signals, Why};

fn main() -> ExitCode {
    // This program is also started as the holder of exported memory.
    if let Some(code) = exports::enter() {
        return code;
    }
    let flags = Flags::parse();
    let outcome = if flags.status { status(&flags) } else { serve(&flags) };
    outcome.unwrap_or_else(|e| {
        ServiceLog::default().event(LogEvent::CannotStart, format_args!("{e}"));
        ExitCode::from(2)
    })
}

fn serve(flags: &Flags) -> Result<ExitCode> {
    // This comes before any descriptor is opened and any thread is started: threads inherit the
    // blocked signals.
    let inherited = InheritedSockets::take()?;
    let signals = Signals::block()?;
    signals::ignore_file_limit()?;
    raise_descriptors();
    let listener = match (inherited.service, &flags.socket) {
        (Some(listener), _) => listener,
        (None, Some(path)) => Listener::bind(path, flags.mode)?,
        (None, None) => Listener::bind(&default_paths()[0], flags.mode)?,
    };
    let metrics = match (inherited.metrics, &flags.metrics) {
        (Some(listener), _) => Some(listener),
        (None, Some(address)) => Some(MetricsListener::bind(address, flags.metrics_mode)?),
        (None, None) => None,
    };
    let machine = datapipes_bundle::discover();
    let mut config = ServerOptions::default()
        .limits(flags.limits(&machine))
        .allow_uids(flags.allow_uid.clone())
        .any_filesystem(flags.any_filesystem);
    if metrics.is_some() {
        // Percentiles are what people look at first. They cost two looks at the clock a transfer.
        config = config.runtime(RuntimeOptions::new(&machine).measure_latencies(true));
    }
    let log = config.log.clone();
    let place = listener.path().map_or("the socket that was passed".into(), |path| path.display().to_string());
    let path = listener.path().map(Path::to_path_buf);
    let mut server = Server::start(&machine, listener, config)?;
    if let Some(listener) = metrics {
        let shows = listener.shows_clients() || flags.metrics_clients;
        log.line(format_args!("metrics at {}", listener.place()));
        server.publish_metrics(listener.with_clients(shows))?;
    }
    let exports = match exports::begin(flags, path.as_deref()) {
        Ok(exports) => exports,
        Err(e) => {
            // No client has come, and the socket goes.
            server.stop(Duration::ZERO);
            return Err(e);
        }
    };
    exports.lines().for_each(|line| log.line(format_args!("{line}")));
    let exports = Arc::new(Mutex::new(Some(exports)));
    // They end with this function, however it ends.
    let counted = Arc::downgrade(&exports);
    server.show_exports(move || {
        let exports = counted.upgrade();
        exports.and_then(|exports| exports.lock().as_ref().map(MemoryExports::totals)).unwrap_or_default()
    });
    log.event(LogEvent::Started, format_args!("serves at {place}, process {}", std::process::id()));
    let manager = ServiceManager::find().map(Arc::new);
    let telling = manager.clone().map(|manager| keep_told(manager, &server, log.clone())).transpose()?;
    if let Some(manager) = &manager {
        manager.tell(&format!("READY=1\nSTATUS=Serves at {place}"));
    }
    let why = signals.wait(server.failed())?;
    // The probes end: from here on the service refuses new transfers.
    drop(telling);
    let ended = exports.lock().take();
    drop(ended);
    if let Some(manager) = &manager {
        manager.tell("STOPPING=1\nSTATUS=Carries out what is under way");
    }
    let asked = match why {
        Why::Signal(signal) => {
            log.event(LogEvent::Stops, format_args!("{signal}: stops"));
            true
        }
        Why::Failed => {
            let what = "the process dpiped-first was killed, so files can no longer be passed: stops";
            log.event(LogEvent::HelperKilled, format_args!("{what}"));
            false
        }
    };
    if server.stop(Duration::from_secs(flags.timeout)) {
        log.event(LogEvent::Stopped, format_args!("stopped; everything under way was carried out"));
        return Ok(if asked { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let what = format_args!("stopped; something was still under way after {} s", flags.timeout);
    log.event(LogEvent::StoppedUnfinished, what);
    Ok(ExitCode::FAILURE)
}

/// Starts a thread that keeps the service manager told until the result is dropped. It is not
/// waited for: a probe that hangs must not keep the service from stopping.
fn keep_told(manager: Arc<ServiceManager>, server: &Server, log: ServiceLog) -> Result<Sender<()>> {
    let (telling, end) = channel();
    let probe = server.probe()?;
    threads::spawn("dpiped-manager", move || manager.keep_told(probe, &log, &end))?;
    Ok(telling)
}

/// How long a status may take.
const MAX_ANSWER: Duration = Duration::from_secs(10);

fn status(flags: &Flags) -> Result<ExitCode> {
    let client = match &flags.socket {
        Some(path) => Client::connect_within(path, MAX_ANSWER)?,
        None => Client::connect_default_within(MAX_ANSWER)?,
    };
    let text = serde_json::to_string_pretty(&client.status()?).unwrap_or_default();
    // A reader that closed its end has seen what it wanted.
    match writeln!(std::io::stdout(), "{text}") {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::io("write", e, "the status to standard output"))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Raises the limit on open descriptors as far as the system allows, because clients pass theirs.
fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If that is refused, the limit stays as it is, and clients are turned away sooner.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
