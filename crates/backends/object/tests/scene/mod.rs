//! A server, clients and a machine for the tests.
#![allow(dead_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use datapipes_core::topology::Topology;
use datapipes_core::{Dram, Error, ErrorKind, Machine, Result, Span};
use datapipes_cpu::{Calibration, CpuBackend};
use datapipes_file::FileBackend;
use datapipes_object::{Object, ObjectBackend, ObjectClient, ObjectOptions};
use datapipes_objectserver::{FaultProxy, ProxyFault, ProxyRequest, S3Server};
use datapipes_testkit::{Random, TempFolder};

/// A server with the bucket `box`.
pub(crate) struct Scene {
    pub(crate) server: S3Server,
    pub(crate) folder: TempFolder,
}

impl Scene {
    pub(crate) fn new() -> Scene {
        let folder = TempFolder::under(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let server = S3Server::start(&folder.path("buckets")).unwrap();
        server.make_bucket("box").unwrap();
        Scene { server, folder }
    }

    pub(crate) fn client(&self) -> ObjectClient {
        ObjectClient::with_settings(quick(), self.server.settings()).unwrap()
    }

    pub(crate) fn client_with(&self, options: ObjectOptions) -> ObjectClient {
        ObjectClient::with_settings(options, self.server.settings()).unwrap()
    }

    /// A proxy, and a client that knows only it.
    pub(crate) fn behind(
        &self,
        options: ObjectOptions,
        choose: impl Fn(&ProxyRequest) -> ProxyFault + Send + Sync + 'static,
    ) -> (FaultProxy, ObjectClient) {
        let proxy = FaultProxy::start(self.server.address(), choose).unwrap();
        let client = ObjectClient::with_settings(options, S3Server::settings_at(proxy.address())).unwrap();
        (proxy, client)
    }
}

/// Options with which faults are soon over.
pub(crate) fn quick() -> ObjectOptions {
    ObjectOptions::default()
        .longest_pause(Duration::from_millis(50))
        .idle_time(Duration::from_secs(20))
        .retries(5)
        .read_bytes(256 << 10)
        .part_bytes(5u64 << 20)
}

pub(crate) fn machine() -> Machine {
    let topology = Topology::discover();
    let cpu = CpuBackend::new(&topology, Calibration::assumed(&topology));
    Machine::new(topology, vec![Arc::new(cpu), Arc::new(FileBackend::probe()), Arc::new(ObjectBackend::new())])
}

pub(crate) fn random(len: usize, seed: u64) -> Vec<u8> {
    Random(seed).bytes(len)
}

/// Memory with these bytes.
pub(crate) fn memory_of(bytes: &[u8]) -> Dram {
    let memory = Dram::allocate(bytes.len().max(1)).unwrap();
    memory.lease_mut().unwrap()[..bytes.len()].copy_from_slice(bytes);
    memory
}

/// All bytes of an object, by a pipe.
pub(crate) fn read_all(machine: &Machine, object: &Object) -> Result<Vec<u8>> {
    let memory = Dram::allocate((object.len() as usize).max(1)).unwrap();
    machine.connect(object, &memory)?.transfer(Span { source: 0, target: 0, len: object.len() })?;
    let bytes = memory.lease()?[..object.len() as usize].to_vec();
    Ok(bytes)
}

/// Writes and publishes an object, in transfers of `step` bytes.
pub(crate) fn write_all(machine: &Machine, object: &Object, bytes: &[u8], step: usize) -> Result<()> {
    let memory = memory_of(bytes);
    let pipe = machine.connect(&memory, object)?;
    for at in (0..bytes.len()).step_by(step) {
        let len = step.min(bytes.len() - at) as u64;
        pipe.transfer(Span { source: at as u64, target: at as u64, len })?;
    }
    object.publish(bytes.len() as u64).map(drop)
}

/// An error that says what and where, and no secret.
pub(crate) fn clear(error: &Error, kind: ErrorKind, words: &str) {
    let text = format!("{error} {error:?}");
    assert!(error.kind() == kind && text.contains(words) && text.contains("s3://box/"), "{error:?}");
    for secret in [S3Server::SECRET, "Signature=", "AWS4-HMAC", "X-Amz-Credential"] {
        assert!(!text.contains(secret), "{text}");
    }
}

/// The same fault for the first so many requests that a test picks.
pub(crate) fn times(
    count: u64,
    fault: ProxyFault,
    picks: impl Fn(&ProxyRequest) -> bool + Send + Sync + 'static,
) -> impl Fn(&ProxyRequest) -> ProxyFault + Send + Sync + 'static {
    let picked = AtomicU64::new(0);
    move |request| match picks(request) && picked.fetch_add(1, SeqCst) < count {
        true => fault.clone(),
        false => ProxyFault::Pass,
    }
}

pub(crate) fn is_part(request: &ProxyRequest) -> bool {
    request.target.contains("partNumber=")
}

pub(crate) fn is_complete(request: &ProxyRequest) -> bool {
    request.method == "POST" && request.target.contains("uploadId=")
}
