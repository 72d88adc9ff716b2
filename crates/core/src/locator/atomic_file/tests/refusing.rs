//! Kernels, file systems and directories that refuse.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;

#[test]
fn kernels_and_file_systems_that_refuse() {
    let scene = Scene::new();
    let empty_path =
        RefusedCall { number: libc::SYS_linkat, errno: libc::ENOENT }.with_bits(4, libc::AT_EMPTY_PATH as u32);
    let careful = refused(libc::SYS_renameat2, libc::EINVAL);
    let rename = |errno| [refused(libc::SYS_renameat, errno), refused(libc::SYS_renameat2, errno)];
    let in_place = |errno| PublishOutcome::InPlace(InPlaceReason::Refused(errno));
    let [busy, busy2] = rename(libc::EBUSY);
    let table: [(&str, Vec<RefusedUse>, PublishOutcome); 8] = [
        ("nothing", vec![], PublishOutcome::Replaced),
        ("linking by descriptor", vec![empty_path], PublishOutcome::Replaced),
        ("linking", vec![refused(libc::SYS_linkat, libc::EPERM)], PublishOutcome::Replaced),
        ("files without names", vec![no_nameless()], PublishOutcome::Replaced),
        ("and renaming with care", vec![no_nameless(), careful], PublishOutcome::Replaced),
        ("renaming", vec![busy, busy2], in_place(libc::EBUSY)),
        (
            "renaming and copying",
            {
                let [one, two] = rename(libc::EXDEV);
                vec![one, two, refused(libc::SYS_copy_file_range, libc::ENOSYS)]
            },
            in_place(libc::EXDEV),
        ),
        ("locks", vec![no_nameless(), refused(libc::SYS_flock, libc::ENOLCK)], PublishOutcome::Replaced),
    ];
    for (what, calls, replaced) in table {
        let renames = replaced == PublishOutcome::Replaced;
        let path = scene.put("f", 0o640);
        let new = scene.path("n");
        let work = || (publish(replacing(&path)), renames.then(|| publish(replacing(&new))));
        let Some((over, fresh)) = without(&calls, work) else { return };
        assert_eq!(over.expect(what), replaced, "{what}");
        assert_eq!((text(&path), mode(&path)), ("new bytes".into(), 0o640), "{what}");
        if let Some(fresh) = fresh {
            assert_eq!(fresh.expect(what), PublishOutcome::New, "{what}");
            assert_eq!(text(&new), "new bytes", "{what}");
            fs::remove_file(&new).unwrap();
        }
        assert_eq!(scene.names(), ["f"], "{what}");
    }
}

#[test]
fn errors_at_the_end_leave_the_old_file() {
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
            let calls: &[RefusedUse] = if named { &[no_nameless()] } else { &[] };
            let both = || [AtomicFile::create(&path).unwrap(), AtomicFile::create(&new).unwrap()];
            let Some(drafts) = without(calls, both) else { return };
            for (nth, draft) in drafts.into_iter().enumerate() {
                let work = || {
                    draft.write(b"longer").unwrap();
                    draft.publish(5).unwrap_err()
                };
                let Some(error) = without(&[refused(call, errno)], work) else { return };
                assert_eq!(error.errno(), Some(errno), "{what}, named {named}, {nth}: {error}");
            }
            assert_eq!((text(&path), mode(&path)), ("old".into(), 0o640), "{what}, named {named}");
            assert_eq!(scene.names(), ["f"], "{what}, named {named}");
        }
    }
}

/// A rename that is not allowed is a reason to write in place; a failure of the device is not.
#[test]
fn a_device_that_fails_at_the_name_is_not_written_to_again() {
    let scene = Scene::new();
    let path = scene.put("f", 0o640);
    for errno in [libc::EIO, libc::ENOSPC, libc::EROFS, libc::EDQUOT] {
        let calls = [refused(libc::SYS_renameat, errno), refused(libc::SYS_renameat2, errno)];
        let Some(outcome) = without(&calls, || publish(replacing(&path))) else { return };
        let error = outcome.unwrap_err();
        assert_eq!((error.errno(), text(&path)), (Some(errno), "old".into()), "{error}");
    }
    assert_eq!(scene.names(), ["f"]);
}

#[test]
fn without_room_the_old_bytes_stay() {
    let scene = Scene::new();
    let path = scene.put("f", 0o644);
    fs::hard_link(&path, scene.path("g")).unwrap();
    let full = [refused(libc::SYS_fallocate, libc::ENOSPC)];
    let Some(error) = without(&full, || {
        let output = OutputFile::open(&path, FileMode::USUAL).unwrap();
        output.begin(Some(1 << 20)).unwrap_err()
    }) else {
        return;
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(error.to_string().contains("nothing was changed"), "{error}");
    assert_eq!((text(&path), fs::metadata(&path).unwrap().len()), ("old".into(), 3));

    // Where nothing can be reserved or zeroed in place, the file is emptied and written.
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

/// Runs a closure as another user, on its own thread (in the kernel, a thread has a user). Returns
/// `None` where this user may not.
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
fn a_file_with_lost_access_rules_is_not_more_readable() {
    let scene = Scene::new();
    fs::set_permissions(scene.at(), Permissions::from_mode(0o777)).unwrap();
    // The group may read, and the process is not a member of it.
    let path = scene.put("f", 0o666);
    let protected = scene.put("p", 0o644);
    let outcome = as_nobody("a_file_with_lost_access_rules_is_not_more_readable", || {
        let refused = AtomicFile::create(&protected).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused}");
        assert_eq!(replacing(&path).copied_because(), Some(&InPlaceReason::Lost(LostAttribute::Group)));
        publish(AtomicFile::create(&path).unwrap()).unwrap()
    });
    if let Some(published) = outcome {
        let meta = fs::metadata(&path).unwrap();
        assert_eq!(published, PublishOutcome::Replaced);
        assert_eq!((meta.uid(), meta.gid(), mode(&path)), (65534, 65534, 0o600));
        assert_eq!((text(&path), text(&protected)), ("new bytes".into(), "old".into()));
    }
}

#[test]
fn a_draft_is_completed_elsewhere_where_its_folder_takes_none() {
    let scene = Scene::new();
    let path = scene.put("f", 0o666);
    fs::set_permissions(scene.at(), Permissions::from_mode(0o555)).unwrap();
    as_nobody("a_draft_is_completed_elsewhere_where_its_folder_takes_none", || {
        let error = AtomicFile::create(&path).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EACCES), "{error}");
        assert_eq!(AtomicFile::create(&scene.path("new")).unwrap_err().errno(), Some(libc::EACCES));
        let draft = replacing(&path);
        let reason = InPlaceReason::Folder(libc::EACCES);
        assert_eq!(draft.copied_because(), Some(&reason));
        assert_eq!(publish(draft).unwrap(), PublishOutcome::InPlace(reason));
        assert_eq!(text(&path), "new bytes");
    });
}
