//! `--export`: memory of this service that other processes and machines read and write.

#[cfg(not(feature = "net"))]
pub(super) use absent::{MemoryExports, begin, enter};
#[cfg(feature = "net")]
pub(super) use built::{MemoryExports, begin, enter};

#[cfg(not(feature = "net"))]
mod absent {
    use std::path::Path;
    use std::process::ExitCode;

    use datapipes_core::{Error, ErrorKind, Result};
    use datapipes_service::ExportTotals;

    use crate::flags::Flags;

    /// No exports.
    pub(crate) struct MemoryExports;

    impl MemoryExports {
        pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
            std::iter::empty()
        }

        pub(crate) fn totals(&self) -> ExportTotals {
            ExportTotals::default()
        }
    }

    pub(crate) fn enter() -> Option<ExitCode> {
        None
    }

    pub(crate) fn begin(flags: &Flags, _: Option<&Path>) -> Result<MemoryExports> {
        if flags.export.is_empty() {
            return Ok(MemoryExports);
        }
        Err(Error::new(ErrorKind::Unavailable, "export", "this dpiped was built without remote memory")
            .with_advice("build it with the feature `net`"))
    }
}

#[cfg(feature = "net")]
mod built {
    use std::path::{Path, PathBuf};
    use std::process::ExitCode;

    use datapipes_bundle::net::{
        Export, ExportAddress, ExportableMemory, Exporter, ExporterOptions, NetworkOptions, RemoteRights, RemoteTicket,
        RemoteTransport, enter_holder,
    };
    use datapipes_core::{Error, ErrorKind, Result};
    use datapipes_service::ExportTotals;

    use crate::flags::Flags;

    /// What is exported, until this is dropped.
    pub(crate) struct MemoryExports {
        exports: Vec<TicketedExport>,
        /// It goes after the exports, which it serves.
        _exporter: Option<Exporter>,
    }

    /// An export with the file of its ticket, which is removed with it.
    struct TicketedExport {
        export: Export,
        ticket: PathBuf,
        bytes: usize,
        _memory: ExportableMemory,
    }

    impl Drop for TicketedExport {
        fn drop(&mut self) {
            // Somebody may have taken it away, and put something else there.
            if RemoteTicket::load(&self.ticket).is_ok_and(|there| there == *self.export.ticket()) {
                let _ = std::fs::remove_file(&self.ticket);
            }
        }
    }

    impl MemoryExports {
        /// What the log says of them.
        pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
            self.exports.iter().map(|one| {
                let address = one.export.ticket().address();
                format!("exports {} bytes at {address}, by the ticket {}", one.bytes, one.ticket.display())
            })
        }
    }

    impl MemoryExports {
        /// How much is exported, and how many use it.
        pub(crate) fn totals(&self) -> ExportTotals {
            let bytes = self.exports.iter().map(|one| one.bytes as u64).sum();
            let pipes = self.exports.iter().map(|one| one.export.clients() as u64).sum();
            ExportTotals { bytes, pipes }
        }
    }

    /// Runs as the holder of an export, if the program was started as that.
    pub(crate) fn enter() -> Option<ExitCode> {
        enter_holder()
    }

    /// Allocates and exports what the command line asks for.
    pub(crate) fn begin(flags: &Flags, service: Option<&Path>) -> Result<MemoryExports> {
        if flags.export.is_empty() {
            return Ok(MemoryExports { exports: Vec::new(), _exporter: None });
        }
        let network = match &flags.export_trusted_network {
            None => NetworkOptions::default(),
            Some(transports) => NetworkOptions::default()
                .transport(RemoteTransport::Network)
                .trusted_network(true)
                .transports(transports.clone())
                .devices(flags.export_devices.clone()),
        };
        let exporter = Exporter::listen(&address(flags, service)?, ExporterOptions::default().network(network))
            .map_err(in_words_of_flags)?;
        let mut exports = Vec::new();
        for (path, bytes) in &flags.export {
            let bytes = usize::try_from(*bytes).map_err(|_| {
                Error::new(ErrorKind::InvalidInput, "export", format!("{bytes} bytes: this machine has no such memory"))
            })?;
            let memory = ExportableMemory::allocate(bytes)?;
            let export = exporter.export(&memory, (0, bytes), RemoteRights::ReadWrite)?;
            save(export.ticket(), path, &exports)?;
            exports.push(TicketedExport { export, ticket: path.clone(), bytes, _memory: memory });
        }
        Ok(MemoryExports { exports, _exporter: Some(exporter) })
    }

    /// An error whose advice names flags, where the library's names fields of its options.
    fn in_words_of_flags(error: Error) -> Error {
        let flags = [("`trusted_network`", "`--export-trusted-network`"), ("`devices`", "`--export-devices`")];
        match error
            .advice()
            .map(|advice| flags.iter().fold(advice.to_owned(), |text, (of, flag)| text.replace(of, flag)))
        {
            Some(advice) => error.with_advice(advice),
            None => error,
        }
    }

    /// Writes a ticket. One that a killed service left there is replaced: it names the address at
    /// which this one listens now, so nobody else serves it.
    fn save(ticket: &RemoteTicket, path: &Path, ours: &[TicketedExport]) -> Result<()> {
        let error = match ticket.save(path) {
            Err(error) if error.errno() == Some(libc::EEXIST) => error,
            done => return done,
        };
        let left = RemoteTicket::load(path).ok().filter(|there| there.address() == ticket.address());
        match left {
            Some(left) if ours.iter().all(|one| *one.export.ticket() != left) => {
                std::fs::remove_file(path).map_err(|e| Error::io("replace", e, path.display().to_string()))?;
                ticket.save(path)
            }
            _ => Err(error.with_advice("remove the file if it is no longer needed, or choose another one")),
        }
    }

    fn address(flags: &Flags, service: Option<&Path>) -> Result<ExportAddress> {
        if let Some(text) = &flags.export_at {
            return text.parse();
        }
        let beside = service.and_then(|path| {
            let mut name = path.file_stem()?.to_owned();
            name.push("-memory");
            Some(path.with_file_name(name).with_extension("sock"))
        });
        beside.map(ExportAddress::Unix).ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, "export", "the service's socket was passed to it, and has no folder")
                .with_advice("say where clients of the memory connect: --export-at unix:PATH")
        })
    }
}
