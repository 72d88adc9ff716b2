//! Pictures are documents of XML that stand alone, are described in words, and have both themes.
#![allow(clippy::unwrap_used)]

use datapipes_picture::budget::{self, CacheBudget, ClassMemory};
use datapipes_picture::channels::{self, ChannelEnd, ChannelGraph, ChannelWire};
use datapipes_picture::chart::{self, Form, Panel, Series};
use datapipes_picture::decision::{self, CandidateVerdict, DecidedHop, Decision, RouteCandidate};

/// Walks through a document; returns what is wrong with it.
fn fault(document: &str) -> Option<String> {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = document;
    while let Some(at) = rest.find('<') {
        if let Some(wrong) = of_text(&rest[..at]) {
            return Some(wrong);
        }
        let Some(end) = rest[at..].find('>').map(|end| end + at) else { return Some("a tag has no end".into()) };
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop() != Some(name) {
                return Some(format!("</{name}> closes nothing"));
            }
        } else {
            let (name, attributes) = tag.split_once(' ').unwrap_or((tag.trim_end_matches('/'), ""));
            if let Some(wrong) = of_attributes(attributes.trim_end_matches('/').trim_end()) {
                return Some(format!("<{tag}>: {wrong}"));
            }
            if !tag.ends_with('/') {
                open.push(name);
            }
        }
        if open.is_empty() && !rest.trim().is_empty() {
            return Some(format!("behind the end: {rest:.40}"));
        }
    }
    open.pop().map(|name| format!("<{name}> is not closed"))
}

fn of_attributes(mut left: &str) -> Option<String> {
    let mut names = Vec::new();
    while !left.is_empty() {
        let Some((name, (value, more))) =
            left.split_once("=\"").and_then(|(name, rest)| Some((name.trim(), rest.split_once('"')?)))
        else {
            return Some("an attribute without a value".into());
        };
        if names.contains(&name) {
            return Some(format!("{name} twice"));
        }
        names.push(name);
        if let Some(wrong) = of_text(value) {
            return Some(wrong);
        }
        left = more;
    }
    None
}

/// A text has no bare signs of markup, and only characters that XML knows.
fn of_text(text: &str) -> Option<String> {
    let entities = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"];
    text.char_indices().find_map(|(at, c)| {
        let is_known = matches!(c, '\t' | '\n' | '\r' | ' '..='\u{fffd}' | '\u{10000}'..);
        let is_bare = c == '&' && !entities.iter().any(|entity| text[at..].starts_with(entity));
        (!is_known || c == '>' || is_bare).then(|| format!("{c:?} in {text:.60}"))
    })
}

const HOSTILE: &str =
    "a<b> & \"c\" 'd' \u{1}\u{7f}\u{ffff} ]]> <!-- </svg> é 漢字 😀 very/long/path/without/a/space/in/it/at/all";

fn pictures(words: &str) -> Vec<(&'static str, String)> {
    let candidate = |verdict| RouteCandidate {
        leg: words.into(),
        primitive: words.into(),
        backend: words.into(),
        verdict,
        estimate_ns: Some(1e6),
        promise: words.into(),
        why: words.into(),
    };
    let hop =
        DecidedHop { primitive: words.into(), backend: words.into(), promises: vec![words.into()], why: words.into() };
    let decision = Decision {
        title: words.into(),
        remark: words.into(),
        places: vec![words.into(), words.into()],
        hops: vec![hop],
        candidates: [CandidateVerdict::Chosen, CandidateVerdict::Slower, CandidateVerdict::Refused]
            .map(candidate)
            .into(),
    };
    let cache = CacheBudget {
        title: words.into(),
        remark: words.into(),
        budget_bytes: 1 << 20,
        used_bytes: 1 << 19,
        table_bytes: 1 << 16,
        slab_bytes: 1 << 16,
        classes: vec![ClassMemory { capacity_bytes: 128, slabs: 3, items: 100, ..ClassMemory::default() }],
    };
    let graph = ChannelGraph {
        heading: words.into(),
        devices: vec![words.into(); 3],
        relay: Some(words.into()),
        wires: vec![ChannelWire { from: ChannelEnd::Device(0), to: ChannelEnd::Relay }],
        edges: vec![words.into(); 2],
    };
    let panel = Panel {
        title: words.into(),
        unit: words.into(),
        form: Form::Bars,
        is_logarithmic: false,
        labels: vec![words.into()],
        series: vec![Series { name: words.into(), color: 0, is_published: false, values: vec![Some(1.0)] }],
    };
    vec![
        ("decision", decision::svg(&decision)),
        ("budget", budget::svg(&cache)),
        ("channels", channels::svg(words, words, &[graph])),
        ("chart", chart::svg(words, words, &[panel])),
    ]
}

#[test]
fn whatever_the_words_are_a_picture_is_one_document() {
    for words in ["plain", HOSTILE, ""] {
        for (name, picture) in pictures(words) {
            assert_eq!(fault(&picture), None, "{name} of {words:?}");
            assert!(picture.starts_with("<svg ") && picture.contains("<title"), "{name}");
            assert!(!picture.contains("href") && !picture.contains("<script"), "{name}: it does not stand alone");
            if name != "chart" {
                assert!(picture.contains("<desc ") && picture.contains("prefers-color-scheme:dark"), "{name}");
            }
        }
    }
}

#[test]
fn what_is_not_a_document_is_found() {
    for wrong in ["<a>", "<a></b>", "<a b=\"1\" b=\"2\"/>", "<a>&</a>", "<a>\u{1}</a>", "<a b=1/>", "<a/><b/>", "</a>"]
    {
        assert!(fault(wrong).is_some(), "{wrong}");
    }
    assert_eq!(fault("<a b=\"&lt;\"><c/>d &amp; e</a>\n"), None);
}
