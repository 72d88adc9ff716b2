//! What the vocabulary names is produced, listed and asked for, and nothing else is.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use datapipes_metrics::{Label, spans, vocabulary};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(|dir| dir.join("Cargo.lock").exists()).unwrap().to_path_buf()
}

/// The text of the sources below `under` that are part of a program: no tests, no examples.
fn sources(under: &Path, text: &mut String) {
    for entry in std::fs::read_dir(under).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            if !["tests", "examples", "target", "benches"].contains(&name.as_str()) {
                sources(&path, text);
            }
        } else if name.ends_with(".rs") && name != "tests.rs" && name != "vocabulary.rs" {
            let whole = std::fs::read_to_string(&path).unwrap();
            let code = whole.split("#[cfg(test)]").next().unwrap();
            for line in code.lines() {
                text.push_str(line.split("//").next().unwrap());
                text.push('\n');
            }
        }
    }
}

#[test]
fn every_name_is_produced_somewhere() {
    let mut code = String::new();
    for top in ["crates", "cli/src"] {
        sources(&root().join(top), &mut code);
    }
    let words: BTreeSet<&str> = code.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let unused: Vec<_> = vocabulary::ALL.iter().filter(|(constant, _)| !words.contains(constant)).collect();
    assert!(unused.is_empty(), "nobody produces {unused:?}");
}

/// The levels, names and fields of the spans and events that sources tell of.
fn traced(code: &str) -> BTreeSet<(String, String, Vec<String>)> {
    let mut found = BTreeSet::new();
    let calls = code.split("datapipes_metrics::span!(").skip(1).chain(code.split("datapipes_metrics::event!(").skip(1));
    for call in calls {
        let words: Vec<&str> = call.splitn(3, ',').map(str::trim).collect();
        let [level, name, rest] = words[..] else { panic!("{call:.80}") };
        let (fields, rest) = rest.trim_start_matches('[').split_once(']').unwrap();
        let mut named: Vec<String> =
            fields.split(',').filter_map(|field| Some(field.split_once(" = ")?.0.trim().to_owned())).collect();
        if let Some(empty) = rest.trim_start().strip_prefix(", empty: [") {
            let empty = empty.split(']').next().unwrap().split(',').map(str::trim);
            named.extend(empty.filter(|field| !field.is_empty()).map(str::to_owned));
        }
        found.insert((level.to_lowercase(), name.trim_matches('"').to_owned(), named));
    }
    found
}

#[test]
fn every_span_and_event_is_told_of_as_it_is_listed() {
    let mut code = String::new();
    sources(&root().join("crates"), &mut code);
    // The examples of the macros themselves are comments, and gone already.
    let told = traced(&code);
    let listed: BTreeSet<(String, String, Vec<String>)> = spans::ALL
        .iter()
        .map(|span| {
            let fields = span.fields.iter().map(|field| (*field).to_owned()).collect();
            (span.level.as_str().to_lowercase(), span.name.to_owned(), fields)
        })
        .collect();
    assert_eq!(told, listed);
    // Fields are labels of measurements, sums with their unit, or numbers of things.
    let counts = ["runs", "threads", "slabs", "segments", "regions", "number"];
    for span in spans::ALL {
        for field in span.fields {
            let is_label = Label::ALL.iter().any(|label| label.as_str() == *field);
            assert!(is_label || field.ends_with("_bytes") || counts.contains(field), "{}: {field}", span.name);
        }
    }
}

#[test]
fn the_page_lists_every_span_and_event() {
    let mut table = String::from("| name | what | level | fields | what it is |\n|---|---|---|---|---|\n");
    for span in spans::ALL {
        let what = if span.lasts { "span" } else { "event" };
        let (level, fields) = (span.level.as_str().to_lowercase(), span.fields.join(", "));
        writeln!(table, "| `{}` | {what} | {level} | {fields} | {} |", span.name, span.help).unwrap();
    }
    let page = std::fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    assert!(page.contains(&table), "docs/metrics.md has another list of spans; this one is right:\n{table}");
}

/// Every name of ours in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("datapipes_")).collect()
}

/// The name of the measurement of which this is a series, for histograms have several.
fn is_known(name: &str) -> bool {
    let known = |name: &str| vocabulary::ALL.iter().any(|(_, measurement)| measurement.name == name);
    let of_histogram = |end: &str| {
        let stem = name.strip_suffix(end).unwrap_or_default();
        vocabulary::ALL.iter().any(|(_, m)| m.name == stem && m.kind.as_str() == "histogram")
    };
    known(name) || ["_bucket", "_sum", "_count"].into_iter().any(of_histogram)
}

#[test]
fn no_text_names_what_is_not_there() {
    assert!(is_known("datapipes_cache_read_seconds_bucket") && !is_known("datapipes_cache_reads_total_bucket"));
    let page = std::fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    let unknown: Vec<_> = names(&page).into_iter().filter(|name| !is_known(name)).collect();
    assert!(unknown.is_empty(), "docs/metrics.md: {unknown:?}");
}

#[test]
fn every_query_of_the_dashboard_asks_for_what_is_there() {
    let text = std::fs::read_to_string(root().join("docs/grafana.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut queries = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            let asked = names(query);
            assert!(!asked.is_empty(), "{title}: {query}");
            for name in asked {
                assert!(is_known(name), "{title}: nothing is called {name}");
                // A sum that only grows says nothing by itself, and a rate of a gauge is none.
                let grows = name.ends_with("_total") || name.ends_with("_bucket");
                assert_eq!(grows, query.contains("rate(") || query.contains("increase("), "{title}: {query}");
            }
            queries += 1;
        }
    }
    assert!(queries > 20, "{queries}");
}

#[test]
fn the_page_lists_every_measurement() {
    let mut table = String::from("| name | kind | labels | what it is |\n|---|---|---|---|\n");
    for (_, measurement) in vocabulary::ALL {
        let labels: Vec<&str> = measurement.labels.iter().copied().map(Label::as_str).collect();
        let (name, kind, labels) = (measurement.name, measurement.kind.as_str(), labels.join(", "));
        writeln!(table, "| `{name}` | {kind} | {labels} | {} |", measurement.help).unwrap();
    }
    let page = std::fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    assert!(
        page.contains(&table),
        "docs/metrics.md has another list; this one is right (`cargo run -p datapipes-metrics --example list`)"
    );
}
