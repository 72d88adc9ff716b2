//! A machine for tests: with a model of the driver (`tests/model/driver.c`, built by `cc`), or with
//! the real one where `DATAPIPES_TEST_GPU` is set. One process has one of the two.
#![allow(clippy::unwrap_used, dead_code, unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::mem::transmute;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use datapipes_core::topology::Topology;
use datapipes_core::{Constraints, Dram, Machine};
use datapipes_cpu::{Calibration, CpuBackend};
use datapipes_file::FileBackend;
use datapipes_gpu::{GpuBackend, Hbm};
use datapipes_testkit::conformance::{PlaceContent, TestPlace};

/// What the tests of this process run on.
pub(crate) enum Ground {
    Model(Model),
    /// NVIDIA's driver and a card.
    Card,
}

/// The model, loaded.
pub(crate) struct Model {
    set: extern "C" fn(*const c_char, c_long) -> c_long,
    get: extern "C" fn(*const c_char) -> c_long,
    make_stream: extern "C" fn() -> *mut c_void,
    fill: extern "C" fn(*mut c_void, u64, c_int, usize),
}

impl Model {
    pub(crate) fn set(&self, key: &str, value: i64) {
        assert_eq!((self.set)(CString::new(key).unwrap().as_ptr(), value), value, "{key}");
    }

    pub(crate) fn get(&self, key: &str) -> i64 {
        (self.get)(CString::new(key).unwrap().as_ptr())
    }

    /// A stream of the program, as another library makes one.
    pub(crate) fn stream(&self) -> u64 {
        (self.make_stream)().expose_provenance() as u64
    }

    /// Has a stream fill memory of a device.
    pub(crate) fn fill(&self, stream: u64, address: u64, byte: u8, len: usize) {
        (self.fill)(std::ptr::with_exposed_provenance_mut(stream as usize), address, c_int::from(byte), len);
    }
}

/// Builds the model once a process.
fn build() -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/model/driver.c");
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cuda-model-{}.so", std::process::id()));
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).arg("-lpthread");
    let output = compiler.output().map_err(|e| format!("cc: {e}"))?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(library)
}

/// The model or the card; says so where there is neither.
pub(crate) fn ground(test: &str) -> Option<&'static Ground> {
    static GROUND: OnceLock<Result<Ground, String>> = OnceLock::new();
    let ground = GROUND.get_or_init(|| {
        if std::env::var_os("DATAPIPES_TEST_GPU").is_some() {
            return Ok(Ground::Card);
        }
        let library = build()?;
        // SAFETY: the tests of this process wait for this, and other threads read the environment
        // by the standard library only.
        unsafe { std::env::set_var("DATAPIPES_CUDA_DRIVER", &library) };
        let name = CString::new(library.to_str().unwrap()).unwrap();
        // SAFETY: the library was just built, and has these functions.
        let model = unsafe {
            let handle = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            assert!(!handle.is_null());
            let symbol = |name: &CStr| libc::dlsym(handle, name.as_ptr());
            Model {
                set: transmute::<*mut c_void, extern "C" fn(*const c_char, c_long) -> c_long>(symbol(c"model_set")),
                get: transmute::<*mut c_void, extern "C" fn(*const c_char) -> c_long>(symbol(c"model_get")),
                make_stream: transmute::<*mut c_void, extern "C" fn() -> *mut c_void>(symbol(c"model_stream")),
                fill: transmute::<*mut c_void, extern "C" fn(*mut c_void, u64, c_int, usize)>(symbol(c"model_fill")),
            }
        };
        // It stays loaded without its name.
        drop(datapipes_gpu::gpu_devices().unwrap());
        std::fs::remove_file(&library).unwrap();
        Ok(Ground::Model(model))
    });
    match ground {
        Ok(ground) => Some(ground),
        Err(why) => {
            println!("SKIPPED: {test}: {why}");
            None
        }
    }
}

/// The model, for tests of what a card does not do when it is asked.
pub(crate) fn model(test: &str) -> Option<&'static Model> {
    match ground(test)? {
        Ground::Model(model) => Some(model),
        Ground::Card => {
            println!("SKIPPED: {test}: it needs the model of the driver");
            None
        }
    }
}

/// How many devices there are.
pub(crate) fn devices() -> u32 {
    datapipes_gpu::gpu_devices().unwrap().len() as u32
}

pub(crate) fn machine() -> Machine {
    let topology = Topology::discover();
    let cpu = CpuBackend::new(&topology, Calibration::assumed(&topology));
    Machine::new(topology, vec![Arc::new(cpu), Arc::new(FileBackend::probe()), Arc::new(GpuBackend::new())])
}

/// Memory of this process with a pattern.
pub(crate) fn pattern(len: usize, seed: u64) -> Dram {
    let dram = Dram::allocate(len).unwrap();
    let mut random = datapipes_testkit::Random(seed);
    dram.lease_mut().unwrap().chunks_mut(8).for_each(|bytes| {
        let number = random.next().to_ne_bytes();
        bytes.copy_from_slice(&number[..bytes.len()]);
    });
    dram
}

pub(crate) fn bytes_of(hbm: &Hbm) -> Vec<u8> {
    let mut bytes = vec![0; hbm.len() as usize];
    hbm.read(0, &mut bytes).unwrap();
    bytes
}

pub(crate) fn only(names: &[&str]) -> Constraints {
    Constraints::default().only(names.iter().map(|name| (*name).to_owned()).collect())
}

/// The bytes of a place on a device, for the suite.
pub(crate) struct HbmContent(pub(crate) Hbm);

impl PlaceContent for HbmContent {
    fn bytes(&self) -> datapipes_core::Result<Vec<u8>> {
        let mut bytes = vec![0; self.0.len() as usize];
        self.0.read(0, &mut bytes)?;
        Ok(bytes)
    }

    fn fill(&self, bytes: &[u8]) -> datapipes_core::Result<()> {
        self.0.write(0, bytes)
    }
}

/// A place for the suite on a device: a part of an allocation.
pub(crate) fn hbm_place(device: u32) -> datapipes_core::Result<TestPlace> {
    const LEN: u64 = (96 << 10) + 37;
    let hbm = Hbm::allocate(device, LEN + 600)?.slice(300..LEN + 300)?;
    Ok(TestPlace::seen_by(hbm.clone(), HbmContent(hbm)))
}
