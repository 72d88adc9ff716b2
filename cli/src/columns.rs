//! Columns that text takes on a terminal: a character of East Asian scripts takes two, a combining
//! mark none.

use unicode_width::UnicodeWidthChar;

/// The columns of a character; a control character has none of its own.
pub(crate) fn of(c: char) -> usize {
    c.width().unwrap_or(0)
}

/// The columns of a text, each character counted for itself. A terminal that joins some takes
/// fewer.
pub(crate) fn count(text: &str) -> usize {
    text.chars().map(of).sum()
}

/// As much of a text as so many columns have room for.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    let mut left = columns;
    let fits = |c: &char| left.checked_sub(of(*c)).map(|rest| left = rest).is_some();
    text.chars().take_while(fits).collect()
}

/// A text, or as much of it as so many columns have room for, with a mark that there is more.
pub(crate) fn shortened(text: &str, columns: usize) -> String {
    match count(text) <= columns {
        true => text.to_owned(),
        false => cut(&format!("{}\u{2026}", cut(text, columns.saturating_sub(1))), columns),
    }
}

/// A text with spaces behind it, up to so many columns.
pub(crate) fn left(text: &str, columns: usize) -> String {
    format!("{text}{}", " ".repeat(columns.saturating_sub(count(text))))
}

/// A text with spaces before it, up to so many columns.
pub(crate) fn right(text: &str, columns: usize) -> String {
    format!("{}{text}", " ".repeat(columns.saturating_sub(count(text))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_characters_take_two_columns_and_are_never_cut_in_two() {
        let name = "a\u{5b57}\u{e9}\u{6f22}b";
        assert_eq!(count(name), 7);
        let cuts: Vec<String> = (0..8).map(|columns| cut(name, columns)).collect();
        assert_eq!(cuts[2], "a");
        assert_eq!(cuts[4], "a\u{5b57}\u{e9}");
        assert_eq!((cuts[5].as_str(), cuts[7].as_str()), ("a\u{5b57}\u{e9}", name));
        assert_eq!((shortened("abcd", 4), shortened("abcde", 4)), ("abcd".into(), "abc\u{2026}".into()));
        assert_eq!((shortened("abc", 1), shortened("abc", 0)), ("\u{2026}".into(), String::new()));
        assert_eq!(left("\u{5b57}", 4), "\u{5b57}  ");
        assert_eq!(right("\u{5b57}", 4), "  \u{5b57}");
        assert_eq!((left("abc", 2), count("e\u{301}")), ("abc".to_owned(), 1));
    }
}
