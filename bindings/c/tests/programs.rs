//! The programs in `programs/` are compiled by the machine's C and C++ compilers, against the
//! headers and the libraries as a user has them, and hold what they check.
#![allow(clippy::unwrap_used)]

mod building;

use std::io::Write;
use std::process::{Command, Stdio};

use building::{Build, Built, C, CPP, SANITIZERS, has, here, holds};
use datapipes_testkit::{TempFolder, output_of};

/// Compiles a program and runs it. Prints what it skipped.
fn run(build: &Build<'_>, source: &str) {
    let built = Built::from(build, source);
    let said = holds(source, &output_of(&mut built.command()).unwrap());
    print_skipped(&said);
}

fn print_skipped(said: &str) {
    for line in said.lines().filter(|line| line.starts_with("SKIPPED")) {
        println!("{line}");
    }
}

#[test]
fn the_flavors_in_c() {
    if has("cc", "the_flavors_in_c") {
        run(&C, "flavors.c");
    }
}

#[test]
fn surroundings_in_c() {
    if has("cc", "surroundings_in_c") {
        run(&C, "surroundings.c");
        run(&Build { flags: SANITIZERS, ..C }, "surroundings.c");
    }
}

#[test]
fn the_products_in_c_with_the_static_library() {
    if has("cc", "the_products_in_c_with_the_static_library") {
        run(&Build { is_static: true, ..C }, "products.c");
    }
}

#[test]
fn figures_and_objects_in_cpp() {
    if has("c++", "figures_and_objects_in_cpp") {
        run(&CPP, "objects.cpp");
    }
}

#[test]
fn ends_of_channels_in_c() {
    if has("cc", "ends_of_channels_in_c") {
        run(&C, "ends.c");
        run(&Build { flags: SANITIZERS, ..C }, "ends.c");
    }
}

/// The program is also its controller and its devices, which are locked down.
#[test]
fn devices_in_c() {
    if has("cc", "devices_in_c") {
        run(&C, "devices.c");
    }
}

#[test]
fn channels_and_devices_in_cpp() {
    if has("c++", "channels_and_devices_in_cpp") {
        run(&CPP, "channels.cpp");
    }
}

/// The same by Clang, which is not everywhere.
#[test]
fn by_clang() {
    if has("clang", "by_clang") && has("clang++", "by_clang") {
        for source in ["flavors.c", "ends.c", "devices.c", "conformance.c"] {
            run(&Build { compiler: "clang", ..C }, source);
        }
        for source in ["objects.cpp", "surface.cpp", "channels.cpp", "conformance.cpp"] {
            run(&Build { compiler: "clang++", ..CPP }, source);
        }
    }
}

/// Clang's sanitizers are a package of their own.
#[test]
fn by_clang_under_the_sanitizers() {
    if !has("clang", "by_clang_under_the_sanitizers") || !has("clang++", "by_clang_under_the_sanitizers") {
        return;
    }
    let dir = TempFolder::beside_the_program().unwrap();
    std::fs::write(dir.path("nothing.c"), "int main(void) { return 0; }\n").unwrap();
    let mut compile = Command::new("clang");
    compile.args(SANITIZERS).arg(dir.path("nothing.c")).arg("-o").arg(dir.path("nothing"));
    if !compile.output().unwrap().status.success() {
        println!("SKIPPED: by_clang_under_the_sanitizers: clang has no run-time library of its sanitizers");
        return;
    }
    for source in ["flavors.c", "ends.c"] {
        run(&Build { compiler: "clang", flags: SANITIZERS, ..C }, source);
    }
    for source in ["objects.cpp", "surface.cpp"] {
        run(&Build { compiler: "clang++", flags: SANITIZERS, ..CPP }, source);
    }
}

#[test]
fn sorts_between_functions() {
    if has("cc", "sorts_between_functions") {
        run(&C, "streams.c");
        run(&Build { flags: SANITIZERS, ..C }, "streams.c");
    }
    if has("c++", "sorts_between_functions") {
        run(&CPP, "streams.cpp");
    }
}

#[test]
fn misuse_in_c() {
    if has("cc", "misuse_in_c") {
        run(&C, "misuse.c");
    }
}

#[test]
fn children_of_programs_with_threads() {
    if has("cc", "children_of_programs_with_threads") {
        run(&C, "forks.c");
    }
}

#[test]
fn threads_that_are_cancelled() {
    if has("cc", "threads_that_are_cancelled") {
        run(&C, "cancel.c");
    }
}

#[test]
fn arguments_in_c() {
    if has("cc", "arguments_in_c") {
        run(&C, "arguments.c");
    }
}

/// The header of C may stand before those of the system, in C++, too.
#[test]
fn the_header_before_those_of_the_system() {
    if has("c++", "the_header_before_those_of_the_system") {
        run(&CPP, "order.cpp");
        run(&Build { standard: "-std=c++11", ..CPP }, "order.cpp");
    }
}

#[test]
fn what_cpp_adds() {
    if has("c++", "what_cpp_adds") {
        run(&CPP, "surface.cpp");
    }
}

/// What lacks the language that datapipes.hpp needs is told so, in one error.
#[test]
fn another_language_is_refused_by_name() {
    if !has("c++", "another_language_is_refused_by_name") {
        return;
    }
    for flags in [&["-std=c++17"][..], &["-std=c++20", "-fno-exceptions"]] {
        let header = here().join("include/datapipes.hpp");
        let mut compile = Command::new("c++");
        let output = compile.args(flags).args(["-fsyntax-only", "-x", "c++"]).arg(header).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("needs C++20 with exceptions"), "{flags:?}: {said}");
        assert_eq!(said.matches("error:").count(), 1, "{flags:?}: {said}");
    }
}

#[test]
fn under_the_address_and_undefined_behaviour_sanitizers() {
    if has("cc", "under_the_address_and_undefined_behaviour_sanitizers") {
        for source in ["flavors.c", "products.c", "arguments.c"] {
            run(&Build { flags: SANITIZERS, ..C }, source);
        }
        if has("c++", "under_the_address_and_undefined_behaviour_sanitizers") {
            for source in ["objects.cpp", "surface.cpp"] {
                run(&Build { flags: SANITIZERS, ..CPP }, source);
            }
        }
    }
}

/// Only the programs and the C++ header are instrumented, not the library. The header says what the
/// library orders.
#[test]
fn under_the_thread_sanitizer() {
    for (build, source) in [(C, "misuse.c"), (CPP, "objects.cpp")] {
        if !has(build.compiler, "under_the_thread_sanitizer") {
            continue;
        }
        let built = Built::from(&Build { flags: &["-fsanitize=thread"], ..build }, source);
        let suppressions = format!("suppressions={}", here().join("tests/programs/tsan.supp").display());
        let ran = output_of(built.command().env("TSAN_OPTIONS", suppressions)).unwrap();
        if String::from_utf8_lossy(&ran.stderr).contains("unexpected memory mapping") {
            println!("SKIPPED: under_the_thread_sanitizer: this kernel places memory where the sanitizer cannot");
            continue;
        }
        holds(source, &ran);
    }
}

/// The programs of docs/c.md do what they say. The first ones are also those that the tests of the
/// installation build.
#[test]
fn the_programs_of_the_document_run() {
    let document = std::fs::read_to_string(here().join("../../docs/c.md")).unwrap();
    let dir = TempFolder::beside_the_program().unwrap();
    let cores = std::thread::available_parallelism().unwrap().get();
    let lines = (cores + 4) * (64 << 10) / 17;
    std::fs::write(dir.path("input"), "everything holds\n".repeat(lines)).unwrap();
    let counted = format!("{lines} lines\n");
    let programs = [
        (C, "c", vec![("first.c", "everything holds\n"), ("lines.c", &*counted), ("devices.c", "EVERYTHING HOLDS\n")]),
        (
            CPP,
            "cpp",
            vec![
                ("first.cpp", "everything holds\n"),
                ("figure6.cpp", "the runs are sorted\n"),
                ("devices.cpp", "123\n123\n123\n"),
            ],
        ),
    ];
    for (build, language, expected) in programs {
        let fence = format!("```{language}\n");
        let blocks: Vec<_> = document.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
        assert_eq!(blocks.len(), expected.len(), "{language}");
        if !has(build.compiler, "the_programs_of_the_document_run") {
            continue;
        }
        for (block, (name, output)) in blocks.into_iter().zip(expected) {
            if name.starts_with("first") {
                let kept = std::fs::read_to_string(here().join("tests/projects/cmake").join(name)).unwrap();
                assert_eq!(block, kept, "{name}");
            }
            let source = dir.path(name);
            std::fs::write(&source, block).unwrap();
            let built = Built::from(&build, source.to_str().unwrap());
            let ran = output_of(built.command().arg(dir.path("input"))).unwrap();
            assert!(ran.status.success() && ran.stdout == output.as_bytes(), "{name}: {ran:?}");
        }
    }
}

/// The half in C++ of the example `short_transfers`, with few calls.
#[test]
fn the_measured_program_measures() {
    if !has("c++", "the_measured_program_measures") {
        return;
    }
    let built = Built::from(&CPP, here().join("examples/short_transfers.cpp").to_str().unwrap());
    for (asked, answers) in [("blocking 1000\nruntime 1000\n", Some(2)), ("blocking 1\nother 1\n", None)] {
        let mut child =
            built.command().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(asked.as_bytes()).unwrap();
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.success(), answers.is_some(), "{ended:?}");
        let said = String::from_utf8(ended.stdout).unwrap();
        let costs: Vec<f64> = said.split_whitespace().map(|number| number.parse().unwrap()).collect();
        assert!(costs.iter().all(|cost| *cost > 0.0 && cost.is_finite()), "{said}");
        assert_eq!(costs.len(), 2 * answers.unwrap_or(1), "{said}");
    }
}

/// Random spans between all places, in all flavors, against a model.
#[test]
fn conformance_in_c() {
    if has("cc", "conformance_in_c") {
        let built = Built::from(&C, "conformance.c");
        let seed = datapipes_testkit::seed(0x5eed);
        let ran = output_of(built.command().env("SEED", seed.to_string())).unwrap();
        println!("{}", holds("conformance.c", &ran));
    }
}

/// The same through the header for C++, whose results are exceptions, functions, coroutines and
/// futures.
#[test]
fn conformance_in_cpp() {
    if has("c++", "conformance_in_cpp") {
        let built = Built::from(&CPP, "conformance.cpp");
        let seed = datapipes_testkit::seed(0x5eed);
        let ran = output_of(built.command().env("SEED", seed.to_string())).unwrap();
        println!("{}", holds("conformance.cpp", &ran));
    }
}
