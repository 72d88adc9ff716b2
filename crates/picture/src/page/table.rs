//! A table as HTML, in a place that scrolls where it is too wide.

use super::markup::Markup;
use super::model::PageTable;

pub(super) fn table(out: &mut Markup, table: &PageTable) {
    let first_number = table.columns.len().saturating_sub(table.numbers);
    let id = out.new_id();
    out.tag("<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-labelledby=\"t").integer(id);
    out.tag("\">\n<table>\n<caption id=\"t")
        .integer(id)
        .tag("\">")
        .words(&table.caption)
        .tag("</caption>\n<thead><tr>");
    for (at, name) in table.columns.iter().enumerate() {
        out.tag(if at >= first_number { "<th scope=\"col\" class=\"n\">" } else { "<th scope=\"col\">" });
        out.words(name).tag("</th>");
    }
    out.tag("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        out.tag("<tr>");
        for (at, cell) in row.iter().enumerate() {
            let (open, close) = match at {
                0 if first_number > 0 => ("<th scope=\"row\">", "</th>"),
                at if at >= first_number => ("<td class=\"n\">", "</td>"),
                _ => ("<td>", "</td>"),
            };
            out.tag(open).words(cell).tag(close);
        }
        out.tag("</tr>\n");
    }
    out.tag("</tbody>\n</table>\n</div>\n");
}
