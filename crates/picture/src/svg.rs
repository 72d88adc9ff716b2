//! Pictures as SVG documents that stand alone (no scripts, fonts or links): what all of them are
//! drawn with. Pure functions from values to text.

use std::fmt::{self, Write as _};

/// The colour of text and of the main lines.
pub const INK: &str = "#1f2328";
/// The colour of secondary text.
pub const FAINT: &str = "#57606a";
/// The colours of series.
pub const PALETTE: [&str; 8] = ["#0b3c6f", "#d1741f", "#1a7f37", "#8250df", "#b3261e", "#57606a", "#4d88cb", "#b07800"];

/// A point: x from the left, y from the top.
pub type Point = (f64, f64);

/// A picture while it is drawn; what is drawn later lies on top.
pub struct Drawing(String);

impl Drawing {
    /// An empty one, of a width and a height.
    pub fn new((width, height): (f64, f64), title: &str) -> Drawing {
        let mut drawing = Drawing(String::with_capacity(32 << 10));
        drawing.add(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" font-family=\"DejaVu Sans, Verdana, Helvetica, Arial, sans-serif\" role=\"img\">\n\
             <title>{}</title>\n<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>",
            escape(title)
        ));
        drawing
    }

    /// Adds elements; words in them have to be escaped.
    pub fn add(&mut self, elements: fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{elements}");
    }

    /// A line of text.
    pub fn text(&mut self, at: Text, words: &str) {
        if words.is_empty() {
            return;
        }
        let Text { at: (x, y), size, bold, fill, anchor } = at;
        let weight = if bold { " font-weight=\"bold\"" } else { "" };
        self.add(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" fill=\"{fill}\" text-anchor=\"{anchor}\"{weight}>{}</text>",
            escape(words)
        ));
    }

    /// A line of a grid between two x, with a name at its left end.
    pub fn level(&mut self, (left, right): (f64, f64), y: f64, name: &str) {
        self.add(format_args!("<path d=\"M{left:.1} {y:.1}H{right:.1}\" stroke=\"#d8dee4\"/>"));
        self.text(Text::new((left - 6.0, y + 3.5), 10.0).fill(FAINT).anchor("end"), name);
    }

    /// A line through points, interrupted where there is none.
    pub fn line(&mut self, color: &str, dashed: bool, points: impl Iterator<Item = Option<Point>>) {
        let (mut path, mut pen) = (String::new(), 'M');
        for point in points {
            pen = match point {
                Some((x, y)) => {
                    let _ = write!(path, "{pen}{x:.1} {y:.1}");
                    'L'
                }
                None => 'M',
            };
        }
        self.path(color, dashed, &path);
    }

    /// A line along a path.
    pub fn path(&mut self, color: &str, dashed: bool, path: &str) {
        let dash = if dashed { " stroke-dasharray=\"5 4\"" } else { "" };
        self.add(format_args!("<path d=\"{path}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"{dash}/>"));
    }

    /// A square of a series' colour, full or hollow, and its name; their left end is given.
    pub fn key(&mut self, (x, y): Point, color: &str, hollow: bool, name: &str) {
        let fill = if hollow { "#ffffff" } else { color };
        self.add(format_args!(
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"10\" height=\"10\" fill=\"{fill}\" stroke=\"{color}\"/>",
            y - 9.0
        ));
        self.text(Text::new((x + 14.0, y), 10.5), name);
    }

    /// All of it.
    pub fn finish(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }
}

/// The position and style of a line of text.
#[derive(Clone, Copy)]
pub struct Text {
    at: Point,
    size: f64,
    bold: bool,
    fill: &'static str,
    anchor: &'static str,
}

impl Text {
    /// From a point of its base line to the right, in ink.
    pub fn new(at: Point, size: f64) -> Text {
        Text { at, size, bold: false, fill: INK, anchor: "start" }
    }

    /// In bold letters.
    pub fn bold(self) -> Text {
        Text { bold: true, ..self }
    }

    /// In another colour.
    pub fn fill(self, fill: &'static str) -> Text {
        Text { fill, ..self }
    }

    /// Which part of the text is at the point: "start", "middle" or "end".
    pub fn anchor(self, anchor: &'static str) -> Text {
        Text { anchor, ..self }
    }

    /// An estimate of how wide words are, on the wide side: the viewer's font is not known here.
    pub fn width_of(&self, words: &str) -> f64 {
        let em = |c: char| match c {
            'i' | 'j' | 'l' | ' ' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' => 0.36,
            'm' | 'w' | 'M' | 'W' | '@' | '%' => 0.98,
            'A'..='Z' | '0'..='9' => 0.68,
            c if c.is_ascii() => 0.6,
            _ => 1.0,
        };
        words.chars().map(em).sum::<f64>() * self.size * if self.bold { 1.1 } else { 1.0 }
    }

    /// The words, or as many of them as there is room for, and an ellipsis.
    pub fn cut(&self, words: &str, room: f64) -> String {
        if self.width_of(words) <= room {
            return words.to_owned();
        }
        let mut short = words.to_owned();
        while !short.is_empty() && self.width_of(&short) + self.size > room {
            short.pop();
        }
        format!("{}…", short.trim_end())
    }
}

/// Escapes markup, and replaces what XML 1.0 cannot carry at all.
pub fn escape(words: &str) -> String {
    let mut out = String::with_capacity(words.len());
    for c in words.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\t' | '\n' | '\r' => out.push(' '),
            '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            // Marks of direction make words read as other words.
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_is_there_and_escaped() {
        let mut drawing = Drawing::new((10.0, 20.0), "a<b");
        drawing.text(Text::new((1.0, 2.0), 3.5).bold().fill(FAINT).anchor("end"), "<x> & \"y\"\u{1}");
        drawing.text(Text::new((0.0, 0.0), 1.0), "");
        drawing.line("#000000", true, [Some((0.0, 1.0)), Some((2.0, 3.25)), None, Some((4.0, 5.0))].into_iter());
        drawing.key((5.0, 19.0), "#123456", true, "name");
        let picture = drawing.finish();
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n") && picture.contains("<title>a&lt;b<"));
        let words = "text-anchor=\"end\" font-weight=\"bold\">&lt;x&gt; &amp; &quot;y&quot;\u{fffd}</text>";
        assert!(picture.contains(words), "{picture}");
        assert!(picture.contains("M0.0 1.0L2.0 3.2M4.0 5.0\"") && picture.contains("dasharray"), "{picture}");
        assert!(picture.contains("fill=\"#ffffff\" stroke=\"#123456\""), "{picture}");
        assert_eq!(picture.matches("<text").count(), 2, "{picture}");
    }

    #[test]
    fn words_are_cut_to_the_room_there_is() {
        let at = Text::new((0.0, 0.0), 10.0);
        assert_eq!((at.cut("abc", 0.0), at.cut("abc", 100.0)), ("…".to_owned(), "abc".to_owned()));
        assert!(at.bold().width_of("abc") > at.width_of("abc"));
    }
}
