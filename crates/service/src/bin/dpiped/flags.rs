//! The command line.

use std::path::PathBuf;

use clap::Parser;
use datapipes_core::{Machine, parse_size};
use datapipes_service::server::{MetricsAddress, ServiceLimits};

const AFTER: &str = "\
Sizes are numbers with K, M, G, T (1024) or KB, MB, GB, TB (1000).
Started by systemd with a socket (LISTEN_FDS), it serves that one. A socket with the name `metrics`
(FileDescriptorName=) is the one for metrics. It tells systemd how it is (Type=notify), and keeps
its watchdog waiting (WatchdogSec=) only after a copy that went through.
SIGTERM and SIGINT stop it, after what is under way was carried out.

Examples:
  dpiped                                       serve this user, at the default socket
  dpiped --socket /run/dpiped.sock --mode 666 --mapped-bytes 1G
  dpiped --metrics 9465                        and metrics at http://127.0.0.1:9465/metrics
  dpiped --export /run/user/1000/ticket=1G     and a gibibyte of memory, for those with the ticket
  dpiped --status                              what it serves, as JSON

Exit status:
  0  it was asked to stop, and every transfer was carried out
  1  transfers were still in flight after --timeout, or a process that it needs was killed
  2  it could not start, or the command line makes no sense";

/// The defaults that do not depend on the memory.
const DEFAULTS: ServiceLimits = ServiceLimits::new(0);

/// Carries out the pipes of other processes, which pass memory and files as descriptors.
#[derive(Debug, Parser)]
#[command(name = "dpiped", version, about, after_help = AFTER)]
pub(crate) struct Flags {
    /// Path of the socket [default: $XDG_RUNTIME_DIR/dpiped.sock, or /run/dpiped.sock]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Permissions of the socket, octal
    #[arg(long, default_value = "600", value_parser = octal)]
    pub(crate) mode: u32,
    /// Accept only this user (repeat for more); without it, all that can open the socket
    #[arg(long, value_name = "UID")]
    pub(crate) allow_uid: Vec<u32>,
    /// Accept files of any file system, also of those that other programs serve (FUSE) and of the
    /// kernel's own
    #[arg(long)]
    pub(crate) any_filesystem: bool,
    /// Clients at a time
    #[arg(long, value_name = "N", default_value_t = DEFAULTS.clients)]
    clients: usize,
    /// Clients of one user at a time
    #[arg(long, value_name = "N", default_value_t = DEFAULTS.clients_per_uid)]
    clients_per_uid: usize,
    /// Pipes of one client
    #[arg(long, value_name = "N", default_value_t = DEFAULTS.pipes)]
    pipes: usize,
    /// Transfers that one client can have in flight
    #[arg(long, value_name = "N", default_value_t = DEFAULTS.transfers)]
    transfers: usize,
    /// Descriptors kept open for one client
    #[arg(long, value_name = "N", default_value_t = DEFAULTS.descriptors)]
    descriptors: usize,
    /// Mapped memory of one client [default: a quarter of the machine's memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    mapped_bytes: Option<u64>,
    /// Mapped memory of all clients of one user [default: three eighths of the machine's memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    mapped_bytes_per_uid: Option<u64>,
    /// Mapped memory of all clients [default: half of the machine's memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    all_mapped_bytes: Option<u64>,
    /// Bytes/s that can be promised to one client's pipes [default: what the devices have]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    promised: Option<u64>,
    /// Milliseconds that a client may take to say hello or to read a status, and that checking the
    /// files that it passes may take
    #[arg(long, value_name = "MS", default_value_t = DEFAULTS.hello_ms)]
    hello_ms: u64,
    /// Requests of one client in a second; a client that asks for more waits
    #[arg(long, value_name = "N", default_value_t = DEFAULTS.requests_per_s)]
    requests: u32,
    /// Seconds that stopping may take
    #[arg(long, alias = "patience", value_name = "S", default_value_t = 60)]
    pub(crate) timeout: u64,
    /// Let metrics be fetched over HTTP, at /metrics, in Prometheus' text format: PORT (of this
    /// machine only), ADDRESS:PORT, or the path of a Unix socket
    #[arg(long, value_name = "ADDR|SOCKET")]
    pub(crate) metrics: Option<MetricsAddress>,
    /// Permissions of the Unix socket for metrics, octal
    #[arg(long, default_value = "600", value_name = "MODE", value_parser = octal)]
    pub(crate) metrics_mode: u32,
    /// Show single clients and their pipes, by number, to all that can fetch metrics over TCP; at a
    /// Unix socket they are always shown
    #[arg(long)]
    pub(crate) metrics_clients: bool,
    /// Export SIZE bytes of zeroed memory until the service stops, and write the ticket for them
    /// into the new file TICKET (repeat for more); who has the ticket can read and write them
    /// (`dpipe copy data.bin remote://TICKET`)
    #[arg(long, value_name = "TICKET=SIZE", value_parser = export)]
    pub(crate) export: Vec<(PathBuf, u64)>,
    /// Where clients of --export connect: unix:PATH or HOST:PORT [default: a Unix socket beside the
    /// service's, with `-memory` at the end of its name]
    #[arg(long, value_name = "ADDRESS", requires = "export")]
    pub(crate) export_at: Option<String>,
    /// Let exported bytes go by a network, by these transports of UCX (tcp, or rc,tcp). They are
    /// not encrypted, and who reaches UCX's ports reaches the memory: this says that the network is
    /// trusted. Without it they go by shared memory, to processes of this user
    #[arg(long, value_name = "TRANSPORTS", requires = "export")]
    pub(crate) export_trusted_network: Option<String>,
    /// The devices of that network, as UCX calls them [default: the interface of the connection]
    #[arg(long, value_name = "DEVICES", requires = "export_trusted_network")]
    pub(crate) export_devices: Option<String>,
    /// Print the status of the running service as JSON
    #[arg(long)]
    pub(crate) status: bool,
}

impl Flags {
    /// The limits given on the command line, and the machine's defaults for the others.
    pub(crate) fn limits(&self, machine: &Machine) -> ServiceLimits {
        let memory = &machine.topology().memory;
        let bytes = [memory.total_bytes, memory.limit_bytes].into_iter().flatten().min();
        let suits = bytes.map_or_else(ServiceLimits::default, ServiceLimits::new);
        ServiceLimits::default()
            .clients(self.clients)
            .clients_per_uid(self.clients_per_uid)
            .pipes(self.pipes)
            .transfers(self.transfers)
            .descriptors(self.descriptors)
            .mapped_bytes(self.mapped_bytes.unwrap_or(suits.mapped_bytes))
            .mapped_bytes_per_uid(self.mapped_bytes_per_uid.unwrap_or(suits.mapped_bytes_per_uid))
            .all_mapped_bytes(self.all_mapped_bytes.unwrap_or(suits.all_mapped_bytes))
            .promised_bytes_per_s(self.promised.or(suits.promised_bytes_per_s))
            .hello_ms(self.hello_ms)
            .requests_per_s(self.requests)
    }
}

fn octal(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777).ok_or_else(|| "write it as 600 or 666".into())
}

fn export(text: &str) -> Result<(PathBuf, u64), String> {
    match text.rsplit_once('=') {
        Some((path, bytes)) if !path.is_empty() => Ok((path.into(), size(bytes)?)),
        _ => Err("write it as TICKET=SIZE".into()),
    }
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|e| e.to_string())
}
