//! The wording and the exit codes, where GNU sort is present side by side with it.

use std::process::Stdio;

use datapipes_testkit::GnuSort;

use super::*;

fn parse_in(line: &[&str], env: &[(&str, &str)]) -> Result<Parsed, UsageError> {
    let env = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
    let list = |name: &OsStr| match name.to_str() {
        Some("two") => Ok(vec!["a".into(), "b".into()]),
        _ => Err(trouble("no list")),
    };
    SortArgs::parse(line.iter().map(OsString::from), env, list)
}

fn parse(line: &[&str]) -> Parsed {
    parse_in(line, &[]).unwrap_or_else(|e| panic!("{line:?}: {e}"))
}

fn message(line: &[&str]) -> String {
    parse_in(line, &[]).expect_err(&format!("{line:?}")).to_string()
}

#[test]
fn options_and_operands_in_any_order() {
    let parsed = parse(&["a", "-rnk2,2", "b", "-o", "out", "--", "-c", "+1"]);
    assert_eq!(parsed.inputs, ["a", "b", "-c", "+1"]);
    assert_eq!(parsed.output, Some("out".into()));
    assert_eq!(parsed.options.keys.len(), 1);
    assert!(parsed.options.modifiers.numeric && parsed.options.modifiers.reverse);
    assert_eq!(parse(&[]).inputs, ["-"]);
    assert!(parse(&[]).order.is_plain_bytes() && parse(&["-r"]).order.plain_reverse());
}

#[test]
fn posix_ends_options_at_the_first_file() {
    let env = [("POSIXLY_CORRECT", "1")];
    assert_eq!(parse_in(&["-n", "a", "-r", "b"], &env).unwrap().inputs, ["a", "-r", "b"]);
    assert_eq!(parse_in(&["a", "-o", "x"], &env).unwrap().output, Some("x".into()));
}

#[test]
fn obsolescent_keys() {
    let parsed = parse(&["+1", "-2", "+file", "+2n", "x"]);
    assert_eq!(parsed.inputs, ["+file", "x"]);
    assert_eq!(parsed.options.keys.len(), 2);
    let strict = [("_POSIX2_VERSION", "200112")];
    assert_eq!(parse_in(&["+1"], &strict).unwrap().inputs, ["+1"]);
    assert_eq!(parse_in(&["+1", "-2"], &strict).unwrap().options.keys.len(), 1);
}

#[test]
fn long_options_and_abbreviations() {
    let parsed =
        parse(&["--rev", "--key=1,1", "--buf", "50%", "--buffer-size=1G", "--fie=,", "--check=q", "--te=/a", "-T/b"]);
    assert_eq!(parsed.action, Action::Check { quiet: true });
    assert_eq!(parsed.buffer_bytes(1 << 40), Ok(Some(1 << 39)));
    let error = parse(&["-S", "1G", "-S", "99999999999999%"]).buffer_bytes(1 << 40).unwrap_err();
    assert_eq!((error.exit_code, &error.message[..]), (2, "-S argument '99999999999999%' too large"));
    assert_eq!(parsed.options.separator, Some(b','));
    assert_eq!(parsed.temp_dirs, ["/a", "/b"]);
    assert!(parse(&["--sort=n"]).options.modifiers.numeric);
    assert_eq!(parse(&["--parallel=99999999999999999999999"]).parallel, Some(usize::MAX));
    assert_eq!(parse(&["--help", "--nonsense"]).action, Action::Help);
    assert_eq!(parse(&["--version"]).action, Action::Version);
    assert_eq!(parse(&["-y", "12", "-y", "file"]).inputs, ["file"]);
}

#[test]
fn our_own_options() {
    let parsed = parse(&["--records", "--json", "--no-progress", "--report", "--explain", "-ru"]);
    let usual = RecordShape { len_bytes: 100, key_offset_bytes: 0, key_len_bytes: 10 };
    assert_eq!(parsed.format, Format::Records(usual));
    assert!(parsed.json && parsed.report && parsed.explain && parsed.progress == Some(false));
    let shape = RecordShape { len_bytes: 64, key_offset_bytes: 8, key_len_bytes: 56 };
    assert_eq!(parse(&["--records=64:8"]).format, Format::Records(shape));
    for bad in ["", "0", "8:8", "8:4:5", "8:4:0", "a", "8:", "1:2:3:4", "99999999999999999999999"] {
        assert!(message(&[&format!("--records={bad}")]).contains("invalid --records argument"));
    }
    // 1 would say with -c that the input is not in order.
    for bad in ["--method=x", "--spill-order=x", "--spill-compression=x"] {
        assert_eq!(parse_in(&["-c", bad], &[]).unwrap_err().exit_code, 2, "{bad}");
    }
    assert_eq!(message(&["--u64", "-n"]), "dpipe sort: options '--u64' and '-bdfghiMnRV' are incompatible");
    assert_eq!(message(&["--u64", "--f64"]), "dpipe sort: options '--u64' and '--f64' are incompatible");
    assert_eq!(parse(&["--u64", "--u64"]).format, Format::U64);
    for option in ["--report-html=x", "--report", "--json", "--explain"] {
        let name = option.split('=').next().unwrap();
        assert_eq!(
            [message(&["-c", option]), message(&[option, "--check=quiet"])],
            ["c", "C"].map(|check| format!("dpipe sort: options '-{check}' and '{name}' are incompatible"))
        );
    }
}

#[test]
fn what_is_kept_may_be_repeated_and_must_not_change() {
    let parsed = parse(&["-R", "--random-source=x", "--random-source", "x", "--debug", "--compress-program=gzip"]);
    assert!(parsed.options.is_random() && parsed.debug);
    assert_eq!(parsed.random_source, Some("x".into()));
    assert_eq!(parsed.compress_program, Some("gzip".into()));
    assert!(parse(&["--sort=random"]).options.is_random() && parse(&["-k1R"]).options.is_random());
    assert!(!parse(&["-R", "-k1n"]).options.is_random(), "a key with letters of its own");
    assert!(message(&["--debug", "--u64"]).contains("--debug"));
}

#[test]
fn collation_is_noted_once_where_it_is_not_by_bytes() {
    let note = |env: &[(&str, &str)]| parse_in(&[], env).unwrap().collation_note;
    assert_eq!(note(&[]), None);
    assert_eq!(note(&[("LC_ALL", "C"), ("LANG", "de_DE.UTF-8")]), None);
    assert_eq!(note(&[("LC_ALL", ""), ("LC_COLLATE", "POSIX"), ("LANG", "de_DE")]), None);
    assert_eq!(note(&[("LANG", "C.UTF-8")]), None);
    let german = [("LANG", "de_DE.UTF-8")];
    assert_eq!(note(&german), Some("order is by bytes (as LC_ALL=C), not by LANG=de_DE.UTF-8".into()));
    assert_eq!(parse_in(&["--u64"], &german).unwrap().collation_note, None);
}

/// Every command line here must fail in the same words and with the same code as GNU sort.
#[test]
fn same_complaints_as_the_system_sort() {
    let Some(gnu) = GnuSort::find("same_complaints_as_the_system_sort") else { return };
    if !gnu.is_9_1() {
        return println!("SKIPPED: same_complaints_as_the_system_sort: the wording of 9.1 is compared");
    }
    let lines: &[&[&str]] = &[
        &["--check=foo"],
        &["--check="],
        &["--sort=zz"],
        &["--sort="],
        &["--r"],
        &["--c"],
        &["--v"],
        &["-k"],
        &["--key"],
        &["--foo"],
        &["-x"],
        &["-n1"],
        &["--stable=3"],
        &["--he=1"],
        &["-S", "3x"],
        &["-S", "x"],
        &["-S", ""],
        &["-S", "1GB"],
        &["-S", "-1"],
        &["--buffer-size=99999999Y"],
        &["--buf=1Z"],
        &["--parallel=0"],
        &["--parallel=x"],
        &["--parallel=3k"],
        &["--batch-size=1"],
        &["--batch-size=x"],
        &["-c", "a", "b"],
        &["-co", "x", "a"],
        &["-C", "a", "-ox"],
        &["-cC"],
        &["-t", "ab"],
        &["-t", ""],
        &["-ta", "-tb"],
        &["-t", "'é"],
        &["-k", "0"],
        &["-k1.0"],
        &["-k1,x"],
        &["-k1,0"],
        &["-k1z"],
        &["-k", ""],
        &["-k.1"],
        &["-k1."],
        &["-k1,1."],
        &["-dg"],
        &["-nM"],
        &["-k1n,2g"],
        &["-g", "-k1,1", "-k2i", "-n"],
        &["-k1,1hi"],
        &["-Vn"],
        &["-o", "a", "-o", "b"],
        &["--files0-from=x", "y"],
        &["-c", "a'b", "c'd"],
        &["-c", "x", "c\"'d"],
        &["-c", "x", "c\n"],
        &["-c", "x", "c d\t\ne"],
        &["+1", "-2x"],
        &["+1", "-1.x"],
        &["-c", "+1", "-1", "a", "b"],
        &["-bfk1,2.3.4"],
        &["-k1n'"],
        &["-k", "1\u{e9}\n"],
        &["-nR"],
        &["-k1dR", "-k2gR"],
        &["--compress-program=a", "--compress-program=b"],
        &["--random-source=a", "--random-source=b"],
        &["-c", "--debug"],
        &["--debug", "-C", "a"],
        &["--debug", "-o", "a"],
        &["--debug", "-o", "a", "-c"],
        &["--batch-size=99999999999999999999999"],
        &["--batch-size=4294967295"],
        &["--batch-size=-1"],
        &["--batch-size="],
        &["--parallel="],
        &["--parallel=-1"],
        &["-S", "+"],
        &["-S", "99999999999999999999"],
    ];
    for line in lines {
        let mut command = gnu.command();
        let output = command.args(*line).env("LC_ALL", "C").stdin(Stdio::null()).output().unwrap();
        let want = String::from_utf8_lossy(&output.stderr).replace("'sort ", "'dpipe sort ");
        let want: Vec<String> = want
            .lines()
            .map(|l| match l.strip_prefix("sort: ") {
                Some(rest) => format!("dpipe sort: {rest}"),
                None => l.to_owned(),
            })
            .collect();
        let error = parse_in(line, &[]).expect_err(&format!("{line:?} should fail: {want:?}"));
        assert_eq!(error.to_string(), want.join("\n"), "{line:?}");
        assert_eq!(Some(i32::from(error.exit_code)), output.status.code(), "{line:?}");
    }
}
