use std::os::unix::fs::symlink;
use std::path::Path;

use datapipes::ErrorKind;
use datapipes_testkit::TempFolder;

use super::*;

fn argument(path: &Path) -> SideFileArgument {
    path.as_os_str().to_owned().into()
}

fn refused(path: &Path, places: CommandPlaces) -> bool {
    let taken = SideFiles::beside(places).take("--metrics", Some(&argument(path)));
    taken.is_err_and(|e| e.kind() == ErrorKind::InvalidInput && e.to_string().contains("--metrics"))
}

#[test]
fn one_file_by_any_name_is_refused() {
    let dir = TempFolder::new().unwrap();
    let (file, new) = (dir.path("in"), dir.path("new"));
    std::fs::write(&file, "x").unwrap();
    std::fs::hard_link(&file, dir.path("hard")).unwrap();
    symlink("in", dir.path("soft")).unwrap();
    symlink("new", dir.path("dangling")).unwrap();
    symlink("dangling", dir.path("twice")).unwrap();
    symlink(dir.at(), dir.path("folder")).unwrap();
    let places = || CommandPlaces::of("sort").files([&file, &new]);
    for name in ["in", "./in", "hard", "soft", "new", "./new", "folder/new", "dangling", "twice", "folder/hard"] {
        assert!(refused(&dir.at().join(name), places()), "{name}");
    }
    assert!(!refused(&dir.path("other"), places()));
    // Which of the two is the link is the same.
    assert!(refused(&new, CommandPlaces::of("sort").files([dir.path("twice")])));
    assert!(!refused(Path::new("/dev/null"), CommandPlaces::of("sort").files(["/dev/null"])), "it may be shared");
}

#[test]
fn files_of_a_folder_are_refused_there_or_not_and_by_other_names() {
    let dir = TempFolder::new().unwrap();
    let (log, inside) = (dir.path("log"), dir.path("log/1.log"));
    let places = || CommandPlaces::of("log append").files_of(&log);
    assert!(refused(&log, places()), "a folder that is to be made");
    std::fs::create_dir(&log).unwrap();
    std::fs::write(&inside, "x").unwrap();
    std::fs::hard_link(&inside, dir.path("hard")).unwrap();
    std::fs::write(dir.path("elsewhere"), "x").unwrap();
    symlink(dir.path("elsewhere"), dir.path("log/2.log")).unwrap();
    for name in ["log/1.log", "log/new", "log/../log/new", "hard", "elsewhere"] {
        assert!(refused(&dir.at().join(name), places()), "{name}");
    }
    std::fs::create_dir(dir.path("log/below")).unwrap();
    for name in ["other", "log/below/m.prom"] {
        assert!(!refused(&dir.at().join(name), places()), "{name}");
    }
}

#[test]
fn a_second_option_with_the_same_file_is_refused() {
    let dir = TempFolder::new().unwrap();
    let mut files = SideFiles::beside(CommandPlaces::of("sort"));
    symlink("new", dir.path("link")).unwrap();
    assert!(files.take("--plot", None).unwrap().is_none());
    let first = files.take("--metrics", Some(&argument(&dir.path("new")))).unwrap().unwrap();
    let twice = files.take("--report-html", Some(&argument(&dir.path("link")))).unwrap_err().to_string();
    assert!(twice.contains("--report-html") && twice.contains("--metrics"), "{twice}");
    first.write_text("m").unwrap();
    assert_eq!(std::fs::read(dir.path("new")).unwrap(), b"m");
}

#[test]
fn what_becomes_a_place_meanwhile_is_not_written() {
    let dir = TempFolder::new().unwrap();
    let out = dir.path("out");
    let mut files = SideFiles::beside(CommandPlaces::of("sort").files([&out]));
    let metrics = files.take("--metrics", Some(&argument(&dir.path("m")))).unwrap().unwrap();
    let page = files.take("--report-html", Some(&argument(&dir.path("p")))).unwrap().unwrap().begin().unwrap();
    metrics.write_text("m").unwrap();
    std::fs::write(&out, "records").unwrap();
    std::fs::remove_file(dir.path("m")).unwrap();
    symlink("out", dir.path("m")).unwrap();
    std::fs::hard_link(&out, dir.path("p")).unwrap();
    assert_eq!(metrics.write_text("m").unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(page.write_text("p").unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(std::fs::read(&out).unwrap(), b"records");
}

#[test]
fn objects_are_no_side_files() {
    let mut files = SideFiles::beside(CommandPlaces::of("copy"));
    for text in ["s3://bucket/m.prom", "remote://ticket"] {
        let refused = files.take("--metrics", Some(&argument(Path::new(text)))).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{text}");
    }
}
