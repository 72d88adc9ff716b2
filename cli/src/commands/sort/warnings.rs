//! What `--debug` says about options that probably do not do what was meant, in GNU sort's words.

use datapipes_sort::text::{Ignore, KeySpec, Modifiers, TextOptions, quote};

/// The warnings, each without the program's name.
pub(super) fn warnings(options: &TextOptions) -> Vec<String> {
    let mut found = Warnings { options, said: vec!["text ordering performed using simple byte comparison".into()] };
    found.keys();
    found.said
}

/// A key's ends as GNU counts them: the largest number where there is none.
struct Ends {
    start: usize,
    end: usize,
    /// Bytes of the last field; 0 for all.
    end_bytes: usize,
}

impl Ends {
    fn of(key: &KeySpec) -> Ends {
        Ends {
            start: if key.field == 0 && key.offset == 0 { usize::MAX } else { key.field },
            end: key.end.map_or(usize::MAX, |end| end.field),
            end_bytes: key.end.map_or(0, |end| end.bytes),
        }
    }

    fn is_empty(&self) -> bool {
        self.start != usize::MAX && self.end < self.start
    }

    /// Whether it is in more than one field; without an end, it is.
    fn spans_fields(&self) -> bool {
        let (first, last) = (self.start.wrapping_add(1).max(1), self.end.wrapping_add(1));
        last == 0 || first < last
    }
}

fn is_numeric(letters: &Modifiers) -> bool {
    letters.numeric || letters.general || letters.human
}

/// Which keys are numbers, and which of those span fields.
#[derive(Default)]
struct Numbers {
    any: bool,
    spanning: bool,
    general_spanning: bool,
}

struct Warnings<'a> {
    options: &'a TextOptions,
    said: Vec<String>,
}

impl Warnings<'_> {
    fn keys(&mut self) {
        let keys = self.options.effective_keys();
        // Letters without a key: the line is one, and most warnings would make no sense.
        let only_letters = self.options.keys.is_empty();
        let mut unused = self.options.modifiers;
        let mut numbers = Numbers::default();
        for (at, key) in keys.iter().enumerate() {
            let (number, ends) = (at + 1, Ends::of(key));
            numbers.any |= is_numeric(&key.modifiers);
            if key.obsolescent {
                self.obsolescent(&ends);
            }
            if ends.is_empty() {
                self.said.push(format!("key {number} has zero width and will be ignored"));
            } else if !only_letters && self.options.separator.is_none() {
                self.leading_blanks(number, key, &ends);
            }
            if !only_letters && is_numeric(&key.modifiers) && ends.spans_fields() {
                self.said.push(format!("key {number} is numeric and spans multiple fields"));
                numbers.spanning = true;
                numbers.general_spanning |= key.modifiers.general;
            }
            without(&mut unused, &key.modifiers);
        }
        self.separator(&numbers);
        self.unused(unused, !keys.is_empty());
    }

    fn obsolescent(&mut self, ends: &Ends) {
        let start = if ends.start == usize::MAX { 0 } else { ends.start };
        let (mut old, mut new) = (format!("+{start}"), format!("-k {}", start.wrapping_add(1)));
        if ends.end != usize::MAX {
            let end = ends.end + 1;
            old += &format!(" -{end}");
            new += &format!(",{}", end + usize::from(ends.end_bytes == usize::MAX));
        }
        self.said.push(format!("obsolescent key '{old}' used; consider '{new}' instead"));
    }

    fn leading_blanks(&mut self, number: usize, key: &KeySpec, ends: &Ends) {
        let letters = &key.modifiers;
        let skips_by_itself = is_numeric(letters) || letters.month;
        // Counted from the start of the line to a byte of the first field, there is nothing to
        // skip.
        let counts_from_line_start = ends.end == 0 && ends.end_bytes != 0;
        let significant = !letters.skip_start_blanks && (!skips_by_itself || key.offset > 0)
            || !letters.skip_end_blanks && ends.end_bytes > 0;
        if significant && !counts_from_line_start {
            let advice = "consider also specifying 'b'";
            self.said.push(format!("leading blanks are significant in key {number}; {advice}"));
        }
    }

    fn separator(&mut self, numbers: &Numbers) {
        let separator = self.options.separator.filter(|_| numbers.spanning);
        let taken_for = match separator {
            Some(b'.') => Some("decimal point"),
            Some(b'-') => Some("minus sign"),
            Some(b'+') if numbers.general_spanning => Some("plus sign"),
            _ => None,
        };
        if let (Some(separator), Some(taken_for)) = (separator, taken_for) {
            let shown = quote(&[separator]);
            self.said.push(format!("field separator {shown} is treated as a {taken_for} in numbers"));
        }
        if numbers.any && separator != Some(b'.') {
            self.said.push("numbers use '.' as a decimal point in this locale".into());
        }
    }

    fn unused(&mut self, unused: Modifiers, any_keys: bool) {
        let no_last_resort = self.options.stable || self.options.unique;
        if !unused.is_default() || unused.reverse && no_last_resort && any_keys {
            let letters = Modifiers { reverse: unused.reverse && no_last_resort, ..unused }.all_letters();
            let (options, are) = if letters.len() == 1 { ("option", "is") } else { ("options", "are") };
            self.said.push(format!("{options} '-{letters}' {are} ignored"));
        }
        if unused.reverse && !no_last_resort && any_keys {
            self.said.push("option '-r' only applies to last-resort comparison".into());
        }
    }
}

/// Takes away the letters that a key uses.
fn without(unused: &mut Modifiers, used: &Modifiers) {
    if unused.ignore == used.ignore {
        unused.ignore = Ignore::Nothing;
    }
    for (letter, taken) in [
        (&mut unused.skip_start_blanks, used.skip_start_blanks),
        (&mut unused.skip_end_blanks, used.skip_end_blanks),
        (&mut unused.fold_case, used.fold_case),
        (&mut unused.general, used.general),
        (&mut unused.human, used.human),
        (&mut unused.month, used.month),
        (&mut unused.numeric, used.numeric),
        (&mut unused.random, used.random),
        (&mut unused.reverse, used.reverse),
        (&mut unused.version, used.version),
    ] {
        *letter &= !taken;
    }
}
