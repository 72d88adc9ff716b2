//! What a guest is made of, and where it was found.

use crate::TaskResult;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The parts, each found.
pub(crate) struct Parts {
    pub(crate) qemu: PathBuf,
    /// Where QEMU's libraries and firmware are, where it was extracted rather than installed.
    pub(crate) extracted: Option<PathBuf>,
    pub(crate) kernel: PathBuf,
    pub(crate) modules: PathBuf,
    pub(crate) busybox: PathBuf,
    /// Where packages were extracted, if any were.
    pub(crate) packages: PathBuf,
    /// A program of this system, which the guest runs over 9p.
    pub(crate) mkfs: PathBuf,
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "qemu:    {}", self.qemu.display())?;
        writeln!(f, "kernel:  {}", self.kernel.display())?;
        writeln!(f, "modules: {}", self.modules.display())?;
        write!(f, "busybox: {}", self.busybox.display())
    }
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The folder into which packages are extracted.
pub(crate) fn folder() -> TaskResult<PathBuf> {
    if let Some(folder) = variable("DATAPIPES_GUEST_DIR") {
        return Ok(folder);
    }
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    Ok(cache.ok_or("none of DATAPIPES_GUEST_DIR, XDG_CACHE_HOME and HOME is set")?.join("datapipes/guest"))
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(usual).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// What the variable says, which must be there; else the first of the candidates that is.
fn one(name: &str, wanted: &str, candidates: impl IntoIterator<Item = PathBuf>) -> Result<PathBuf, String> {
    if let Some(said) = variable(name) {
        return if said.exists() {
            Ok(said)
        } else {
            Err(format!("{name} names {}, which is not there", said.display()))
        };
    }
    candidates.into_iter().find(|path| path.exists()).ok_or_else(|| format!("{wanted} was not found"))
}

/// The newest kernel of a boot folder, by the order of names.
fn newest_kernel(boot: &Path) -> Option<PathBuf> {
    let names = std::fs::read_dir(boot).ok()?.flatten().map(|entry| entry.path());
    names.filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("vmlinuz-"))).max()
}

/// A program that needs no loader names none.
fn is_static(program: &Path) -> bool {
    let bytes = std::fs::read(program).unwrap_or_default();
    bytes.starts_with(b"\x7fELF") && !bytes[..bytes.len().min(4096)].windows(9).any(|w| w == b"/ld-linux")
}

/// Where libraries and programs are, below a root.
const LIBRARIES: [&str; 3] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib64"];
const PROGRAMS: [&str; 4] = ["usr/bin", "bin", "usr/sbin", "sbin"];

impl Parts {
    /// Whether a library or a program is in this system or among the extracted packages.
    pub(crate) fn have(&self, name: &str) -> bool {
        let folders = || LIBRARIES.iter().chain(&PROGRAMS);
        let roots = [Path::new("/"), &self.packages];
        roots.iter().any(|root| folders().any(|folder| root.join(folder).join(name).exists()))
    }

    /// Shell that lays the extracted packages over this system.
    pub(crate) fn overlays(&self) -> String {
        let mount = |name: &str| {
            let over = self.packages.join(name);
            let over = over.is_dir().then(|| over.display().to_string())?;
            Some(format!("mount -t overlay overlay -o 'ro,lowerdir={over}:/{name}' /{name}\n"))
        };
        ["usr", "etc", "lib", "bin", "sbin"].into_iter().filter_map(mount).collect()
    }

    /// QEMU, with its libraries and firmware where it was extracted.
    pub(crate) fn emulator(&self) -> Command {
        let mut qemu = Command::new(&self.qemu);
        if let Some(root) = &self.extracted {
            let libraries: Vec<PathBuf> = LIBRARIES.iter().map(|at| root.join(at)).collect();
            qemu.env("LD_LIBRARY_PATH", std::env::join_paths(libraries).unwrap_or_default());
            for firmware in ["usr/share/qemu", "usr/share/seabios"] {
                qemu.arg("-L").arg(root.join(firmware));
            }
        }
        qemu
    }

    /// Finds every part, or says which is missing.
    pub(crate) fn find(folder: &Path) -> Result<Parts, String> {
        if std::env::consts::ARCH != "x86_64" {
            return Err(format!("the guests are x86-64 machines, and this is {}", std::env::consts::ARCH));
        }
        let extracted = folder.join("usr/bin/qemu-system-x86_64");
        let installed = on_path("qemu-system-x86_64");
        let qemu = one("DATAPIPES_QEMU", "a QEMU for x86-64", installed.into_iter().chain([extracted]))?;
        let root = qemu.ancestors().nth(3).map(Path::to_path_buf);
        let extracted = root.filter(|root| root.join("usr/share/qemu").is_dir() && root != Path::new("/"));
        let kernels = [folder.join("boot"), PathBuf::from("/boot")];
        let kernels = kernels.iter().filter_map(|boot| newest_kernel(boot));
        let kernel = one("DATAPIPES_GUEST_KERNEL", "a Linux kernel", kernels)?;
        let version = kernel.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let version = version.strip_prefix("vmlinuz-").unwrap_or("").to_owned();
        let beside = kernel.ancestors().nth(2).unwrap_or(Path::new("/"));
        let modules = ["lib/modules", "usr/lib/modules"].map(|at| beside.join(at).join(&version));
        let modules = one("DATAPIPES_GUEST_MODULES", &format!("the modules of kernel {version}"), modules)?;
        let boxes = ["bin/busybox", "usr/bin/busybox"].map(|at| folder.join(at)).into_iter().chain(on_path("busybox"));
        let busybox = one("DATAPIPES_GUEST_BUSYBOX", "a static busybox", boxes.filter(|b| is_static(b)))?;
        let mkfs = on_path("mkfs.ext4").ok_or("mkfs.ext4 was not found in this system")?;
        Ok(Parts { qemu, extracted, kernel, modules, busybox, packages: folder.to_path_buf(), mkfs })
    }
}
