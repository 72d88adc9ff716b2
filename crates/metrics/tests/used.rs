//! What the vocabulary names is produced, listed and asked for, and nothing else is.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use datapipes_metrics::{Label, Measurement, spans, vocabulary};

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
    // Whoever reads them knows them by their names in text.
    let mentions: BTreeSet<&str> = code
        .split("vocabulary::")
        .skip(1)
        .map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap())
        .collect();
    let unused: Vec<_> = vocabulary::ALL.iter().filter(|(constant, _)| !mentions.contains(constant)).collect();
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
    let counts = ["runs", "threads", "items", "slabs", "segments", "regions", "number"];
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

/// What follows each `before` in a text, up to `end`.
fn between<'t>(text: &'t str, before: &str, end: char) -> Vec<&'t str> {
    text.split(before).skip(1).filter_map(|rest| rest.split(end).next()).collect()
}

/// The measurement of which this is a series.
fn measurement(series: &str) -> &'static Measurement {
    let of_it = |m: &&Measurement| m.name == series || series.strip_prefix(m.name).is_some_and(|end| end == "_bucket");
    vocabulary::ALL.iter().map(|(_, measurement)| *measurement).find(of_it).unwrap_or_else(|| panic!("{series}"))
}

#[test]
fn every_label_of_the_dashboard_is_one_of_what_it_shows() {
    let text = std::fs::read_to_string(root().join("docs/grafana.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut families = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        for target in panel["targets"].as_array().unwrap() {
            let (query, legend) = (target["expr"].as_str().unwrap(), target["legendFormat"].as_str().unwrap());
            let told = format!("{title}: {query}: {legend}");
            let series = *names(query).iter().next().unwrap();
            let measurement = measurement(series);
            // Commands write files; the service and its clients are read over HTTP and have no run.
            let family = series.split('_').nth(1).unwrap();
            families.insert(family.to_owned());
            let runs = !["service", "client"].contains(&family);
            let mut known: BTreeSet<&str> = measurement.labels.iter().map(|label| label.as_str()).collect();
            if runs {
                known.insert(Label::Run.as_str());
            }
            // Who reads them adds the machine.
            known.insert("instance");
            assert!(query.matches("datapipes_").count() == query.matches("{instance=~\"$instance\"").count(), "{told}");
            // The labels that are left of each series.
            let sums = between(query, "sum by (", ')');
            assert_eq!(sums.len(), query.matches("sum").count(), "{told}: a sum over everything");
            let mut left = known.clone();
            for sum in sums {
                left = sum.split(',').map(str::trim).collect();
                assert_eq!(left.remove("le"), series.ends_with("_bucket"), "{told}");
            }
            assert!(left.is_subset(&known), "{told}: {left:?} of {known:?}");
            assert!(!runs || left.contains("run"), "{told}: runs are put together");
            assert!(left.contains("instance"), "{told}: machines are put together");
            let shown: BTreeSet<&str> = between(legend, "{{", '}').into_iter().collect();
            assert_eq!(shown, left, "{told}: two series have one legend, or it names what none has");
        }
    }
    // What is measured has a panel; the machine's counters are those of `dpipe counters`.
    let measured = vocabulary::ALL.iter().filter(|(_, m)| m.labels != [Label::Scope]);
    let measured: BTreeSet<String> = measured.map(|(_, m)| m.name.split('_').nth(1).unwrap().to_owned()).collect();
    assert_eq!(families, measured);
}

#[test]
fn the_page_lists_every_label() {
    let mut table = String::from("| label | what it says |\n|---|---|\n");
    for label in Label::ALL {
        writeln!(table, "| `{}` | {} |", label.as_str(), label.help()).unwrap();
    }
    let page = std::fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    assert!(page.contains(&table), "docs/metrics.md has another list of labels; this one is right:\n{table}");
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
