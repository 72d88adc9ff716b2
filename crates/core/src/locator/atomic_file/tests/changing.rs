//! Files that appear, disappear and change while one is being written.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;

#[test]
fn only_the_owner_may_read_an_incomplete_file() {
    let scene = Scene::new();
    let usual = usual(&scene);
    let private = |draft: &AtomicFile| rustix::fs::fstat(draft.fd()).unwrap().st_mode & 0o7777;
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
            let draft = AtomicFile::replacing(&path, made).unwrap();
            assert_eq!(draft.hidden.is_some(), named, "{name}");
            assert_eq!(private(&draft), 0o600, "{name}: under way");
            publish(draft).unwrap();
            assert_eq!(mode(&path), expected, "{name}: published");
        }
    };
    check(false);
    without(&[no_nameless()], || check(true));
}

#[test]
fn a_mode_that_is_changed_meanwhile_stays() {
    let scene = Scene::new();
    let path = scene.put("f", 0o644);
    let draft = replacing(&path);
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    assert_eq!(publish(draft).unwrap(), PublishOutcome::Replaced);
    assert_eq!((mode(&path), text(&path)), (0o600, "new bytes".into()));
}

#[test]
fn files_that_appear_and_disappear_meanwhile() {
    let scene = Scene::new();
    for named in [false, true] {
        let calls: &[RefusedUse] = if named { &[no_nameless()] } else { &[] };
        without(calls, || {
            // A file that appears meanwhile may be anyone's: nothing is taken over from it, and
            // nothing is written into it.
            let usual = usual(&scene);
            let path = scene.path("comes");
            let draft = replacing(&path);
            fs::write(scene.path("spy"), "").unwrap();
            fs::hard_link(scene.path("spy"), &path).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o606)).unwrap();
            if rustix::process::geteuid().is_root() {
                std::os::unix::fs::chown(&path, Some(65534), Some(65534)).unwrap();
            }
            assert_eq!(publish(draft).unwrap(), PublishOutcome::Replaced, "named {named}");
            assert_eq!((mode(&path), text(&path)), (usual, "new bytes".into()));
            assert_eq!(fs::metadata(&path).unwrap().uid(), rustix::process::geteuid().as_raw());
            assert_eq!(text(&scene.path("spy")), "");
            fs::remove_file(scene.path("spy")).unwrap();

            let path = scene.put("goes", 0o640);
            let draft = replacing(&path);
            fs::remove_file(&path).unwrap();
            assert_eq!(publish(draft).unwrap(), PublishOutcome::New, "named {named}");
            assert_eq!((mode(&path), text(&path)), (0o640, "new bytes".into()), "that of the one that went");

            let path = scene.put("other", 0o640);
            let draft = replacing(&path);
            fs::remove_file(&path).unwrap();
            scene.put("other", 0o600);
            assert_eq!(publish(draft).unwrap(), PublishOutcome::Replaced, "named {named}");
            assert_eq!((mode(&path), text(&path)), (0o640, "new bytes".into()), "that of the first");

            let path = scene.path("folder");
            let draft = replacing(&path);
            fs::create_dir(&path).unwrap();
            let error = publish(draft).unwrap_err();
            assert!(error.to_string().contains("not a regular file"), "{error}");
            fs::remove_dir(&path).unwrap();

            let path = scene.put("linked", 0o644);
            let draft = replacing(&path);
            fs::hard_link(&path, scene.path("second")).unwrap();
            assert_eq!(publish(draft).unwrap(), PublishOutcome::InPlace(InPlaceReason::Links(2)));
            assert_eq!(text(&scene.path("second")), "new bytes");
        });
        assert_eq!(scene.names(), ["comes", "goes", "linked", "other", "second"], "named {named}");
        scene.names().iter().for_each(|name| fs::remove_file(scene.path(name)).unwrap());
    }
}

#[test]
fn folders_that_go_and_move() {
    let scene = Scene::new();
    for calls in [&[][..], &[no_nameless()]] {
        without(calls, || {
            let folder = scene.path("d");
            fs::create_dir(&folder).unwrap();
            let draft = AtomicFile::create(&folder.join("f")).unwrap();
            fs::rename(&folder, scene.path("e")).unwrap();
            fs::create_dir(&folder).unwrap();
            publish(draft).unwrap();
            assert_eq!(text(&scene.path("e/f")), "new bytes");
            fs::remove_dir_all(scene.path("e")).unwrap();

            let draft = AtomicFile::create(&folder.join("f")).unwrap();
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
    assert_eq!(publish(AtomicFile::create(&path).unwrap()).unwrap(), PublishOutcome::Replaced);
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
    assert_eq!(output.publish(9).unwrap(), PublishOutcome::InPlace(InPlaceReason::Links(2)));
    assert_eq!((text(&scene.path("g")), fs::metadata(&path).unwrap().ino()), ("new bytes".into(), before));
    assert_eq!(scene.names(), ["f", "g"]);
}

#[test]
fn paths_that_are_no_files() {
    let scene = Scene::new();
    let kind = |path: &Path| target_kind(path).map_err(|e| e.errno());
    assert_eq!(kind(scene.at()), Ok(TargetKind::Folder));
    assert_eq!(kind(&scene.path("new")), Ok(TargetKind::Nothing));
    assert_eq!(kind(&scene.put("f", 0o644)), Ok(TargetKind::File));
    assert_eq!(kind(Path::new("/dev/null")), Ok(TargetKind::Stream));
    assert_eq!(kind(Path::new("/proc/self/comm")), Ok(TargetKind::Stream));
    assert_eq!(kind(Path::new("")), Err(Some(libc::ENOENT)));
    assert_eq!(kind(&scene.path("new/")), Err(Some(libc::EISDIR)));
    let _socket = std::os::unix::net::UnixListener::bind(scene.path("s")).unwrap();
    assert_eq!(kind(&scene.path("s")), Ok(TargetKind::Socket));
    for no_file in ["/dev/null", "/proc/self/comm"] {
        let error = AtomicFile::create(Path::new(no_file)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
}

#[test]
fn observers_of_an_atomic_file_are_told_of_writes() {
    #[derive(Default)]
    struct Heard(std::sync::Mutex<Vec<(bool, std::ops::Range<u64>)>>);
    impl crate::watch::WriteObserver for Heard {
        fn changing(&self, range: std::ops::Range<u64>) {
            self.0.lock().unwrap().push((true, range));
        }

        fn changed(&self, range: std::ops::Range<u64>) {
            self.0.lock().unwrap().push((false, range));
        }
    }
    let scene = Scene::new();
    let draft = replacing(&scene.put("f", 0o644));
    let heard = std::sync::Arc::new(Heard::default());
    let watch: std::sync::Arc<dyn crate::watch::WriteObserver> = heard.clone();
    draft.ssd().file().write_observers().add(&watch);
    draft.write(b"bytes").unwrap();
    assert_eq!(*heard.0.lock().unwrap(), [(true, 0..5), (false, 0..5)]);
}
