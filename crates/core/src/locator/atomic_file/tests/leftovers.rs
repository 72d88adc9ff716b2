//! Hidden names: those of processes that are gone, those in use, and file systems that need them.

use std::cell::RefCell;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;

use super::*;

/// Repeats until a file is gone: a process that another test forked also holds its lock while it
/// lives.
fn until_removed(mut tidies: impl FnMut(), file: &Path) {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        tidies();
        if !file.exists() || Instant::now() > until {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn only_files_of_dead_processes_are_removed() {
    let scene = Scene::new();
    let folder = Folder::open(scene.at()).unwrap();
    let hidden = |prefix| names::hidden(&folder, prefix, names::PRIVATE).unwrap();
    let (dead, alive, scratch) = (hidden(names::OUTPUT), hidden(names::OUTPUT), hidden(names::SCRATCH));
    // This has the effect of a process's death: the descriptor is closed, which ends the lock.
    drop(dead.0);
    drop(scratch.0);
    let named = dead.1.into_string().unwrap();
    let (stem, digit) = named.split_at(named.len() - 1);
    let neighbour = format!("{stem}{}", if digit == "0" { "1" } else { "0" });
    let pipe = format!("{}{}", &stem[..stem.len() - 1], "ab");
    rustix::fs::mknodat(rustix::fs::CWD, scene.path(&pipe), FileType::Fifo, names::PRIVATE, 0).unwrap();
    fs::hard_link(scene.put("of-a-user", 0o600), scene.path(&neighbour)).unwrap();
    // A user who has a lock on one of our files is working on it.
    let held = fs::File::open(scene.path(&neighbour)).unwrap();
    rustix::fs::flock(&held, FlockOperation::LockShared).unwrap();
    scene.put(".dpipe-output-1-0", 0o600);
    scene.put(".dpipe-output-notes", 0o600);

    let dead_name = named.clone();
    until_removed(|| drop(AtomicFile::create(&scene.path("f")).unwrap()), &scene.path(&dead_name));
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

    until_removed(
        || {
            without(&[no_nameless()], || drop(Ssd::scratch_in(scene.at()).unwrap()));
        },
        &scene.path(&scratch_name),
    );
    assert!(!scene.path(&scratch_name).exists());
    assert!(scene.path(&alive_name).exists());
    drop(alive);
}

#[test]
fn scratch_files_have_no_name_and_are_private() {
    let scene = Scene::new();
    for calls in [&[][..], &[no_nameless()], &[no_nameless(), refused(libc::SYS_flock, libc::ENOLCK)]] {
        without(calls, || {
            let ssd = Ssd::scratch_in(scene.at()).unwrap();
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
    assert_eq!(Ssd::scratch_in(&scene.put("f", 0o644)).unwrap_err().errno(), Some(libc::ENOTDIR));
}

/// Waits until the names behind a process's file system are these. That process may keep a file
/// under a name of its own until it learns that nobody has it open any more.
fn settles_on(mounted: &Mounted, names: &[&str]) {
    let since = std::time::Instant::now();
    loop {
        let entries = fs::read_dir(mounted.behind("")).unwrap();
        let mut now: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        now.sort();
        if now == names {
            return;
        }
        assert!(since.elapsed().as_secs() < 60, "{}: {now:?}", mounted.at().display());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn through_file_systems_of_processes() {
    let scene = Scene::new();
    for (program, mounted) in [("bindfs", Mounted::bindfs(scene.at())), ("mergerfs", Mounted::mergerfs(scene.at()))] {
        let mounted = match mounted {
            Ok(mounted) => mounted,
            Err(why) => {
                println!("SKIPPED: through_file_systems_of_processes: {why}");
                continue;
            }
        };
        let path = mounted.path("f");
        assert_eq!(publish(replacing(&path)).unwrap(), PublishOutcome::New, "{program}");
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        assert_eq!(publish(replacing(&path)).unwrap(), PublishOutcome::Replaced, "{program}");
        assert_eq!((text(&path), mode(&path)), ("new bytes".into(), 0o640), "{program}");
        drop(replacing(&path));
        settles_on(&mounted, &["f"]);

        let ssd = Ssd::scratch_in(mounted.at()).unwrap();
        rustix::io::pwrite(ssd.file().cached_fd(), b"bytes", 4096).unwrap();
        let mut back = [0; 5];
        rustix::io::pread(ssd.file().cached_fd(), &mut back, 4096).unwrap();
        assert_eq!(&back, b"bytes", "{program}");
        drop(ssd);
        settles_on(&mounted, &["f"]);

        // Locks are not visible beneath the file system, so a user of the folder itself must leave
        // alone the files that are in use above.
        let draft = AtomicFile::create(&path).unwrap();
        let hidden = draft.hidden.clone().unwrap();
        drop(AtomicFile::create(&mounted.behind("g")).unwrap());
        assert!(mounted.behind("").join(&hidden).exists(), "{program}: removed at work");
        drop(AtomicFile::create(&mounted.path("g")).unwrap());
        assert!(mounted.at().join(&hidden).exists(), "{program}: removed at work");
        publish(draft).unwrap();

        // The next user through the same view removes what a dead process left.
        let folder = Folder::open(mounted.at()).unwrap();
        drop(names::hidden(&folder, names::OUTPUT, names::PRIVATE).unwrap());
        assert_eq!(fs::read_dir(mounted.at()).unwrap().count(), 2, "{program}");
        drop(AtomicFile::create(&path).unwrap());
        settles_on(&mounted, &["f"]);
    }
}

#[test]
fn a_child_leaves_its_parents_files_alone() {
    let scene = Scene::new();
    let path = scene.put("f", 0o644);
    without(&[no_nameless()], || {
        let (draft, output) = (replacing(&path), OutputFile::open(&path, FileMode::USUAL).unwrap());
        let hidden = draft.hidden.clone().unwrap();
        let (draft, output) = (RefCell::new(Some(draft)), RefCell::new(Some(output)));
        datapipes_testkit::child::in_child(&|| {
            let error = draft.borrow_mut().take().unwrap().publish(3).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Forked, "{error}");
            drop(output.borrow_mut().take());
        });
        assert!(scene.path(hidden.to_str().unwrap()).exists());
        drop(output.borrow_mut().take());
        publish(draft.borrow_mut().take().unwrap()).unwrap();
    });
    assert_eq!((scene.names(), text(&path)), (vec!["f".to_owned()], "new bytes".to_owned()));
}
