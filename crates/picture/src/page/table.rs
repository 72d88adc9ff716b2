//! A table as HTML. On a narrow screen, where its columns have no room beside each other, the cells
//! of a row stand below each other, each with the name of its column.

use super::markup::Markup;
use super::model::PageTable;

/// So many columns of numbers have room on any screen.
const FEW_COLUMNS: usize = 3;

/// Whether cells stand below each other where it is narrow.
fn is_stacked(table: &PageTable) -> bool {
    table.columns.len() > FEW_COLUMNS || table.numbers + 1 < table.columns.len()
}

pub(super) fn table(out: &mut Markup, table: &PageTable) {
    let first_number = table.columns.len().saturating_sub(table.numbers);
    let is_stacked = is_stacked(table);
    let id = out.new_id();
    out.tag("<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-labelledby=\"t").integer(id);
    // Cells below each other are no table to a browser, so their parts are told to who hears them.
    out.tag(if is_stacked { "\">\n<table class=\"stack\" role=\"table\">\n" } else { "\">\n<table>\n" });
    out.tag("<caption id=\"t").integer(id).tag("\">").words(&table.caption).tag("</caption>\n<thead><tr>");
    for (at, name) in table.columns.iter().enumerate() {
        out.tag(if at >= first_number { "<th scope=\"col\" class=\"n\">" } else { "<th scope=\"col\">" });
        out.words(name).tag("</th>");
    }
    out.tag("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        out.tag(if is_stacked { "<tr role=\"row\">" } else { "<tr>" });
        for (at, cell) in row.iter().enumerate() {
            let is_name = at == 0 && first_number > 0;
            out.tag(if is_name { "<th scope=\"row\"" } else { "<td" });
            if at >= first_number {
                out.tag(" class=\"n\"");
            }
            if is_stacked {
                out.tag(if is_name { " role=\"rowheader\"" } else { " role=\"cell\"" });
                if let Some(name) = table.columns.get(at).filter(|name| !is_name && !name.is_empty()) {
                    out.tag(" data-label=\"").words(name).tag("\"");
                }
            }
            out.tag(">").words(cell).tag(if is_name { "</th>" } else { "</td>" });
        }
        out.tag("</tr>\n");
    }
    out.tag("</tbody>\n</table>\n</div>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn html(columns: &[&str], numbers: usize, row: &[&str]) -> String {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let mut out = Markup::default();
        table(&mut out, &PageTable { caption: "c".into(), columns: words(columns), rows: vec![words(row)], numbers });
        out.finish()
    }

    #[test]
    fn cells_of_wide_tables_have_the_names_of_their_columns() {
        // Sentences are wide, and so are many columns.
        let sentences = html(&["what", "\"why\""], 0, &["a", "because of <b>"]);
        let row = "<tr role=\"row\"><th scope=\"row\" role=\"rowheader\">a</th>\
                   <td role=\"cell\" data-label=\"&quot;why&quot;\">because of &lt;b&gt;</td></tr>";
        assert!(sentences.contains(row), "{sentences}");
        let many = html(&["phase", "a", "b", "c"], 3, &["x", "1", "2", "3"]);
        assert!(many.contains("<td class=\"n\" role=\"cell\" data-label=\"c\">3</td>"), "{many}");
        // A few numbers stay beside each other.
        let few = html(&["phase", "a", "b"], 2, &["x", "1", "2"]);
        assert!(
            few.contains("<table>") && few.contains("<td class=\"n\">2</td>") && !few.contains("data-label"),
            "{few}"
        );
    }
}
