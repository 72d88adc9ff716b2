//! A setting of a knob, from the command line.

/// Parses `KNOB=VALUE`.
pub(crate) fn parse_setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("`{text}`: write KNOB=VALUE"))?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}
