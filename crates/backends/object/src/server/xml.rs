//! XML of servers, by the reader that the protocols' library has too. What is looked for in the
//! text itself would be found in comments, and missed in other ways to write the same.

use quick_xml::Reader;
use quick_xml::escape::unescape;
use quick_xml::events::Event;

/// The name of the root of a whole document, without its namespace: all elements are closed, and
/// nothing but space, comments and instructions is around it.
///
/// # Errors
/// Why it is none, in words without its text.
pub(crate) fn root(xml: &str) -> Result<String, &'static str> {
    let mut reader = Reader::from_str(xml.trim_start_matches('\u{feff}'));
    let mut found: Option<String> = None;
    let mut depth = 0u64;
    loop {
        let event = reader.read_event().map_err(|_| "it is no XML")?;
        let is_outside = depth == 0;
        match event {
            Event::Start(element) | Event::Empty(element) if is_outside && found.is_some() => {
                let _ = element;
                return Err("something follows its end");
            }
            Event::Start(element) => {
                if is_outside {
                    found = Some(String::from_utf8_lossy(element.local_name().as_ref()).into_owned());
                }
                depth = depth.saturating_add(1);
            }
            Event::Empty(element) if is_outside => {
                found = Some(String::from_utf8_lossy(element.local_name().as_ref()).into_owned());
            }
            Event::End(_) => depth = depth.saturating_sub(1),
            Event::Text(text) if is_outside && !text.iter().all(u8::is_ascii_whitespace) => {
                return Err("it has text outside of its elements");
            }
            Event::CData(_) | Event::GeneralRef(_) if is_outside => return Err("it has text outside of its elements"),
            Event::Eof if !is_outside => return Err("it ends early"),
            Event::Eof => return found.ok_or("it has no elements"),
            _ => {}
        }
    }
}

/// The text of the first element of this name, whatever its namespace, with what stands for other
/// characters in their place.
pub(crate) fn text_of(xml: &str, name: &str) -> Option<String> {
    let mut reader = Reader::from_str(xml);
    // Inside the element: how deep below it, and its text so far.
    let mut within: Option<(u64, String)> = None;
    loop {
        match (reader.read_event().ok()?, &mut within) {
            (Event::Start(_), Some((depth, _))) => *depth = depth.saturating_add(1),
            (Event::Start(element), None) if element.local_name().as_ref() == name.as_bytes() => {
                within = Some((0, String::new()));
            }
            (Event::End(_), Some((0, _))) => return within.map(|(_, text)| text),
            (Event::End(_), Some((depth, _))) => *depth = depth.saturating_sub(1),
            (Event::Text(text), Some((0, all))) => all.push_str(&text.decode().ok()?),
            (Event::CData(text), Some((0, all))) => all.push_str(&text.decode().ok()?),
            (Event::GeneralRef(reference), Some((0, all))) => {
                let written = format!("&{};", reference.decode().ok()?);
                all.push_str(&unescape(&written).ok()?);
            }
            (Event::Eof, _) => return None,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_document_has_one_root() {
        for whole in
            ["<L/>", "<?xml version=\"1.0\"?>\n<!-- c --><s:L xmlns:s='u'><a/></s:L>\n<!-- d -->", "\u{feff}<L></L>"]
        {
            assert_eq!(root(whole).as_deref(), Ok("L"), "{whole}");
        }
        for odd in
            ["", "{}", "<L>", "<L></M>", "<L/><L/>", "<L></L>x", "x<L/>", "<L/>&amp;", "<L/><![CDATA[x]]>", "</L>"]
        {
            assert!(root(odd).is_err(), "{odd}");
        }
        assert_eq!(root("<!DOCTYPE html><html><body>Log in</body></html>").as_deref(), Ok("html"));
    }

    #[test]
    fn text_is_that_of_the_element_however_it_is_written() {
        for xml in [
            "<E><Code>a&lt;b</Code></E>",
            "<E><!--<Code>no</Code>--><s:Code x='1'>a<![CDATA[<]]>b</s:Code ></E>",
            "<E><Code>a&#60;&#x62;<x>no</x></Code><Code>no</Code>",
        ] {
            assert_eq!(text_of(xml, "Code").as_deref(), Some("a<b"), "{xml}");
        }
        for xml in ["", "<E><Code>a", "<Code/>", "</Code><Code>", "<E><Code>&nothing;</Code></E>"] {
            assert_eq!(text_of(xml, "Code"), None, "{xml}");
        }
    }
}
