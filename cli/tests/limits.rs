//! What a machine, a shell or a parent holds back: descriptors, address space, threads; and files
//! that are not what they say.
//!
//! Every case is one command line of a shell, in which `$D` is the program.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use datapipes_testkit::{RefusedCall, without_calls};
use scene::{TempFolder, folder, is_root, json, on_path};

/// What a shell's command line came to: its exit code, output and errors.
fn shell(folder: &TempFolder, line: &str) -> (Option<i32>, String, String) {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "300", "bash", "-c", line]).current_dir(folder.at());
    let command = command.env("LC_ALL", "C").env("D", env!("CARGO_BIN_EXE_dpipe")).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn good(folder: &TempFolder, line: &str) -> String {
    let (code, out, err) = shell(folder, line);
    assert_eq!(code, Some(0), "{line}: {err}");
    out
}

/// A small sort begins to read a pipe before it knows whether it is small.
#[test]
fn what_was_read_of_a_pipe_is_not_lost() {
    let folder = folder();
    for (make, options) in [
        // Sorted at once, with a last line that has no end; longer than what is read at first; more
        // records than a small buffer takes; a writer that comes and goes.
        ("printf 'b\\na'", ""),
        ("seq 100000 1 900000", ""),
        ("seq 100000 1 900000", "-S 16M"),
        ("yes '' | head -c 400000; printf a", "-S 16M"),
        ("seq 3; sleep 0.1; seq 2", "-u"),
        ("true", ""),
    ] {
        let line =
            format!("({make}) | $D sort {options} >ours && ({make}) | sort {options} >theirs && cmp ours theirs");
        good(&folder, &line);
        good(&folder, &format!("({make}) | $D sort {options} -o ours && cmp ours theirs"));
    }
    // What is wrong is told as before, and nothing is written.
    let (code, out, said) = shell(&folder, "rm ours; head -c 150 /dev/zero | $D sort --records=100:0:10 -o ours");
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(said.contains("standard input") && said.contains("multiple of the record length"), "{said}");
    assert!(!folder.names().unwrap().contains(&"ours".to_string()));
    // A file of which a part was read before, and what it leaves behind for the next program.
    good(
        &folder,
        "seq 9 >f; { head -c4 >/dev/null; $D sort -r; cat; } <f >ours; seq 9 | tail -n7 | sort -r | cmp - ours",
    );
}

#[test]
fn many_files_need_few_descriptors() {
    let folder = folder();
    for i in 0..1100 {
        fs::write(folder.path(&format!("s{i:04}")), format!("b {i}\nc {i}\n")).unwrap();
    }
    for (limit, files) in [(1024, "s*"), (64, "s*"), (24, "s00[0-3]*")] {
        good(&folder, &format!("cat {files} | sort > expected"));
        for options in ["", "-m", "-m --batch-size=7", "-u", "-mu"] {
            let line = format!("ulimit -n {limit}; $D sort {options} -T . {files} -o all && cmp all expected");
            good(&folder, &line);
        }
    }
    // Large files have pipes of their own, as long as there are descriptors for them.
    for i in 0..20 {
        good(&folder, &format!("seq {i} 20 900000 | sed s/^/x/ | sort > large{i}"));
    }
    good(&folder, "sort -m large* > expected");
    for options in ["", "-m", "-m -S 20M"] {
        good(&folder, &format!("ulimit -n 24; $D sort {options} -T . large* -o sorted && cmp sorted expected"));
    }
    // Too few for anything, and a place that has no room for a pass.
    let mut cases = vec![("ulimit -n 10; $D sort -m -T . s* -o none", "raise the limit on open files (ulimit -n)")];
    let mounts = "mkdir -p few && unshare -m bash -c 'mount -t tmpfs -o size=3M tmpfs few && ";
    let full = format!("{mounts}$D sort -m --batch-size=4 -T few large* -o none'");
    let output = full.replace("-m --batch-size=4 -T few large* -o none", "large* -T . -o few/none");
    if is_root() && on_path("unshare") {
        cases.push((&output, "nothing was written; name another place for the output"));
        cases.push((&full, "name places with more room (-T), or give more memory (-S)"));
    }
    for (line, advice) in cases {
        let (code, out, said) = shell(&folder, line);
        assert!(code == Some(2) && out.is_empty() && said.contains(advice), "{line}: {code:?} {said}");
        assert!(!folder.path("none").exists(), "{line}");
    }
}

/// The last close of large spill files is left to another process, which must not hold anything
/// else.
#[test]
fn spill_is_freed_by_a_process_that_holds_no_output() {
    const TEST: &str = "spill_is_freed_by_a_process_that_holds_no_output";
    let folder = folder();
    good(&folder, "truncate -s 300M input");
    // The shell waits until nobody holds the output.
    let sort = || {
        good(&folder, "x=$($D sort --records -S 32M --spill-compression=off -T . input -o output) && cmp input output")
    };
    sort();
    // Neither an old kernel nor some filters let a process close what it inherited.
    for errno in [libc::ENOSYS, libc::EPERM] {
        let call = RefusedCall { number: libc::SYS_close_range, errno };
        if let Err(why) = without_calls(&[call], sort) {
            println!("SKIPPED: {TEST}: {why}");
        }
    }
}

#[test]
fn compressed_runs_need_few_descriptors() {
    let folder = folder();
    let script =
        "printf '#!/bin/sh\nexec cat\n' > program; chmod +x program; seq 3000000 | tac > input; sort input > expected";
    good(&folder, script);
    for (limit, options) in [(32, ""), (64, "--batch-size=2"), (64, "-u")] {
        let line =
            format!("ulimit -n {limit}; $D sort {options} -S 16M --compress-program=./program -T . --json input -o o");
        let report = good(&folder, &format!("{line} && cmp o expected >&2"));
        assert!(json(&report)["runs"].as_u64() > Some(20), "{report}");
    }
    // Each merge of two makes a run, and all wait for the next pass.
    for i in 0..200 {
        fs::write(folder.path(&format!("s{i:03}")), format!("{i:03}\nx{i:03}\n")).unwrap();
    }
    let line = "ulimit -n 48; $D sort -m --batch-size=2 --compress-program=./program -T . s* -o o";
    good(&folder, &format!("{line}; sort s* | cmp - o"));
}

#[test]
fn named_pipes_that_are_written_one_after_the_other() {
    let folder = folder();
    good(&folder, "mkfifo one two; seq 300000 > numbers; sort numbers numbers > expected");
    // The second pipe has no writer before the first one was read to its end.
    let line = "(cat numbers > one; cat numbers > two) & $D sort one two -o sorted; wait; cmp sorted expected";
    good(&folder, line);
    let line =
        "(sort numbers > one; sort numbers > two) & $D sort one two -S 16M -T . -o sorted; wait; cmp sorted expected";
    good(&folder, line);
}

/// The file is cut by whoever writes the pipe that is read before it.
#[test]
fn an_input_that_is_cut_before_its_turn_is_an_error() {
    let folder = folder();
    good(&folder, "mkfifo pipe; seq 400000 | sort > whole; seq 9 > old; cp old sorted");
    for options in ["-S 16M -T .", "-S 64M", "-m", "-m -u", "-n", "-u -r"] {
        for bytes in [0, 1000, 1_500_000] {
            // What the pipe gives is less than what is cut, or more.
            for given in ["seq 9", "cat whole whole"] {
                let cut = format!("cp whole cut; (exec 3> pipe; truncate -s {bytes} cut; {given} >&3) &");
                let (code, _, said) = shell(&folder, &format!("{cut} $D sort {options} pipe cut -o sorted"));
                assert!(code == Some(2) && said.contains("end of file"), "{options}, {bytes}: {code:?} {said}");
                assert!(said.contains("cut: it had ") && said.contains("became shorter"), "{options}, {bytes}: {said}");
                good(&folder, "wait; cmp sorted old");
            }
        }
    }
    // Short files, whose last lines get terminators, which are no bytes of theirs.
    good(&folder, "mkdir short; for i in $(seq 300); do printf 'line %09d' $i > short/$i; done");
    for options in ["", "-m", "-m --batch-size=16", "-u"] {
        let cut = "printf 'line %09d' 7 > short/7; (exec 3> pipe; truncate -s 0 short/7; seq 9 >&3) &";
        let (code, _, said) = shell(&folder, &format!("{cut} $D sort {options} pipe short/* -o sorted"));
        assert!(code == Some(2) && said.contains("short/7: it had 14 bytes"), "{options}: {code:?} {said}");
        good(&folder, "wait; cmp sorted old");
    }
    // A file that grows is no error, whoever writes it.
    let grows = "seq 9 > log; (exec 3> pipe; seq 5 >> log; true >&3) &";
    assert_eq!(good(&folder, &format!("{grows} $D sort pipe log | wc -l")).trim(), "14");
}

/// Whether a debugger holds a program at one of some calls, in a folder.
fn held_at(folder: &TempFolder, calls: &[i64]) -> bool {
    let here = fs::canonicalize(folder.at()).unwrap();
    let programs = fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    let mut here = programs.filter(|process| fs::read_link(process.join("cwd")).is_ok_and(|at| at == here));
    here.any(|process| {
        let is_held = || {
            let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
            let at = fs::read_to_string(process.join("syscall")).unwrap_or_default();
            let is_stopped = stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" t"));
            let number = at.split_whitespace().next().and_then(|number| number.parse().ok());
            is_stopped && number.is_some_and(|number| calls.contains(&number))
        };
        // A debugger lets all other calls go on at once.
        (0..40).all(|_| {
            std::thread::sleep(Duration::from_millis(10));
            is_held()
        })
    })
}

/// Runs a command that is held at its first such call of a file for seconds; the file is cut then.
fn cut_at(call: (&str, &[i64]), file: &str, len: u64, job: &str) -> (Option<i32>, String, String) {
    let folder = folder();
    good(&folder, "seq 10000 19999 > small; seq 1000 1999 > before; seq 100000 999999 > long");
    let (name, numbers) = call;
    // A path that is opened is found as it is written.
    let path = if name == "openat" { file.to_owned() } else { folder.path(file).display().to_string() };
    let holds = format!("strace -o /dev/null -f -P {path} -e trace={name} -e inject={name}:delay_enter=8000000:when=1");
    std::thread::scope(|scope| {
        let run = scope.spawn(|| shell(&folder, &format!("{holds} $D {job}")));
        datapipes_testkit::until("it is held", || held_at(&folder, numbers) || run.is_finished());
        fs::File::options().write(true).open(folder.path(file)).unwrap().set_len(len).unwrap();
        run.join().unwrap()
    })
}

/// Between the look at its length and the read: a debugger holds the program there.
#[test]
fn a_small_input_that_is_cut_while_it_is_read_is_an_error() {
    if !on_path("strace") {
        println!("SKIPPED: a small input that is cut while it is read is an error: strace is not there");
        return;
    }
    let opens = ["check lines small", "check lines before small", "check lines before small small", "sort -c small"];
    let reads = [("sort small", 24), ("sort small", 0), ("sort -n small", 24), ("sort -c small", 24)];
    // They are held, so all of them go on at once.
    std::thread::scope(|scope| {
        for (job, len) in reads {
            scope.spawn(move || {
                let (code, out, said) =
                    cut_at(("read,pread64", &[libc::SYS_read, libc::SYS_pread64]), "small", len, job);
                assert!(code == Some(2) && out.is_empty(), "{job}, {len}: {code:?} {out} {said}");
                assert!(said.contains("it had 60000 bytes"), "{job}, {len}: {said}");
            });
        }
        // Between the first look at it and its turn, which may come late.
        for (job, len) in opens.into_iter().flat_map(|job| [(job, 24), (job, 0)]) {
            scope.spawn(move || {
                let (code, out, said) = cut_at(("openat", &[libc::SYS_openat]), "small", len, job);
                assert!(code == Some(2) && out.is_empty(), "{job}, {len}: {code:?} {out} {said}");
                assert!(said.contains("it had 60000 bytes at first"), "{job}, {len}: {said}");
            });
        }
        scope.spawn(|| {
            let (code, out, said) = cut_at(("openat", &[libc::SYS_openat]), "long", 700, "sort -c long");
            assert!(code == Some(2) && out.is_empty() && said.contains("at first"), "{code:?} {out} {said}");
        });
    });
}

/// A file and its name are synced by two calls, unless that is not wanted.
#[test]
fn an_output_is_synced_unless_that_is_not_wanted() {
    if !on_path("strace") {
        println!("SKIPPED: an output is synced unless that is not wanted: strace is not there");
        return;
    }
    let folder = folder();
    good(&folder, "seq 5 > small; seq 900000 | sed 's/^/a rather long line of text that repeats /' > large");
    good(&folder, "LC_ALL=C sort large > expected; cp small old; ln old other");
    let syncs = "strace -f -qq -o calls -e trace=fsync,fdatasync,sync,syncfs";
    for (job, output, calls) in [
        ("small", "new", 2),
        ("small", "new", 2),
        ("--report small", "new", 2),
        ("--report-html=page --metrics=seen small", "new", 8),
        ("small", "old", 1),
        ("-S 16M large", "sorted", 2),
        ("-m small small", "merged", 2),
    ] {
        for (word, calls) in [("", calls), ("--no-sync", 0)] {
            let (code, _, said) = shell(&folder, &format!("{syncs} $D sort {word} {job} -T . -o {output}"));
            assert_eq!(code, Some(0), "{job} {word}: {said}");
            let made = good(&folder, "grep -c 'sync(' calls || true");
            assert_eq!(made.trim(), calls.to_string(), "{job} {word}");
            let told = said.contains("not synced, as asked for");
            assert_eq!(told, job.contains("--report ") && !word.is_empty(), "{job} {word}: {said}");
        }
    }
    good(&folder, "cmp sorted expected; cmp new small; cmp old small; cmp old other");
}

#[test]
fn merging_streams_ends_with_whoever_reads() {
    let folder = folder();
    assert_eq!(good(&folder, "$D sort -m -T /nowhere <(yes a) <(yes b) | head -1"), "a\n");
    assert_eq!(good(&folder, "printf '1\\n3\\n' | $D sort -m -T /nowhere - <(echo 2)"), "1\n2\n3\n");
    assert_eq!(good(&folder, "$D sort -m -T /nowhere /dev/null /dev/null"), "");
    assert_eq!(good(&folder, "$D sort -mu -T /nowhere <(yes a | head -100000) <(echo b)"), "a\nb\n");
    // What comes behind a header overwrites nothing, so nothing is put aside.
    good(
        &folder,
        "echo 1 > a; echo 2 > b; { echo h; $D sort -m -T /nowhere a b; } > o; printf 'h\\n1\\n2\\n' | cmp - o",
    );
    good(&folder, "{ $D sort -m -T /nowhere a b; } >> o; printf 'h\\n1\\n2\\n1\\n2\\n' | cmp - o");
}

#[test]
fn address_space_is_taken_as_it_is_needed() {
    let folder = folder();
    fs::write(folder.path("small"), "b\na\nc\n").unwrap();
    good(&folder, "seq 900000 | sed 's/^/a rather long line of text that repeats /' > large; sort large > expected");
    for limit in [200_000, 1_000_000, 4_000_000] {
        assert_eq!(good(&folder, &format!("ulimit -v {limit}; $D sort small")), "a\nb\nc\n", "{limit}");
        assert_eq!(good(&folder, &format!("ulimit -v {limit}; $D sort -S 8G small")), "a\nb\nc\n", "{limit}");
        good(&folder, &format!("ulimit -v {limit}; $D sort -T . large -o sorted && cmp sorted expected"));
    }
    let (_, _, said) = shell(&folder, "ulimit -v 1000000; $D sort -S 8G -T . --report large -o sorted");
    assert!(said.contains("MiB were asked for, and the system refused to map that much"), "{said}");
    let (code, _, said) = shell(&folder, "ulimit -n 10; $D sort -S 16M -T . large -o sorted");
    assert!(code == Some(0) || said.contains("raise the limit on open files"), "{said}");
}

/// Lines that do not fit the memory that was given: what is taken beyond it is stated, whatever the
/// heap does with it.
#[test]
fn long_lines_take_no_more_memory_than_is_stated() {
    let folder = folder();
    let [one, other] = ["a", "b"].map(|c| {
        let mut text = String::new();
        for (i, len) in [22_000_000, 30_000_000, 36_000_000].into_iter().enumerate() {
            text += &format!("{c}{i}{}\n", c.repeat(len));
        }
        text
    });
    fs::write(folder.path("one"), &one).unwrap();
    fs::write(folder.path("other"), &other).unwrap();
    fs::write(folder.path("expected"), one + &other).unwrap();
    let peak = "import resource, subprocess, sys; subprocess.check_call(sys.argv[1:]); \
                print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)";
    for options in ["-S 64M", "-u -S 64M", "-m -u -S 64M", "-m -u -S 128M", "-u -S 128M"] {
        let line = format!("python3 -c '{peak}' $D sort {options} -T . --json one other -o sorted");
        let said = good(&folder, &line);
        let (report, used) = said.trim().rsplit_once('\n').unwrap();
        let report = json(report);
        let stated = report["memory_bytes"].as_u64().unwrap() + report["memory_excess_bytes"].as_u64().unwrap();
        let used: u64 = used.parse().unwrap();
        // The program itself is pages of a file, those of this build more than those of a release.
        assert!(used < stated + (24 << 20), "{options}: {used} bytes, {stated} stated");
        good(&folder, "cmp sorted expected");
    }
    // They are kept in pieces, so they may be longer than the memory: two whole ones would not fit
    // beside it and the program.
    good(
        &folder,
        "ulimit -v 108000; $D sort -m -u -S 16M --parallel=1 -T . one other -o sorted && cmp sorted expected",
    );
    let said = good(&folder, "$D sort -S 16M -T . --report one other -o sorted 2>&1 && cmp sorted expected");
    assert!(said.contains("6 lines, 176 MB, were set aside: each has more than 262144 bytes"), "{said}");
}

#[test]
fn files_whose_length_is_not_what_they_say() {
    let folder = folder();
    for file in
        ["/proc/self/limits", "/proc/cpuinfo", "/sys/kernel/mm/transparent_hugepage/enabled", "/proc/filesystems"]
    {
        if fs::File::open(file).is_err() {
            println!("SKIPPED: files_whose_length_is_not_what_they_say: {file} cannot be opened");
            continue;
        }
        good(&folder, &format!("cat {file} > copy; $D sort copy > expected; $D sort {file} > sorted"));
        if file != "/proc/cpuinfo" {
            // Clock rates change from one look to the next.
            good(&folder, "cmp sorted expected");
        }
        good(&folder, &format!("test $($D sort {file} | wc -l) = $($D sort -m {file} | wc -l)"));
        good(&folder, &format!("test $(cat {file} | wc -l) = $($D sort -m {file} | wc -l)"));
    }
    good(&folder, "cp /proc/version expected; $D copy --verify /proc/version copied && cmp copied expected");
    good(
        &folder,
        "$D checkpoint save ck /proc/version && $D checkpoint restore ck --to back && cmp back/version expected",
    );
    // Not every file can be read where it says that it ends; and the kernel wants memory for as
    // much as is asked for.
    good(&folder, "f=/sys/devices/system/cpu/cpu0/topology/package_cpus; ! test -e $f || $D copy $f copied");
    good(&folder, "$D sort -S 1G /proc/sys/kernel/ostype > sorted && cmp sorted /proc/sys/kernel/ostype");
    good(&folder, "$D copy /sys/kernel/mm/transparent_hugepage/enabled copied");
    good(&folder, "cmp copied /sys/kernel/mm/transparent_hugepage/enabled");
    // Through another file system nothing but reading tells.
    if on_path("bindfs") && is_root() {
        let (code, _, why) = shell(&folder, "mkdir proc; bindfs -o direct_io /proc proc");
        let copied = shell(&folder, "$D copy proc/version copied && cmp copied expected");
        let _ = shell(&folder, "umount -l proc");
        match code {
            Some(0) => assert_eq!(copied.0, Some(0), "{}", copied.2),
            _ => println!("SKIPPED: files_whose_length_is_not_what_they_say: bindfs: {why}"),
        }
    }
    // A file that is one hole has no blocks either.
    good(&folder, "truncate -s 3000000 hole; $D sort -z -u hole | cmp - <(printf '\\0')");
}

#[test]
fn records_that_are_not_whole() {
    let folder = folder();
    fs::write(folder.path("partial"), [7; 250]).unwrap();
    fs::write(folder.path("whole"), [7; 300]).unwrap();
    for options in ["", "-m", "-c", "-C", "-u", "-m --batch-size=2 whole whole whole"] {
        for file in ["partial", "- < partial", "<(cat partial)"] {
            let (code, _, err) = shell(&folder, &format!("$D sort --records -T . {options} {file}"));
            assert_eq!(code, Some(2), "{options} {file}: {err}");
            assert!(err.contains("not a multiple of the record length 100: 50 bytes"), "{options} {file}: {err}");
        }
    }
    let (code, _, err) = shell(&folder, "$D sort --u64 -c partial");
    assert_eq!((code, err.contains("the record length 8: 2 bytes")), (Some(2), true), "{err}");
}

#[test]
fn duplicates_need_no_room() {
    // The output and the runs of a file of duplicates are short, so a place that is too small for
    // the input will do.
    let folder = folder();
    if !is_root() {
        println!("SKIPPED: duplicates_need_no_room: only root may mount");
        return;
    }
    good(&folder, "yes 'the same line again and again' | head -n 2000000 > input; mkdir small");
    let (code, _, err) = shell(&folder, "mount -t tmpfs -o size=4m tmpfs small");
    if code != Some(0) {
        println!("SKIPPED: duplicates_need_no_room: {err}");
        return;
    }
    let ended = shell(&folder, "$D sort -u -S 16M -T small input -o small/sorted && cat small/sorted");
    // As much room as compressed runs need, and not what the lines would.
    let line = "$D sort --compress-program=gzip -S 16M -T small input | cmp - input";
    let compressed = if on_path("gzip") { shell(&folder, line) } else { (Some(0), String::new(), String::new()) };
    let unmounted = shell(&folder, "umount -l small");
    assert_eq!(compressed.0, Some(0), "{}", compressed.2);
    assert_eq!(ended.1, "the same line again and again\n", "{}", ended.2);
    assert_eq!(unmounted.0, Some(0), "{}", unmounted.2);
}

#[test]
fn children_whose_end_the_parent_ignores() {
    let folder = folder();
    good(&folder, "printf '#!/bin/sh\\nexec tr 41 14\\n' > swap; chmod +x swap; seq -w 3000000 > expected");
    let line =
        "tac expected > input; trap '' CHLD; $D sort -S 16M -T . --compress-program=./swap --json input -o sorted";
    let said = good(&folder, &format!("{line} && cmp sorted expected"));
    assert!(scene::json(&said)["runs"].as_u64() > Some(1), "nothing was compressed: {said}");
    good(&folder, "trap '' CHLD; $D demo --size 8M --memory 16M --dir .");
}

/// Users of these numbers have nothing, and are others in each run.
const NOBODY: u32 = 1_700_000_000;
/// No number of a process is larger.
const MAX_PROCESSES: u32 = 1 << 22;

/// The beginning of a command line that runs as a user who has no other process, so that limits on
/// threads meet it alone.
fn as_nobody_else(test: &str, folder: &TempFolder, user: u32) -> Option<String> {
    if !is_root() || !on_path("setpriv") {
        println!("SKIPPED: {test}: root is needed, to be another user whose threads are counted");
        return None;
    }
    let line = format!("setpriv --reuid {user} --regid {user} --clear-groups");
    let (code, _, why) = shell(folder, &format!("{line} true"));
    if code != Some(0) {
        println!("SKIPPED: {test}: {why}");
        return None;
    }
    Some(line)
}

/// Whatever a command needs threads for: it does with those it has, or says that it has none. It
/// neither panics nor hangs.
#[test]
fn threads_that_no_command_can_have() {
    let folder = folder();
    let Some(as_other) =
        as_nobody_else("threads_that_no_command_can_have", &folder, NOBODY + MAX_PROCESSES + std::process::id())
    else {
        return;
    };
    good(
        &folder,
        "chmod 777 .; cp $D ./dpipe; ./dpipe gen records --size 40M records; ./dpipe sort --records records -o sorted",
    );
    good(&folder, "seq 200000 > lines; chmod 666 *; chmod 755 dpipe");
    let mut wrong = Vec::new();
    for line in [
        "check records sorted",
        "gen records --size 40M made",
        "copy records copied",
        "sort --progress lines > /dev/null",
        "sort --progress lines -o s",
        "sort --debug -n lines > /dev/null",
        "sort -m -n lines lines -o m",
        "sort -R lines -o r",
        "stream --from generate:8M --output t",
        "log bench --dir . --seconds 0.2 --threads 4",
        "demo --size 8M --memory 16M --dir .",
        "fine stat lines",
        "machine > /dev/null",
    ] {
        for limit in [1, 2] {
            let limited = format!("{as_other} env HOME=$PWD bash -c 'ulimit -u {limit}; exec ./dpipe {line}'");
            let (code, _, err) = shell(&folder, &limited);
            println!("{line}, {limit} threads: {code:?} {err}");
            assert!(matches!(code, Some(0..=2)), "{line}, {limit} threads: {code:?} {err}");
            assert!(!err.contains("panicked"), "{line}, {limit} threads: {err}");
            // Some need another program rather than a thread.
            let said = err.contains("Resource temporarily unavailable");
            if code != Some(0) && !said {
                wrong.push(format!("{line}, {limit} threads: {code:?} {err}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn threads_that_cannot_be_had() {
    let folder = folder();
    let Some(as_other) = as_nobody_else("threads_that_cannot_be_had", &folder, NOBODY + std::process::id()) else {
        return;
    };
    good(
        &folder,
        "chmod 777 .; seq 900000 | sed 's/^/a rather long line of text that repeats /' > large; sort large > expected",
    );
    good(&folder, "cp $D ./dpipe; $D gen u64 --size 24M numbers; $D sort --u64 numbers -o expected64");
    for (line, expected) in [
        ("sort -S 16M -T . large", "expected"),
        ("sort large", "expected"),
        ("sort --parallel=8 -u -S 20M -T . large", "expected"),
        ("sort --u64 -S 16M -T . numbers", "expected64"),
    ] {
        for limit in [1, 2, 3] {
            let limited = format!("{as_other} bash -c 'ulimit -u {limit}; exec ./dpipe {line} > out.{limit}'");
            good(&folder, &format!("{limited} && cmp out.{limit} {expected}"));
        }
    }
}

/// The process that frees a replaced file may not start: then it is freed before, and not said to
/// be freed later.
#[test]
fn what_is_not_freed_later_is_not_said_to_be() {
    if !on_path("strace") {
        println!("SKIPPED: what is not freed later is not said to be: strace is not there");
        return;
    }
    let folder = folder();
    good(&folder, "seq 900000 > in");
    let sort = "$D sort in -o out --json";
    let lacks = "strace -f -qq -o calls -e trace=close_range -e inject=close_range:error=ENOSYS";
    for (before, is_left) in [("", true), (lacks, false)] {
        let line = format!("rm -f out; fallocate -l 300M out && {before} {sort}");
        let report = json(&good(&folder, &line));
        assert_eq!(report["output"]["way"], "replaced", "{report}");
        let left = report["output"]["left_bytes"].as_u64().unwrap();
        assert_eq!(left >= 300 << 20, is_left, "{before}: {report}");
    }
}

#[test]
fn a_standard_input_is_checked_once() {
    let folder = folder();
    good(&folder, "seq 1000 1999 > in; $D check lines - < in");
    for files in ["- -", "in -", "- in"] {
        let (code, _, said) = shell(&folder, &format!("$D check lines {files} < in"));
        assert!(code == Some(2) && said.contains("a stream is checked alone"), "{files}: {code:?} {said}");
    }
}

#[test]
fn what_is_no_place_for_runs_is_told_with_what_is_one() {
    let folder = folder();
    good(&folder, "seq 9 > in");
    for place in ["cache:l2/core0", "cache:/tmp", "hbm:0", "hbm:", "'/tmp?limit='", "'ssd:/tmp?access=x'", "dram:-1"] {
        let (code, _, said) = shell(&folder, &format!("$D sort -T {place} in"));
        assert!(
            code == Some(2) && said.contains("dram:SIZE") || said.contains("?limit=10G"),
            "{place}: {code:?} {said}"
        );
    }
}
