//! Writes markup. What is not a constant of this program is escaped, by the types: `tag` takes
//! constants only, `words` takes anything and escapes it, `number` takes numbers.

use crate::svg::escape;

/// Markup while it is written.
#[derive(Default)]
pub(super) struct Markup {
    text: String,
    /// How many identifiers were given out.
    ids: usize,
}

impl Markup {
    /// Adds markup that this program is made of.
    pub(super) fn tag(&mut self, markup: &'static str) -> &mut Markup {
        self.text.push_str(markup);
        self
    }

    /// Adds words, as text or as the value of an attribute in quotes.
    pub(super) fn words(&mut self, words: &str) -> &mut Markup {
        self.text.push_str(&escape(words));
        self
    }

    /// As `words`, but a line's end stays one: for text whose lines count.
    pub(super) fn lines(&mut self, words: &str) -> &mut Markup {
        for (nth, line) in words.lines().enumerate() {
            if nth > 0 {
                self.text.push('\n');
            }
            self.words(line);
        }
        self
    }

    /// Adds a number with at most so many digits behind its point. A number that is none is 0.
    pub(super) fn number(&mut self, value: f64, digits: usize) -> &mut Markup {
        let value = if value.is_finite() { value } else { 0.0 };
        let text = format!("{value:.digits$}");
        let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
        self.text.push_str(if text == "-0" { "0" } else { text });
        self
    }

    /// Adds an integer.
    pub(super) fn integer(&mut self, value: usize) -> &mut Markup {
        self.text.push_str(&value.to_string());
        self
    }

    /// A number for identifiers that no other part of the page has.
    pub(super) fn new_id(&mut self) -> usize {
        self.ids += 1;
        self.ids
    }

    pub(super) fn finish(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_cannot_become_markup() {
        let mut markup = Markup::default();
        markup.tag("<p title=\"").words("\" onclick='x' \n").tag("\">").words("<script>&\u{0}\u{202e}").tag("</p>");
        let text = markup.finish();
        assert_eq!(text, "<p title=\"&quot; onclick=&#39;x&#39;  \">&lt;script&gt;&amp;\u{fffd}\u{fffd}</p>");
    }

    #[test]
    fn numbers_are_short() {
        let mut markup = Markup::default();
        for value in [1.5, 2.0, -0.0001, f64::NAN, f64::INFINITY, 120.0] {
            markup.number(value, 2).tag(" ");
        }
        assert_eq!(markup.finish(), "1.5 2 0 0 0 120 ");
        let mut markup = Markup::default();
        markup.lines("a\n<b>\r\nc");
        assert_eq!(markup.finish(), "a\n&lt;b&gt;\nc");
    }
}
