//! The door where the world is otherwise than it was: what comes, goes and changes while a file is under way, and file
//! systems and kernels that refuse. Calls are refused by a filter (seccomp) on the thread of the test.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::FlockOperation;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use super::*;

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A folder that vanishes with the test.
struct Scene(PathBuf);

impl Scene {
    fn new() -> Scene {
        let name = format!("draft-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Scene(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn put(&self, name: &str, mode: u32) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

/// The mode of a file that this process makes in the usual way.
fn usual(scene: &Scene) -> u32 {
    let path = scene.path("usual");
    fs::write(&path, "").unwrap();
    let mode = mode(&path);
    fs::remove_file(&path).unwrap();
    mode
}

/// A call of the kernel that is refused: all of them, or those with these bits in an argument.
struct Refused {
    call: i64,
    with: Option<(u8, u64)>,
    errno: i32,
}

const fn refused(call: i64, errno: i32) -> Refused {
    Refused { call, with: None, errno }
}

const NO_NAMELESS: Refused =
    Refused { call: libc::SYS_openat, with: Some((2, libc::O_TMPFILE as u64)), errno: libc::EOPNOTSUPP };

/// Runs something on a thread on which calls are refused.
fn without<T: Send>(calls: &[Refused], work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            for Refused { call, with, errno } in calls {
                let rules = with.map(|(argument, bits)| {
                    let masked = SeccompCmpOp::MaskedEq(bits);
                    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, masked, bits).unwrap();
                    SeccompRule::new(vec![condition]).unwrap()
                });
                let rules = BTreeMap::from([(*call, rules.into_iter().collect())]);
                let (allow, errno) = (SeccompAction::Allow, SeccompAction::Errno(*errno as u32));
                let filter = SeccompFilter::new(rules, allow, errno, std::env::consts::ARCH.try_into().unwrap());
                let program: BpfProgram = filter.unwrap().try_into().unwrap();
                seccompiler::apply_filter(&program).unwrap();
            }
            work()
        });
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn publish(draft: Draft) -> Result<Published> {
    draft.write(b"new bytes")?;
    draft.publish(9)
}

fn replacing(path: &Path) -> Draft {
    Draft::replacing(path, FileMode::USUAL).unwrap()
}

#[test]
fn nobody_else_reads_what_is_under_way() {
    let scene = Scene::new();
    let usual = usual(&scene);
    let private = |draft: &Draft| rustix::fs::fstat(draft.fd()).unwrap().st_mode & 0o7777;
    let check = |named: bool| {
        for (name, old, made, expected) in [
            ("new", None, FileMode::USUAL, usual),
            ("as-its-source", None, FileMode::like(0o100_600), 0o600),
            ("as-a-program", None, FileMode::like(0o104_751), 0o751 & (usual | 0o111)),
            ("private", Some(0o600), FileMode::USUAL, 0o600),
            ("shared", Some(0o664), FileMode::like(0o600), 0o664),
            ("secret", Some(0o604), FileMode::USUAL, 0o604),
        ] {
            let name = format!("{name}-{named}");
            let path = scene.path(&name);
            if let Some(mode) = old {
                scene.put(&name, mode);
            }
            let draft = Draft::replacing(&path, made).unwrap();
            assert_eq!(draft.hidden.is_some(), named, "{name}");
            assert_eq!(private(&draft), 0o600, "{name}: under way");
            publish(draft).unwrap();
            assert_eq!(mode(&path), expected, "{name}: published");
        }
    };
    check(false);
    without(&[NO_NAMELESS], || check(true));
}

#[test]
fn what_is_chmodded_meanwhile_stays_so() {
    let scene = Scene::new();
    let path = scene.put("f", 0o644);
    let draft = replacing(&path);
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    assert_eq!(publish(draft).unwrap(), Published::Replaced);
    assert_eq!((mode(&path), text(&path)), (0o600, "new bytes".into()));
}

#[test]
fn what_comes_and_goes_meanwhile() {
    let scene = Scene::new();
    for named in [false, true] {
        let calls: &[Refused] = if named { &[NO_NAMELESS] } else { &[] };
        without(calls, || {
            let path = scene.path("comes");
            let draft = replacing(&path);
            scene.put("comes", 0o640);
            assert_eq!(publish(draft).unwrap(), Published::Replaced, "named {named}");
            assert_eq!((mode(&path), text(&path)), (0o640, "new bytes".into()));

            let path = scene.put("goes", 0o640);
            let draft = replacing(&path);
            fs::remove_file(&path).unwrap();
            assert_eq!(publish(draft).unwrap(), Published::New, "named {named}");
            assert_eq!(text(&path), "new bytes");

            let path = scene.put("other", 0o640);
            let draft = replacing(&path);
            fs::remove_file(&path).unwrap();
            scene.put("other", 0o600);
            assert_eq!(publish(draft).unwrap(), Published::Replaced, "named {named}");
            assert_eq!((mode(&path), text(&path)), (0o600, "new bytes".into()));

            let path = scene.path("folder");
            let draft = replacing(&path);
            fs::create_dir(&path).unwrap();
            let error = publish(draft).unwrap_err();
            assert!(error.to_string().contains("no regular file"), "{error}");
            fs::remove_dir(&path).unwrap();

            let path = scene.put("linked", 0o644);
            let draft = replacing(&path);
            fs::hard_link(&path, scene.path("second")).unwrap();
            assert_eq!(publish(draft).unwrap(), Published::InPlace(InPlaceReason::Links(2)));
            assert_eq!(text(&scene.path("second")), "new bytes");
        });
        assert_eq!(scene.names(), ["comes", "goes", "linked", "other", "second"], "named {named}");
        scene.names().iter().for_each(|name| fs::remove_file(scene.path(name)).unwrap());
    }
}

#[test]
fn folders_that_go_and_move() {
    let scene = Scene::new();
    for calls in [&[][..], &[NO_NAMELESS]] {
        without(calls, || {
            let folder = scene.path("d");
            fs::create_dir(&folder).unwrap();
            let draft = Draft::beside(&folder.join("f")).unwrap();
            fs::rename(&folder, scene.path("e")).unwrap();
            fs::create_dir(&folder).unwrap();
            publish(draft).unwrap();
            assert_eq!(text(&scene.path("e/f")), "new bytes");
            fs::remove_dir_all(scene.path("e")).unwrap();

            let draft = Draft::beside(&folder.join("f")).unwrap();
            fs::remove_dir_all(&folder).unwrap();
            let error = publish(draft).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            assert!(error.to_string().contains("removed meanwhile"), "{error}");
        });
        assert!(scene.names().is_empty());
    }
}

#[test]
fn whole_or_the_same_file() {
    let scene = Scene::new();
    let linked = |mode| {
        let path = scene.put("f", mode);
        let _ = fs::remove_file(scene.path("g"));
        fs::hard_link(&path, scene.path("g")).unwrap();
        path
    };
    let path = linked(0o640);
    assert_eq!(publish(Draft::beside(&path).unwrap()).unwrap(), Published::Replaced);
    assert_eq!((text(&path), text(&scene.path("g")), mode(&path)), ("new bytes".into(), "old".into(), 0o640));

    let path = linked(0o640);
    let draft = replacing(&path);
    assert_eq!(draft.copied_because(), Some(&InPlaceReason::Links(2)));
    assert_eq!(text(&path), "old", "until it is complete");
    publish(draft).unwrap();
    assert_eq!((text(&path), text(&scene.path("g"))), ("new bytes".into(), "new bytes".into()));

    let path = linked(0o640);
    let before = fs::metadata(&path).unwrap().ino();
    let output = OutputFile::open(&path, FileMode::USUAL).unwrap();
    assert_eq!(text(&path), "old", "until it begins");
    output.begin(Some(9)).unwrap();
    assert!(!text(&path).contains("old"));
    rustix::io::pwrite(output.ssd().file().cached_fd(), b"new bytes", 0).unwrap();
    assert_eq!(output.publish(9).unwrap(), Published::InPlace(InPlaceReason::Links(2)));
    assert_eq!((text(&scene.path("g")), fs::metadata(&path).unwrap().ino()), ("new bytes".into(), before));
    assert_eq!(scene.names(), ["f", "g"]);
}

#[test]
fn kernels_and_file_systems_that_refuse() {
    let scene = Scene::new();
    let empty_path =
        Refused { call: libc::SYS_linkat, with: Some((4, libc::AT_EMPTY_PATH as u64)), errno: libc::ENOENT };
    let careful = refused(libc::SYS_renameat2, libc::EINVAL);
    let rename = |errno| [refused(libc::SYS_renameat, errno), refused(libc::SYS_renameat2, errno)];
    let in_place = |errno| Published::InPlace(InPlaceReason::Refused(errno));
    let [busy, busy2] = rename(libc::EBUSY);
    let table: [(&str, Vec<Refused>, Published); 8] = [
        ("nothing", vec![], Published::Replaced),
        ("linking by descriptor", vec![empty_path], Published::Replaced),
        ("linking", vec![refused(libc::SYS_linkat, libc::EPERM)], Published::Replaced),
        ("files without names", vec![NO_NAMELESS], Published::Replaced),
        ("and renaming with care", vec![NO_NAMELESS, careful], Published::Replaced),
        ("renaming", vec![busy, busy2], in_place(libc::EBUSY)),
        (
            "renaming and copying",
            {
                let [one, two] = rename(libc::EXDEV);
                vec![one, two, refused(libc::SYS_copy_file_range, libc::ENOSYS)]
            },
            in_place(libc::EXDEV),
        ),
        ("locks", vec![NO_NAMELESS, refused(libc::SYS_flock, libc::ENOLCK)], Published::Replaced),
    ];
    for (what, calls, replaced) in table {
        let renames = replaced == Published::Replaced;
        let path = scene.put("f", 0o640);
        let new = scene.path("n");
        let (over, fresh) = without(&calls, || (publish(replacing(&path)), renames.then(|| publish(replacing(&new)))));
        assert_eq!(over.expect(what), replaced, "{what}");
        assert_eq!((text(&path), mode(&path)), ("new bytes".into(), 0o640), "{what}");
        if let Some(fresh) = fresh {
            assert_eq!(fresh.expect(what), Published::New, "{what}");
            assert_eq!(text(&new), "new bytes", "{what}");
            fs::remove_file(&new).unwrap();
        }
        assert_eq!(scene.names(), ["f"], "{what}");
    }
}

#[test]
fn errors_at_the_end_leave_what_was() {
    let scene = Scene::new();
    let table = [
        ("fsync", libc::SYS_fsync, libc::ENOSPC),
        ("fsync", libc::SYS_fsync, libc::EIO),
        ("cutting", libc::SYS_ftruncate, libc::EIO),
        ("linking", libc::SYS_linkat, libc::ENOSPC),
    ];
    for (what, call, errno) in table {
        for named in [false, true] {
            if named && call == libc::SYS_linkat {
                continue;
            }
            let path = scene.put("f", 0o640);
            let new = scene.path("n");
            let calls: &[Refused] = if named { &[NO_NAMELESS] } else { &[] };
            let drafts = without(calls, || [Draft::beside(&path).unwrap(), Draft::beside(&new).unwrap()]);
            for (nth, draft) in drafts.into_iter().enumerate() {
                let error = without(&[refused(call, errno)], || {
                    draft.write(b"longer").unwrap();
                    draft.publish(5).unwrap_err()
                });
                assert_eq!(error.raw_os_error(), Some(errno), "{what}, named {named}, {nth}: {error}");
            }
            assert_eq!((text(&path), mode(&path)), ("old".into(), 0o640), "{what}, named {named}");
            assert_eq!(scene.names(), ["f"], "{what}, named {named}");
        }
    }
}

#[test]
fn without_room_the_old_bytes_stay() {
    let scene = Scene::new();
    let path = scene.put("f", 0o644);
    fs::hard_link(&path, scene.path("g")).unwrap();
    let error = without(&[refused(libc::SYS_fallocate, libc::ENOSPC)], || {
        let output = OutputFile::open(&path, FileMode::USUAL).unwrap();
        output.begin(Some(1 << 20)).unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(error.to_string().contains("nothing was changed"), "{error}");
    assert_eq!((text(&path), fs::metadata(&path).unwrap().len()), ("old".into(), 3));

    // Where nothing can be reserved, or nothing zeroed in place, the file is emptied and written.
    for errno in [libc::EOPNOTSUPP, libc::ENOSYS] {
        without(&[refused(libc::SYS_fallocate, errno)], || {
            let output = OutputFile::open(&path, FileMode::USUAL).unwrap();
            output.begin(Some(9)).unwrap();
            assert_eq!(text(&path), "");
            output.publish(2).unwrap();
        });
        assert_eq!(text(&path), "\0\0");
    }
    let output = OutputFile::open(&path, FileMode::USUAL).unwrap();
    output.begin(None).unwrap();
    assert_eq!(text(&path), "");
    drop(output);
}

#[test]
fn what_the_dead_left_is_removed_and_nothing_else() {
    let scene = Scene::new();
    let folder = Folder::open(&scene.0).unwrap();
    let hidden = |prefix| names::hidden(&folder, prefix, names::PRIVATE).unwrap();
    let (dead, alive, scratch) = (hidden(names::OUTPUT), hidden(names::OUTPUT), hidden(names::SCRATCH));
    // As a process that dies: the descriptor is closed, and with it the lock is gone.
    drop(dead.0);
    drop(scratch.0);
    let named = dead.1.into_string().unwrap();
    let (stem, digit) = named.split_at(named.len() - 1);
    let neighbour = format!("{stem}{}", if digit == "0" { "1" } else { "0" });
    let pipe = format!("{}{}", &stem[..stem.len() - 1], "ab");
    rustix::fs::mknodat(rustix::fs::CWD, scene.path(&pipe), FileType::Fifo, names::PRIVATE, 0).unwrap();
    fs::hard_link(scene.put("of-a-user", 0o600), scene.path(&neighbour)).unwrap();
    // A user who has a lock on a file of ours is at work on it.
    let held = fs::File::open(scene.path(&neighbour)).unwrap();
    rustix::fs::flock(&held, FlockOperation::LockShared).unwrap();
    scene.put(".dpipe-output-1-0", 0o600);
    scene.put(".dpipe-output-notes", 0o600);

    drop(Draft::beside(&scene.path("f")).unwrap());
    let alive_name = alive.1.to_str().unwrap().to_owned();
    let scratch_name = scratch.1.to_str().unwrap().to_owned();
    let mut expected = vec![
        alive_name.as_str(),
        scratch_name.as_str(),
        &neighbour,
        &pipe,
        ".dpipe-output-1-0",
        ".dpipe-output-notes",
        "of-a-user",
    ];
    expected.sort_unstable();
    assert_eq!(scene.names(), expected);

    without(&[NO_NAMELESS], || drop(Ssd::scratch_in(&scene.0).unwrap()));
    assert!(!scene.path(&scratch_name).exists());
    assert!(scene.path(&alive_name).exists());
    drop(alive);
}

#[test]
fn scratch_files_have_no_name_and_are_private() {
    let scene = Scene::new();
    for calls in [&[][..], &[NO_NAMELESS], &[NO_NAMELESS, refused(libc::SYS_flock, libc::ENOLCK)]] {
        without(calls, || {
            let ssd = Ssd::scratch_in(&scene.0).unwrap();
            let stat = rustix::fs::fstat(ssd.file().cached_fd()).unwrap();
            assert_eq!((stat.st_nlink, stat.st_mode & 0o777), (0, 0o600));
            rustix::io::pwrite(ssd.file().cached_fd(), b"bytes", 4096).unwrap();
            let mut back = [0; 5];
            rustix::io::pread(ssd.file().cached_fd(), &mut back, 4096).unwrap();
            assert_eq!(&back, b"bytes");
        });
        assert!(scene.names().is_empty());
    }
    let error = Ssd::scratch_in(&scene.path("nowhere")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert_eq!(Ssd::scratch_in(&scene.put("f", 0o644)).unwrap_err().raw_os_error(), Some(libc::ENOTDIR));
}

/// Runs something as another user, on a thread of its own (users belong to threads in the kernel); `None` where this one
/// may not.
fn as_nobody<T: Send>(test: &str, work: impl FnOnce() -> T + Send) -> Option<T> {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: {test}: it needs root");
        return None;
    }
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let (user, group) = (rustix::fs::Uid::from_raw(65534), rustix::fs::Gid::from_raw(65534));
            rustix::thread::set_thread_groups(&[group]).unwrap();
            rustix::thread::set_thread_res_gid(group, group, group).unwrap();
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            work()
        });
        Some(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

#[test]
fn what_cannot_be_kept_is_never_more_readable() {
    let scene = Scene::new();
    fs::set_permissions(&scene.0, Permissions::from_mode(0o777)).unwrap();
    // The group may read, and the process is no member of it.
    let path = scene.put("f", 0o666);
    let protected = scene.put("p", 0o644);
    let outcome = as_nobody("what_cannot_be_kept_is_never_more_readable", || {
        let refused = Draft::beside(&protected).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused}");
        assert_eq!(replacing(&path).copied_because(), Some(&InPlaceReason::Lost(Lost::Group)));
        publish(Draft::beside(&path).unwrap()).unwrap()
    });
    if let Some(published) = outcome {
        let meta = fs::metadata(&path).unwrap();
        assert_eq!(published, Published::Replaced);
        assert_eq!((meta.uid(), meta.gid(), mode(&path)), (65534, 65534, 0o600));
        assert_eq!((text(&path), text(&protected)), ("new bytes".into(), "old".into()));
    }
}

#[test]
fn a_draft_is_completed_elsewhere_where_its_folder_takes_none() {
    let scene = Scene::new();
    let path = scene.put("f", 0o666);
    fs::set_permissions(&scene.0, Permissions::from_mode(0o555)).unwrap();
    as_nobody("a_draft_is_completed_elsewhere_where_its_folder_takes_none", || {
        let error = Draft::beside(&path).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EACCES), "{error}");
        assert_eq!(Draft::beside(&scene.path("new")).unwrap_err().raw_os_error(), Some(libc::EACCES));
        let draft = replacing(&path);
        let reason = InPlaceReason::Folder(libc::EACCES);
        assert_eq!(draft.copied_because(), Some(&reason));
        assert_eq!(publish(draft).unwrap(), Published::InPlace(reason));
        assert_eq!(text(&path), "new bytes");
    });
}

#[test]
fn paths_that_are_no_files() {
    let scene = Scene::new();
    let kind = |path: &Path| target_kind(path).map_err(|e| e.raw_os_error());
    assert_eq!(kind(&scene.0), Ok(TargetKind::Folder));
    assert_eq!(kind(&scene.path("new")), Ok(TargetKind::Nothing));
    assert_eq!(kind(&scene.put("f", 0o644)), Ok(TargetKind::File));
    assert_eq!(kind(Path::new("/dev/null")), Ok(TargetKind::Stream));
    assert_eq!(kind(Path::new("/proc/self/comm")), Ok(TargetKind::Stream));
    assert_eq!(kind(Path::new("")), Err(Some(libc::ENOENT)));
    assert_eq!(kind(&scene.path("new/")), Err(Some(libc::EISDIR)));
    let _socket = std::os::unix::net::UnixListener::bind(scene.path("s")).unwrap();
    assert_eq!(kind(&scene.path("s")), Ok(TargetKind::Socket));
    for no_file in ["/dev/null", "/proc/self/comm"] {
        let error = Draft::beside(Path::new(no_file)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
}
