//! A page as HTML.

use super::markup::Markup;
use super::model::{BarList, HtmlPage, PageBlock, PageCheck, PageSection, Tone};
use super::table::table;
use super::timeline;

const STYLE: &str = include_str!("style.css");

/// What precedes the title. The policy lets the page have its own style, and nothing else.
const HEAD: &str = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
    <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
    <meta name=\"color-scheme\" content=\"light dark\">\n\
    <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
    <title>";

impl HtmlPage {
    /// The page as HTML.
    pub fn html(&self) -> String {
        whole(self)
    }
}

fn whole(page: &HtmlPage) -> String {
    let mut out = Markup::default();
    out.tag(HEAD).words(&page.title).tag("</title>\n<style>\n").tag(STYLE).tag("</style>\n</head>\n<body>\n<main>\n");
    out.tag("<h1>").words(&page.title).tag("</h1>\n");
    if !page.headline.text.is_empty() {
        out.tag(match page.headline.tone {
            Tone::Neutral => "<p class=\"headline\">",
            Tone::Good => "<p class=\"headline good\">",
            Tone::Warning => "<p class=\"headline warning\"><strong>Look at this:</strong> ",
            Tone::Bad => "<p class=\"headline bad\"><strong>Wrong:</strong> ",
        });
        out.words(&page.headline.text).tag("</p>\n");
    }
    if !page.facts.is_empty() {
        out.tag("<dl class=\"facts\">\n");
        for (name, value) in &page.facts {
            out.tag("<div><dt>").words(name).tag("</dt><dd>").words(value).tag("</dd></div>\n");
        }
        out.tag("</dl>\n");
    }
    for part in &page.sections {
        section(&mut out, part);
    }
    if !page.footer.is_empty() {
        out.tag("<footer>").words(&page.footer).tag("</footer>\n");
    }
    out.tag("</main>\n</body>\n</html>\n");
    out.finish()
}

fn section(out: &mut Markup, part: &PageSection) {
    out.tag("<section>\n");
    if part.is_folded {
        out.tag("<details>\n<summary><h2>").words(&part.title).tag("</h2></summary>\n");
    } else {
        out.tag("<h2>").words(&part.title).tag("</h2>\n");
    }
    if !part.note.is_empty() {
        out.tag("<p>").words(&part.note).tag("</p>\n");
    }
    for block in &part.blocks {
        match block {
            PageBlock::Text(text) => _ = out.tag("<p>").words(text).tag("</p>\n"),
            PageBlock::Verbatim(text) => {
                out.tag("<pre tabindex=\"0\">").lines(text).tag("</pre>\n");
            }
            PageBlock::Timeline(chart) => timeline::chart(out, chart),
            PageBlock::Bars(list) => bars(out, list),
            PageBlock::Table(cells) => table(out, cells),
            PageBlock::Checks(list) => checks(out, list),
        }
    }
    out.tag(if part.is_folded { "</details>\n</section>\n" } else { "</section>\n" });
}

/// A table whose last column has a bar behind its words.
fn bars(out: &mut Markup, list: &BarList) {
    let largest = list.bars.iter().map(|bar| bar.1).filter(|v| v.is_finite()).fold(0.0, f64::max);
    let most = list.top.unwrap_or(largest);
    out.tag("<table class=\"bars\">\n<caption>").words(&list.caption).tag("</caption>\n<tbody>\n");
    for (name, amount, shown) in &list.bars {
        let part = if most > 0.0 { (amount / most).clamp(0.0, 1.0) } else { 0.0 };
        out.tag("<tr><th scope=\"row\">").words(name).tag("</th><td><span class=\"bar\" style=\"width:");
        out.number(part * 100.0, 1).tag("%\"></span></td><td class=\"n\">").words(shown).tag("</td></tr>\n");
    }
    out.tag("</tbody>\n</table>\n");
}

fn checks(out: &mut Markup, list: &[PageCheck]) {
    out.tag("<ul class=\"checks\">\n");
    for check in list {
        out.tag(match check.holds {
            Some(true) => "<li class=\"good\"><strong>Holds:</strong> ",
            Some(false) => "<li class=\"bad\"><strong>Does not hold:</strong> ",
            None => "<li class=\"unknown\"><strong>Not verified:</strong> ",
        });
        out.words(&check.text).tag("</li>\n");
    }
    out.tag("</ul>\n");
}

#[cfg(test)]
mod tests {
    use super::super::model::*;

    fn hostile() -> String {
        String::from_utf8_lossy(b"<script>alert(1)</script>\"'&\n\xff\x00\x1b[2J--></style>").into_owned()
    }

    /// A page in which every word is hostile.
    fn whole() -> HtmlPage {
        let h = hostile;
        let chart = TimelineChart {
            title: h(),
            unit: h(),
            form: TimelineForm::Lines,
            top: None,
            seconds: vec![0.0, 0.5, 1.0, f64::NAN],
            series: vec![TimelineSeries::new(h(), vec![1.0, f64::INFINITY, 2.0])],
            marks: vec![(0.5, h())],
        };
        let areas = TimelineChart { form: TimelineForm::Areas, top: Some(1.0), ..chart.clone() };
        let table = PageTable { caption: h(), columns: vec![h(), h()], rows: vec![vec![h(), h()]], numbers: 1 };
        let blocks = vec![
            PageBlock::Text(h()),
            PageBlock::Verbatim(h()),
            PageBlock::Timeline(chart),
            PageBlock::Timeline(areas),
            PageBlock::Bars(BarList { caption: h(), bars: vec![(h(), f64::NAN, h()), (h(), 2.0, h())], top: None }),
            PageBlock::Table(table),
            PageBlock::Checks([Some(true), Some(false), None].map(|holds| PageCheck { text: h(), holds }).into()),
        ];
        HtmlPage {
            title: h(),
            headline: Headline { text: h(), tone: Tone::Warning },
            facts: vec![(h(), h())],
            sections: [false, true]
                .map(|is_folded| PageSection { title: h(), note: h(), blocks: blocks.clone(), is_folded })
                .into(),
            footer: h(),
        }
    }

    #[test]
    fn no_word_of_others_becomes_markup() {
        let html = whole().html();
        assert!(!html.contains("<script") && !html.contains("alert(1)</") && !html.contains('\u{1b}'), "{html}");
        assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
        assert_eq!(html.matches("</style>").count(), 1);
        assert!(html.matches("&lt;script&gt;").count() > 40);
        // What is opened is closed.
        for tag in ["section", "table", "tr", "td", "th", "figure", "svg", "details", "summary", "dl", "ul", "p", "pre"]
        {
            let open = html.matches(&format!("<{tag}>")).count() + html.matches(&format!("<{tag} ")).count();
            assert_eq!(open, html.matches(&format!("</{tag}>")).count(), "{tag}");
            assert!(open > 0, "{tag}");
        }
    }

    #[test]
    fn nothing_comes_from_elsewhere_and_names_are_given_once() {
        let html = whole().html();
        for foreign in ["http:", "https:", "url(", "@import", "src=", " on"] {
            let found = html.replace("http-equiv", "").contains(foreign) && foreign != " on";
            assert!(!found, "{foreign}");
        }
        let ids: Vec<&str> = html.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        let mut unique = ids.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), ids.len(), "{ids:?}");
        // Each picture has a title and a description, which it names.
        assert_eq!(html.matches("<svg ").count(), 4);
        assert_eq!(html.matches("<title id=").count(), 4);
        assert_eq!(html.matches("<desc id=").count(), 4);
        for named in html.split("aria-labelledby=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(named.split(' ').all(|id| ids.contains(&id)), "{named}");
        }
    }

    #[test]
    fn a_page_can_be_written_and_read_as_json() {
        let page = HtmlPage { title: hostile(), ..HtmlPage::default() };
        let json = serde_json::to_string(&page).unwrap();
        assert_eq!(serde_json::from_str::<HtmlPage>(&json).unwrap(), page);
        assert!(page.html().contains("<h1>&lt;script&gt;"));
    }
}
