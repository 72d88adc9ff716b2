//! `dpipe sort -o` leaves the files that GNU sort leaves, whatever is at the name: links, devices,
//! descriptors, other users' files, mounts; and `dpipe copy` those that `cp` leaves.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::io::Read;
use std::process::Stdio;

use scene::twins::{Case, Twins, Who, case};

const CASES: &[Case] = &[
    case("a new file, umask 022", "", "umask 022; $TOOL in -o out", Who::Any),
    case("a new file, umask 077", "", "umask 077; $TOOL in -o out", Who::Any),
    case("a new file, umask 0", "", "umask 0; $TOOL in -o out", Who::Any),
    case("a private file is replaced", "echo old > out; chmod 600 out", "$TOOL in -o out", Who::Any),
    case("a file of mode 640 is replaced", "echo old > out; chmod 640 out", "umask 077; $TOOL in -o out", Who::Any),
    case("a file of mode 604 is replaced", "echo old > out; chmod 604 out", "$TOOL in -o out", Who::Any),
    case("the input is the output", "cp in out", "$TOOL out -o out", Who::Any),
    case("a hard link", "echo old > out; ln out other", "$TOOL in -o out", Who::Any),
    case("a hard link of the input", "ln in other; echo 0 > more", "$TOOL in more -o other", Who::Any),
    case("merging a hard link of an input", "printf '1\\n2\\n' > a; printf '0\\n3\\n' > b; ln a out", MERGE, Who::Any),
    case("merging into an input", "printf '1\\n2\\n' > a; printf '0\\n3\\n' > b", "$TOOL -m a b -o b", Who::Any),
    case("merging into an input twice", "printf '1\\n2\\n' > a; ln a c", "$TOOL -m a a c -o a", Who::Any),
    case("unique, in place", "ln in out; printf '3\\n3\\n' > more", "$TOOL -u in more -o out", Who::Any),
    case("nothing to sort, in place", "ln in out; : > none", "$TOOL none -o out", Who::Any),
    case("a file longer than the output, in place", "seq 100000 > out; ln out other", "$TOOL in -o out", Who::Any),
    case("a link", "mkdir d; echo old > d/file; ln -s d/file out", "$TOOL in -o out", Who::Any),
    case("a link that dangles", "mkdir d; ln -s d/file out", "umask 027; $TOOL in -o out", Who::Any),
    case("links that dangle", "mkdir d e; ln -s ../e/two d/one; ln -s d/one out", "$TOOL in -o out", Who::Any),
    case("a link that dangles by a whole path", "ln -s $PWD/file out", "$TOOL in -o out", Who::Any),
    case("a link into nowhere", "ln -s nowhere/file out", "$TOOL in -o out", Who::Any),
    case("a link to itself", "ln -s out out", "$TOOL in -o out", Who::Any),
    case("a link to a folder", "mkdir d; ln -s d out", "$TOOL in -o out", Who::Any),
    case("no name", "", "$TOOL in -o ''", Who::Any),
    case("a folder", "mkdir d", "$TOOL in -o d", Who::Any),
    case("a folder with a slash", "mkdir d", "$TOOL in -o d/", Who::Any),
    case("a name with a slash", "", "$TOOL in -o new/", Who::Any),
    case("a file with a slash", "echo old > out", "$TOOL in -o out/", Who::Any),
    case("here", "", "$TOOL in -o .", Who::Any),
    case("above", "mkdir d", "$TOOL in -o d/..", Who::Any),
    case("in a folder that is not there", "", "$TOOL in -o d/out", Who::Any),
    case("in a file", "echo old > out", "$TOOL in -o out/out", Who::Any),
    case("a name that is too long", "", "$TOOL in -o $(printf %0300d 0)", Who::Any),
    case("through dots and links", "mkdir -p d/e; ln -s d/e l", "$TOOL in -o l/../out", Who::Any),
    case("a device", "", "$TOOL in -o /dev/null", Who::Any),
    case("a device that is full", "", "$TOOL in -o /dev/full", Who::Any),
    case("a named pipe", "mkfifo p", "cat p > got & $TOOL in -o p; r=$?; wait; exit $r", Who::Any),
    case("the standard output, a file", "", "{ $TOOL in -o /dev/stdout; } > out", Who::Any),
    case("the standard output, and more", "", "{ $TOOL in -o /dev/stdout; printf x; } > out", Who::Any),
    case("the standard output, appended to", "echo old > out", "{ $TOOL in -o /dev/stdout; } >> out", Who::Any),
    case("the standard output, a pipe", "", "$TOOL in -o /dev/stdout | cat > out", Who::Any),
    case("a descriptor", "", "$TOOL in -o /dev/fd/3 3> out", Who::Any),
    case("a descriptor by number", "echo old > out", "$TOOL in -o /proc/self/fd/3 3<> out", Who::Any),
    case("a descriptor of a file without a name", "", NAMELESS, Who::Any),
    case("a descriptor for reading", "echo old > out", "$TOOL in -o /dev/fd/3 3< out", Who::Any),
    case("a descriptor that is not open", "", "$TOOL in -o /dev/fd/9", Who::Any),
    case("a descriptor of a pipe", "", "{ $TOOL in -o /dev/fd/3 3>&1; } | cat > out", Who::Any),
    case("a link to a descriptor", "ln -s /proc/self/fd/3 out", "$TOOL in -o out 3> file", Who::Any),
    case("merging what is the standard output", "printf '2\\n3\\n' > a; echo 1 > b", "$TOOL -m a b 1<> a", Who::Any),
    case("an extended attribute", "echo old > out; setfattr -n user.note -v kept out", "$TOOL in -o out", Who::Any),
    case("an ACL", "echo old > out; chmod 600 out; setfacl -m u:2:rw,g:3:r out", "$TOOL in -o out", Who::Any),
    case("an ACL that forbids", "echo old > out; setfacl -m u:2:---,m::r out", "$TOOL in -o out", Who::Any),
    case("a folder's ACL", "mkdir d; setfacl -d -m u:2:rw,o::- d", "umask 022; $TOOL in -o d/out", Who::Any),
    case("no ACL in a folder with one", "mkdir d; echo old > d/out; setfacl -d -m u:2:rw d", INTO_D, Who::Any),
    case(
        "a label",
        "echo old > out; setfattr -n security.note -v x out; setfattr -n trusted.note -v y out",
        INTO,
        Who::Mounts,
    ),
    case("the longest name", "echo old > $(printf %0255d 0)", "$TOOL in -o $(printf %0255d 0)", Who::Any),
    case("flags", "echo old > out; chattr +dA out", "$TOOL in -o out", Who::Any),
    case("a file that is running", "cp $(command -v sleep) out", RUNNING, Who::Any),
    case("a group's folder", "mkdir d; chgrp 100 d; chmod 2770 d", INTO_D, Who::Any),
    case("a program with its owner's rights", "echo old > out; chmod 4755 out", "$TOOL in -o out", Who::Any),
    case("an immutable file", "echo old > out; chattr +i out", IMMUTABLE, Who::Mounts),
    case("a file to append to", "echo old > out; chattr +a out", APPEND, Who::Mounts),
    case("in a folder to append to", "mkdir d; chattr +a d", APPEND_FOLDER, Who::Mounts),
    case("replaced in a folder to append to", "mkdir d; echo old > d/out; chattr +a d", APPEND_FOLDER, Who::Mounts),
    case("a file that is write-protected", "echo old > out; chmod 444 out", "$TOOL in -o out", Who::Nobody),
    case("a file that cannot be read", "echo old > out; chmod 200 out", "$TOOL in -o out", Who::Nobody),
    case(
        "a file that cannot be read, in place",
        "echo old > out; ln out other; chmod 200 out",
        "$TOOL in -o out",
        Who::Nobody,
    ),
    case("a file without rights", "echo old > out; chmod 0 out", "$TOOL in -o out", Who::Nobody),
    case("in a folder that is write-protected", "mkdir d; echo old > d/out; chmod 555 d", INTO_D, Who::Nobody),
    case("new in a folder that is write-protected", "mkdir d; chmod 555 d", INTO_D, Who::Nobody),
    case("in a folder that cannot be listed", "mkdir d; echo old > d/out; chmod 333 d", INTO_D, Who::Nobody),
    case("new in a folder that cannot be listed", "mkdir d; chmod 333 d", INTO_D, Who::Nobody),
    case("a group's file of another", "echo old > out; chmod 660 out; chown 0:100 out", "$TOOL in -o out", Who::Nobody),
    case("anybody's file of another", "echo old > out; chmod 666 out; chown 0:0 out", "$TOOL in -o out", Who::Nobody),
    case("an own file of an own group", "echo old > out; chmod 660 out; chgrp 100 out", "$TOOL in -o out", Who::Nobody),
    case(
        "an own file of a foreign group",
        "echo old > out; chmod 660 out; chgrp 7 out",
        "$TOOL in -o out",
        Who::Nobody,
    ),
    case("a foreign file", "echo old > out; chmod 644 out; chown 0:0 out", "$TOOL in -o out", Who::Nobody),
    case("a foreign file in a sticky folder", STICKY, INTO_D, Who::Nobody),
    case("an own program with its owner's rights", "echo old > out; chmod 6755 out", "$TOOL in -o out", Who::Nobody),
    case("another's file, as root", "echo old > out; chmod 640 out; chown 2:3 out", "$TOOL in -o out", Who::Mounts),
    case("a capability", "echo old > out; setcap cap_net_raw+ep out", "$TOOL in -o out", Who::Mounts),
    case("a file that is mounted", "echo old > file; echo x > out; mount --bind file out", MOUNTED, Who::Mounts),
    case("a file of a read-only mount", READ_ONLY, INTO_D, Who::Mounts),
    case("two names of one folder", "mkdir d e; printf '9\\n5\\n' > d/out; mount --bind d e", TWO_NAMES, Who::Mounts),
    case("without /proc", "", "umount -l /proc; umask 027; $TOOL in -o out", Who::Mounts),
    case("without /proc, replaced", "echo old > out; chmod 640 out", "umount -l /proc; $TOOL in -o out", Who::Mounts),
    case("without /proc and rights", "chmod 777 .", NO_PROC_NOBODY, Who::Mounts),
];

const INTO: &str = "$TOOL in -o out";
const MERGE: &str = "$TOOL -m a b -o out";
const INTO_D: &str = "umask 022; $TOOL in -o d/out";
const NAMELESS: &str = "exec 3<> gone; rm gone; $TOOL in -o /dev/fd/3; r=$?; cat /dev/fd/3 > got; exit $r";
const RUNNING: &str =
    "./out 30 & pid=$!; until [ /proc/$pid/exe -ef out ]; do :; done; $TOOL in -o out; r=$?; kill $pid; exit $r";
const IMMUTABLE: &str = "$TOOL in -o out; r=$?; chattr -i out; exit $r";
const APPEND: &str = "$TOOL in -o out; r=$?; chattr -a out; exit $r";
const APPEND_FOLDER: &str = "$TOOL in -o d/out; r=$?; chattr -a d; exit $r";
const STICKY: &str = "mkdir d; echo old > d/out; chmod 666 d/out; chmod 1775 d; chown 0:0 d/out; chown 0:100 d";
const MOUNTED: &str = "$TOOL in -o out; r=$?; umount out; exit $r";
const READ_ONLY: &str = "mkdir d; echo old > d/out; mount --bind d d; mount -o remount,ro,bind d";
const TWO_NAMES: &str = "$TOOL d/out in -o e/out; r=$?; umount e; exit $r";
const NO_PROC_NOBODY: &str = "umount -l /proc; setpriv --reuid 65534 --regid 65534 --clear-groups $TOOL in -o out";

#[test]
fn sorted_files_are_as_gnu_sort_leaves_them() {
    let ours = format!("{} sort", env!("CARGO_BIN_EXE_dpipe"));
    let twins = Twins {
        test: "sorted_files_are_as_gnu_sort_leaves_them",
        theirs: "sort",
        ours: &ours,
        first: "printf '3\\n1\\n2\\n' > in",
        same_code: true,
    };
    twins.compare(CASES);
}

const COPIES: &[Case] = &[
    case("a new file", "", "umask 022; $TOOL in out", Who::Any),
    case("a private file", "chmod 600 in", "umask 022; $TOOL in out", Who::Any),
    case("a file of mode 640 and a umask", "chmod 640 in", "umask 037; $TOOL in out", Who::Any),
    case("a program", "chmod 4755 in", "umask 022; $TOOL in out", Who::Any),
    case("a write-protected file", "chmod 444 in", "$TOOL in out", Who::Any),
    case("over a private file", "echo old > out; chmod 600 out", "$TOOL in out", Who::Any),
    case("a private file over a shared one", "echo old > out; chmod 664 out; chmod 600 in", "$TOOL in out", Who::Any),
    case("over a longer file", "seq 10000 > out", "$TOOL in out", Who::Any),
    case("nothing", ": > in", "$TOOL in out", Who::Any),
    case("nothing over something", ": > in; echo old > out", "$TOOL in out", Who::Any),
    case("over a hard link", "echo old > out; ln out other", "$TOOL in out", Who::Any),
    case("over a link", "mkdir d; echo old > d/f; ln -s d/f out", "$TOOL in out", Who::Any),
    case("into a folder", "mkdir d", "umask 022; $TOOL in d", Who::Any),
    case("into a folder with a slash", "mkdir d; echo old > d/in; chmod 600 d/in", "$TOOL in d/", Who::Any),
    case("to a name with a slash", "", "$TOOL in new/", Who::Any),
    case("into nowhere", "", "$TOOL in d/out", Who::Any),
    case("onto itself", "", "$TOOL in in", Who::Any),
    case("onto itself by another path", "mkdir d", "$TOOL in d/../in", Who::Any),
    case("onto a hard link of itself", "ln in out", "$TOOL in out", Who::Any),
    case("onto a link to itself", "ln -s in out", "$TOOL in out", Who::Any),
    case("a link onto what it leads to", "ln -s in out", "$TOOL out in", Who::Any),
    case("onto itself in its folder", "", "$TOOL in .", Who::Any),
    case("onto itself by another mount", "mkdir d e; cp in d/f; mount --bind d e", COPY_MOUNT, Who::Mounts),
    case("an extended attribute", "echo old > out; setfattr -n user.note -v kept out", "$TOOL in out", Who::Any),
    case("an ACL", "echo old > out; setfacl -m u:2:rw out", "$TOOL in out", Who::Any),
    case("a folder's ACL", "mkdir d; setfacl -d -m u:2:rw,o::- d", "umask 022; $TOOL in d/out", Who::Any),
    case("a private file under a folder's ACL", "chmod 600 in; mkdir d; setfacl -d -m u:2:rw d", COPY_D, Who::Any),
    case("over a write-protected file", "echo old > out; chmod 444 out", "$TOOL in out", Who::Nobody),
    case(
        "over a file in a write-protected folder",
        "mkdir d; echo old > d/f; chmod 555 d",
        "$TOOL in d/f",
        Who::Nobody,
    ),
    case("over anybody's file of another", "echo old > out; chmod 666 out; chown 0:0 out", "$TOOL in out", Who::Nobody),
    case("over a group's file", "echo old > out; chmod 660 out; chown 0:100 out", "$TOOL in out", Who::Nobody),
    case("over another's file, as root", "echo old > out; chmod 640 out; chown 2:3 out", "$TOOL in out", Who::Mounts),
    case("over a mounted file", "echo old > f; echo x > out; mount --bind f out", COPY_MOUNTED, Who::Mounts),
    case("to a descriptor", "echo old > out", "$TOOL in /dev/fd/3 3<> out", Who::Any),
];

const COPY_D: &str = "umask 022; $TOOL in d/out";
const COPY_MOUNT: &str = "$TOOL d/f e/f; r=$?; umount e; exit $r";
const COPY_MOUNTED: &str = "$TOOL in out; r=$?; umount out; exit $r";

#[test]
fn copies_are_as_cp_leaves_them() {
    let ours = format!("{} copy", env!("CARGO_BIN_EXE_dpipe"));
    let twins = Twins {
        test: "copies_are_as_cp_leaves_them",
        theirs: "cp",
        ours: &ours,
        first: "printf '3\\n1\\n2\\n' > in",
        same_code: false,
    };
    twins.compare(COPIES);
}

#[test]
fn copies_in_place_are_compared_where_they_are() {
    let folder = scene::folder();
    std::fs::write(folder.path("in"), vec![7; 100_000]).unwrap();
    std::fs::write(folder.path("out"), "old").unwrap();
    std::fs::hard_link(folder.path("out"), folder.path("other")).unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_dpipe"));
    let done = command.args(["copy", "--verify", "--json", "in", "out"]).current_dir(folder.at()).output().unwrap();
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && error.contains("in place, because it has 2 names"), "{error}");
    assert_eq!(scene::json(std::str::from_utf8(&done.stdout).unwrap())["verified"], true);
    assert!(std::fs::read(folder.path("other")).unwrap() == vec![7; 100_000]);
}

#[test]
fn a_lease_of_another_process_ends_in_place() {
    const HOLDER: &str = "
import fcntl, os, signal, sys
fd = os.open('out', os.O_RDONLY)
signal.signal(signal.SIGIO, lambda *_: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK))
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
print('held', flush=True)
sys.stdin.read()
";
    if !scene::on_path("python3") {
        println!("SKIPPED: a_lease_of_another_process_ends_in_place: there is no python3");
        return;
    }
    let folder = scene::folder();
    std::fs::write(folder.path("in"), "2\n1\n").unwrap();
    std::fs::write(folder.path("out"), "old").unwrap();
    let mut holder = std::process::Command::new("python3");
    holder.args(["-c", HOLDER]).current_dir(folder.at()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = holder.spawn().unwrap();
    let mut held = [0; 5];
    if holder.stdout.take().unwrap().read_exact(&mut held).is_err() {
        holder.wait().unwrap();
        println!("SKIPPED: a_lease_of_another_process_ends_in_place: no lease can be had here");
        return;
    }
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_dpipe"));
    let done = command.args(["sort", "--json", "in", "-o", "out"]).current_dir(folder.at()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let report = scene::json(std::str::from_utf8(&done.stdout).unwrap());
    assert_eq!(report["output"]["why"], "another process had a lease on it");
    assert_eq!(std::fs::read_to_string(folder.path("out")).unwrap(), "1\n2\n");
    drop(holder.stdin.take());
    holder.wait().unwrap();
}
