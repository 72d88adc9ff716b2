//! Drawings that follow the viewer's theme, light or dark, by a media query of CSS, and that say in
//! words what they show, for readers of screens. Like all pictures here they stand alone.
//!
//! A drawing keeps account of the room that its texts take, by estimate: what leaves the frame or
//! lies on other text can be asked for ([`ThemedDrawing::faults`]), and tests do.

use std::fmt::{self, Write as _};

use crate::svg::{Point, Text, escape};

/// What an area or a line stands for. Each has a colour in both themes; none is told apart by its
/// colour alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShapeTone {
    /// The things that a picture is about.
    Plain,
    /// What was chosen, or is in use.
    Chosen,
    /// What could have been chosen.
    Open,
    /// The candidates that cannot serve.
    Refused,
    /// What is free or empty.
    Empty,
    /// One of a series.
    Series(usize),
}

/// The colours of series: light, dark.
const SERIES: [(&str, &str); 8] = [
    ("#4d88cb", "#6ea8e8"),
    ("#d1741f", "#e8964a"),
    ("#2f9e4f", "#5cc27a"),
    ("#8250df", "#b392f0"),
    ("#c4483d", "#f0807a"),
    ("#6e7781", "#9aa4ae"),
    ("#1b8a8f", "#4fc3c8"),
    ("#b07800", "#d9a83a"),
];

impl ShapeTone {
    fn class(self) -> String {
        match self {
            ShapeTone::Plain => "plain".into(),
            ShapeTone::Chosen => "chosen".into(),
            ShapeTone::Open => "open".into(),
            ShapeTone::Refused => "refused".into(),
            ShapeTone::Empty => "empty".into(),
            ShapeTone::Series(at) => format!("s{}", at % SERIES.len()),
        }
    }
}

/// How a text looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lettering {
    size: f64,
    is_bold: bool,
    is_faint: bool,
    anchor: &'static str,
}

impl Lettering {
    /// Letters of a size, in the colour of text, to the right of their point.
    pub fn new(size: f64) -> Lettering {
        Lettering { size, is_bold: false, is_faint: false, anchor: "start" }
    }

    /// In bold letters.
    #[must_use]
    pub fn bold(self) -> Lettering {
        Lettering { is_bold: true, ..self }
    }

    /// In the colour of remarks.
    #[must_use]
    pub fn faint(self) -> Lettering {
        Lettering { is_faint: true, ..self }
    }

    /// With its middle at the point.
    #[must_use]
    pub fn centered(self) -> Lettering {
        Lettering { anchor: "middle", ..self }
    }

    /// To the left of its point.
    #[must_use]
    pub fn to_the_left(self) -> Lettering {
        Lettering { anchor: "end", ..self }
    }

    /// An estimate of how wide words are, on the wide side.
    pub fn width_of(&self, words: &str) -> f64 {
        self.as_text().width_of(words)
    }

    /// The words in lines of at most this width, and at most so many of them; an ellipsis stands
    /// for what has no room. A word that is longer than a line is broken.
    pub fn wrap(&self, words: &str, room: f64, most: usize) -> Vec<String> {
        let mut lines = vec![String::new()];
        for word in words.split_whitespace() {
            for piece in self.pieces(word, room) {
                let last = lines.len() - 1;
                let joined = if lines[last].is_empty() { piece.clone() } else { format!("{} {piece}", lines[last]) };
                if self.width_of(&joined) <= room || lines[last].is_empty() {
                    lines[last] = joined;
                } else {
                    lines.push(piece);
                }
            }
        }
        if lines.len() > most {
            lines.truncate(most.max(1));
            if let Some(last) = lines.last_mut() {
                while !last.is_empty() && self.width_of(&format!("{last}…")) > room {
                    last.pop();
                }
                last.truncate(last.trim_end().len());
                last.push('…');
            }
        }
        lines.retain(|line| !line.is_empty());
        lines
    }

    /// A word in pieces that fit a line. A path is broken behind a slash, if there is one.
    fn pieces(&self, word: &str, room: f64) -> Vec<String> {
        let mut pieces = vec![String::new()];
        for letter in word.chars() {
            let last = pieces.len() - 1;
            if !pieces[last].is_empty() && self.width_of(&format!("{}{letter}", pieces[last])) > room {
                let slash = pieces[last].rfind('/').map_or(pieces[last].len(), |at| at + 1);
                let mut rest = pieces[last].split_off(slash);
                rest.push(letter);
                pieces.push(rest);
            } else {
                pieces[last].push(letter);
            }
        }
        pieces
    }

    fn as_text(&self) -> Text {
        let text = Text::new((0.0, 0.0), self.size);
        if self.is_bold { text.bold() } else { text }
    }
}

/// A rectangle: its left upper corner, width and height.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Area {
    /// The left end.
    pub x: f64,
    /// The top.
    pub y: f64,
    /// The width.
    pub width: f64,
    /// The height.
    pub height: f64,
}

/// A picture while it is drawn; what is drawn later lies on top.
#[derive(Debug)]
pub struct ThemedDrawing {
    size: (f64, f64),
    title: String,
    description: String,
    body: String,
    /// The room that texts take, by estimate.
    texts: Vec<(Area, String)>,
}

impl ThemedDrawing {
    /// An empty one of a width and a height. The description says in words what the picture shows;
    /// whoever cannot see it gets nothing else.
    pub fn new(size: (f64, f64), title: &str, description: &str) -> ThemedDrawing {
        ThemedDrawing {
            size,
            title: title.to_owned(),
            description: description.to_owned(),
            body: String::with_capacity(16 << 10),
            texts: Vec::new(),
        }
    }

    /// Adds a line of text; the point is on its base line.
    pub fn text(&mut self, (x, y): Point, letters: Lettering, words: &str) {
        if words.is_empty() {
            return;
        }
        let Lettering { size, is_bold, is_faint, anchor } = letters;
        let class = if is_faint { "faint" } else { "ink" };
        let weight = if is_bold { " font-weight=\"bold\"" } else { "" };
        let width = letters.width_of(words);
        let left = match anchor {
            "middle" => x - width / 2.0,
            "end" => x - width,
            _ => x,
        };
        self.texts.push((Area { x: left, y: y - size * 0.78, width, height: size }, words.to_owned()));
        self.add(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" class=\"{class}\" text-anchor=\"{anchor}\"{weight}>{}</text>",
            escape(words)
        ));
    }

    /// Adds lines of text, one below the other. Returns the base line of the next one.
    pub fn lines(&mut self, (x, y): Point, letters: Lettering, lines: &[String]) -> f64 {
        let step = letters.size * 1.3;
        for (at, line) in lines.iter().enumerate() {
            self.text((x, y + at as f64 * step), letters, line);
        }
        y + lines.len() as f64 * step
    }

    /// Adds a rectangle with a border, and words that show when it is pointed at.
    pub fn area(&mut self, area: Area, tone: ShapeTone, words: &str) {
        let Area { x, y, width, height } = area;
        let title = if words.is_empty() { String::new() } else { format!("<title>{}</title>", escape(words)) };
        self.add(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"3\" class=\"{}\">{title}</rect>",
            width.max(0.5),
            height.max(0.5),
            tone.class()
        ));
    }

    /// Adds a line through points, with a head of an arrow at its end if `has_head`; a dashed one
    /// for what is only planned or refused.
    pub fn line(&mut self, points: &[Point], tone: ShapeTone, has_head: bool, is_dashed: bool) {
        let mut path = String::new();
        for (at, (x, y)) in points.iter().enumerate() {
            // Writing to a String cannot fail, here and below.
            let _ = write!(path, "{}{x:.1} {y:.1}", if at == 0 { 'M' } else { 'L' });
        }
        let dash = if is_dashed { " stroke-dasharray=\"5 4\"" } else { "" };
        self.add(format_args!("<path d=\"{path}\" class=\"line {}\"{dash}/>", tone.class()));
        if let ([.., (ax, ay), (bx, by)], true) = (points, has_head) {
            let (dx, dy) = (bx - ax, by - ay);
            let len = (dx * dx + dy * dy).sqrt().max(1e-9);
            let (ux, uy) = (dx / len, dy / len);
            let corner = |side: f64| (bx - 9.0 * ux - side * 4.0 * uy, by - 9.0 * uy + side * 4.0 * ux);
            let ((lx, ly), (rx, ry)) = (corner(1.0), corner(-1.0));
            let class = tone.class();
            self.add(format_args!(
                "<path d=\"M{bx:.1} {by:.1}L{lx:.1} {ly:.1}L{rx:.1} {ry:.1}Z\" class=\"head {class}\"/>"
            ));
        }
    }

    /// Adds a small sign in front of a row, which says by its form what its colour says: full for
    /// what was chosen, hollow for what could have been, a cross for what was refused.
    pub fn sign(&mut self, (x, y): Point, tone: ShapeTone) {
        let class = tone.class();
        match tone {
            ShapeTone::Refused => self.add(format_args!(
                "<path d=\"M{:.1} {:.1}L{:.1} {:.1}M{:.1} {:.1}L{:.1} {:.1}\" class=\"line {class}\"/>",
                x - 5.0,
                y - 5.0,
                x + 5.0,
                y + 5.0,
                x - 5.0,
                y + 5.0,
                x + 5.0,
                y - 5.0
            )),
            ShapeTone::Chosen => {
                self.add(format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"6\" class=\"head {class}\"/>"));
            }
            _ => self.add(format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5.5\" class=\"line {class}\"/>")),
        }
    }

    fn add(&mut self, elements: fmt::Arguments<'_>) {
        let _ = writeln!(self.body, "{elements}");
    }

    /// What is wrong with the texts, by estimate: those that leave the frame, and those that lie on
    /// another.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (at, (area, words)) in self.texts.iter().enumerate() {
            let is_inside = area.x >= 0.0
                && area.y >= 0.0
                && area.x + area.width <= self.size.0
                && area.y + area.height <= self.size.1;
            if !is_inside {
                faults.push(format!("`{words}` leaves the frame"));
            }
            for (other, on) in &self.texts[..at] {
                let across = area.x < other.x + other.width && other.x < area.x + area.width;
                if across && area.y < other.y + other.height && other.y < area.y + area.height {
                    faults.push(format!("`{words}` lies on `{on}`"));
                }
            }
        }
        faults
    }

    /// All of it.
    pub fn finish(self) -> String {
        let ThemedDrawing { size: (width, height), title, description, body, .. } = self;
        // Several pictures may stand on one page, and their names must not be the same.
        let id = title
            .bytes()
            .chain(description.bytes())
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\" font-family=\"DejaVu Sans, Verdana, Helvetica, Arial, sans-serif\" \
             class=\"datapipes\" role=\"img\" aria-labelledby=\"t{id:016x} d{id:016x}\">\n\
             <title id=\"t{id:016x}\">{}</title>\n<desc id=\"d{id:016x}\">{}</desc>\n<style>{}</style>\n\
             <rect width=\"{width:.0}\" height=\"{height:.0}\" class=\"ground\"/>\n{body}</svg>\n",
            escape(&title),
            escape(&description),
            style()
        )
    }
}

/// The colours of both themes. Names begin with `.datapipes`, so that a page which holds the
/// picture is not changed.
fn style() -> String {
    let mut style = String::from(
        ".datapipes{--ground:#ffffff;--ink:#1f2328;--faint:#57606a;--plain:#57606a;--plain-fill:#f6f8fa;\
         --chosen:#1a7f37;--chosen-fill:#dafbe1;--open:#8a5a00;--open-fill:#fff3d1;--refused:#b3261e;\
         --refused-fill:#ffebe9;--empty:#c0c6cd;--empty-fill:#ffffff",
    );
    let both = |theme: fn(&(&'static str, &'static str)) -> &'static str| {
        SERIES.iter().enumerate().fold(String::new(), |all, (at, pair)| all + &format!(";--s{at}:{}", theme(pair)))
    };
    style += &both(|pair| pair.0);
    style += "}@media (prefers-color-scheme:dark){.datapipes{--ground:#0d1117;--ink:#e6edf3;--faint:#9aa4ae;\
              --plain:#8b949e;--plain-fill:#161b22;--chosen:#56d364;--chosen-fill:#12331c;--open:#d9a83a;\
              --open-fill:#33270b;--refused:#ff8a80;--refused-fill:#3b1715;--empty:#484f58;--empty-fill:#0d1117";
    style += &both(|pair| pair.1);
    style += "}}.datapipes .ground{fill:var(--ground)}.datapipes .ink{fill:var(--ink)}\
              .datapipes .faint{fill:var(--faint)}";
    for tone in ["plain", "chosen", "open", "refused", "empty"] {
        let _ = write!(
            style,
            ".datapipes .{tone}{{fill:var(--{tone}-fill);stroke:var(--{tone})}}.datapipes .head.{tone}{{fill:var(--{tone})}}"
        );
    }
    for at in 0..SERIES.len() {
        let _ = write!(style, ".datapipes .s{at}{{fill:var(--s{at});stroke:var(--s{at})}}");
    }
    style + ".datapipes .line{fill:none;stroke-width:2}"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_themes_name_every_colour_once() {
        let style = style();
        let (light, dark) = style.split_once("@media").unwrap();
        let names = |part: &str| -> Vec<String> {
            let colours = part.split([';', '{']).filter_map(|rule| rule.split_once(":#"));
            colours.map(|(name, _)| name.to_owned()).filter(|name| name.starts_with("--")).collect()
        };
        assert_eq!(names(light), names(dark.split("}}").next().unwrap()));
        assert_eq!(names(light).len(), 13 + SERIES.len());
    }

    #[test]
    fn words_are_wrapped_to_their_room_and_the_rest_is_told_by_an_ellipsis() {
        let letters = Lettering::new(10.0);
        let words = "one two three averyveryverylongword five six seven eight nine ten";
        for room in [30.0, 60.0, 100.0, 1000.0] {
            let all = letters.wrap(words, room, 99);
            assert!(all.iter().all(|line| letters.width_of(line) <= room), "{all:?}");
            assert_eq!(all.concat().replace(' ', ""), words.replace(' ', ""));
            for most in 1..all.len() {
                let cut = letters.wrap(words, room, most);
                assert_eq!(cut.len(), most, "{cut:?}");
                assert!(cut[most - 1].ends_with('…'), "{cut:?}");
                assert!(cut.iter().all(|line| letters.width_of(line) <= room), "{cut:?}");
            }
        }
        assert!(letters.wrap("  ", 10.0, 3).is_empty());
    }

    #[test]
    fn texts_that_leave_the_frame_or_lie_on_others_are_found() {
        let mut drawing = ThemedDrawing::new((100.0, 50.0), "t", "d");
        drawing.text((10.0, 20.0), Lettering::new(10.0), "inside");
        assert!(drawing.faults().is_empty(), "{:?}", drawing.faults());
        drawing.text((90.0, 40.0), Lettering::new(10.0), "outside");
        drawing.text((20.0, 24.0), Lettering::new(10.0), "above");
        assert_eq!(drawing.faults(), ["`outside` leaves the frame", "`above` lies on `inside`"]);
        assert!(drawing.finish().contains("aria-labelledby"));
    }
}
