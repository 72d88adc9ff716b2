//! The calibration on disk: one file per machine, replaced atomically, and measured again where it
//! cannot be trusted.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{env, fs};

use datapipes_core::topology::Topology;
use datapipes_core::{AtomicFile, Error, ErrorKind, Result};

use super::{Calibration, VERSION};

const OVERRIDE: &str = "DATAPIPES_CALIBRATION";

impl Calibration {
    /// Returns the path of this machine's calibration: `DATAPIPES_CALIBRATION`, else under
    /// `XDG_CACHE_HOME`, else under `~/.cache`.
    ///
    /// # Errors
    /// `NotFound` where none of the three environment variables is set (the last is `HOME`).
    pub fn path(topology: &Topology) -> Result<PathBuf> {
        Calibration::path_by(topology, |name| env::var_os(name))
    }

    /// As [`path`](Self::path), in an environment that the caller passes.
    pub(super) fn path_by(topology: &Topology, environment: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
        let variable = |name: &str| environment(name).filter(|value| !value.is_empty());
        if let Some(path) = variable(OVERRIDE) {
            return Ok(path.into());
        }
        let cache = variable("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let cache = cache.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache")));
        let cache = cache.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "locate", "the calibration: neither XDG_CACHE_HOME nor HOME is set")
                .with_advice(format!("set {OVERRIDE} to a file"))
        })?;
        Ok(cache.join("datapipes").join(format!("calibration-{}.json", topology.fingerprint())))
    }

    /// Reads the calibration of this machine.
    ///
    /// # Errors
    /// `NotFound` where there is none; `Corrupt` where the file is no calibration, or that of
    /// another machine; errors of reading.
    pub fn load(topology: &Topology) -> Result<Calibration> {
        Calibration::load_from(&Calibration::path(topology)?, topology)
    }

    /// Reads the calibration of this machine from a file.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_from(path: &Path, topology: &Topology) -> Result<Calibration> {
        let shown = path.display().to_string();
        let text = fs::read(path).map_err(|e| Error::io("read", e, &shown))?;
        let corrupt = |why: String| {
            Error::new(ErrorKind::Corrupt, "read", format!("{shown}: {why}")).with_advice("run `dpipe calibrate`")
        };
        let calibration: Calibration =
            serde_json::from_slice(&text).map_err(|e| corrupt(e.to_string()).with_source(e))?;
        if calibration.fingerprint != topology.fingerprint() {
            return Err(corrupt("it was measured on another machine".into()));
        }
        calibration.check().map_err(corrupt)?;
        Ok(calibration)
    }

    /// Saves it as an [`AtomicFile`], so that a reader sees the old file or the new one.
    ///
    /// # Errors
    /// Errors of writing, with the path.
    pub fn save(&self, topology: &Topology) -> Result<PathBuf> {
        let path = Calibration::path(topology)?;
        self.save_as(&path)?;
        Ok(path)
    }

    /// Saves it to a file, as [`save`](Self::save) does.
    ///
    /// # Errors
    /// Errors of writing, with the path.
    pub fn save_as(&self, path: &Path) -> Result<()> {
        let shown = path.display().to_string();
        let failed = |e: std::io::Error| Error::io("write", e, &shown);
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        let text = serde_json::to_vec_pretty(self)
            .map_err(|e| Error::new(ErrorKind::System, "write", format!("{shown}: {e}")).with_source(e))?;
        let draft = AtomicFile::create(path)?;
        draft.write(&text)?;
        draft.publish(text.len() as u64).map(|_| ())
    }

    /// Loads the calibration from disk. Where there is none that can be trusted, it measures and
    /// saves one. A failure to save is ignored: the next call measures again.
    ///
    /// # Errors
    /// As [`measure`](Self::measure).
    pub fn load_or_measure(topology: &Topology) -> Result<Calibration> {
        if let Ok(calibration) = Calibration::load(topology) {
            return Ok(calibration);
        }
        let calibration = Calibration::measure(topology)?;
        let _ = calibration.save(topology);
        Ok(calibration)
    }

    /// Loads the calibration from disk, or else assumes one. It is never slow and never fails.
    /// Opening the library calls it.
    pub fn load_or_assumed(topology: &Topology) -> Calibration {
        Calibration::load(topology).unwrap_or_else(|_| Calibration::assumed(topology))
    }

    /// Checks what the syntax of a file does not ensure.
    fn check(&self) -> std::result::Result<(), String> {
        if self.version != VERSION {
            return Err(format!("the file has format {}, this version reads format {VERSION}", self.version));
        }
        let powers = self.classes.iter().all(|class| class.from_bytes.is_power_of_two());
        if self.classes.is_empty() || !powers || !self.classes.is_sorted_by(|a, b| a.from_bytes < b.from_bytes) {
            return Err("its classes of lengths are not ascending powers of two".into());
        }
        let positive = |ns: f64| ns.is_finite() && ns > 0.0;
        let copies = self.copies.iter().all(|c| positive(c.hot_ns) && c.cold_ns.is_none_or(positive));
        let lines = [self.lines.clwb_ns, self.lines.clflushopt_ns, self.lines.cldemote_ns];
        let lines = positive(self.lines.load_bytes_per_s) && lines.into_iter().flatten().all(positive);
        let layers = self.layers.iter().all(|l| positive(l.latency_ns) && positive(l.read_bytes_per_s));
        if copies && lines && layers && self.prefetch_bytes <= 1 << 20 {
            Ok(())
        } else {
            Err("it has a cost that is not a positive number".into())
        }
    }
}
