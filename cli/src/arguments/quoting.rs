//! Names of files in messages, as GNU programs show them in the C locale: a shell reads back what
//! is shown.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The name as it is where a shell, and the colon behind it, leave no doubt; otherwise in quotes.
pub(crate) fn where_needed(name: impl AsRef<Path>) -> String {
    let bytes = name.as_ref().as_os_str().as_bytes();
    let special = |(at, byte): (usize, &u8)| match byte {
        b'#' | b'~' => at == 0,
        b'{' | b'}' => bytes.len() == 1,
        byte => !(b' '..=b'~').contains(byte) || b" !\"$&'()*:;<=>?[\\^`|".contains(byte),
    };
    if !bytes.is_empty() && !bytes.iter().enumerate().any(special) {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    always(name)
}

/// The name in quotes.
pub(crate) fn always(name: impl AsRef<Path>) -> String {
    let bytes = name.as_ref().as_os_str().as_bytes();
    if bytes.contains(&b'\'') && bytes.iter().enumerate().all(|(at, byte)| is_plain_in_double_quotes(bytes, at, *byte))
    {
        return format!("\"{}\"", String::from_utf8_lossy(bytes));
    }
    let mut quoted = String::from("'");
    // Whether the bytes before were escapes: they stand in $'...'.
    let mut escaped = false;
    for &byte in bytes {
        if byte == b'\'' {
            quoted += "'\\''";
            escaped = false;
            continue;
        }
        let prints = (b' '..=b'~').contains(&byte);
        if prints == escaped {
            quoted += if prints { "''" } else { "'$'" };
            escaped = !prints;
        }
        match byte {
            _ if prints => quoted.push(char::from(byte)),
            7..=13 => quoted.extend(['\\', char::from(b"abtnvfr"[usize::from(byte - 7)])]),
            _ => quoted += &format!("\\{byte:03o}"),
        }
    }
    quoted + "'"
}

fn is_plain_in_double_quotes(name: &[u8], at: usize, byte: u8) -> bool {
    match byte {
        b'#' | b'~' => at == 0,
        b'{' | b'}' => name.len() == 1,
        byte => byte == b' ' || byte == b'\'' || byte.is_ascii_alphanumeric() || b"%+,-./:@]_".contains(&byte),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use datapipes_testkit::{GnuSort, Random};

    use super::*;

    fn both(name: &[u8]) -> (String, String) {
        let name = OsStr::from_bytes(name);
        (where_needed(name), always(name))
    }

    #[test]
    fn names() {
        for (name, shown, quoted) in [
            (&b"plain-1.txt"[..], "plain-1.txt", "'plain-1.txt'"),
            (b"", "''", "''"),
            (b"a b", "'a b'", "'a b'"),
            (b"a:b", "'a:b'", "'a:b'"),
            (b"#a", "'#a'", "'#a'"),
            (b"a#", "a#", "'a#'"),
            (b"{", "'{'", "'{'"),
            (b"{}", "{}", "'{}'"),
            (b"it's", "\"it's\"", "\"it's\""),
            (b"it's $1", "'it'\\''s $1'", "'it'\\''s $1'"),
            (b"a\nb", "'a'$'\\n''b'", "'a'$'\\n''b'"),
            (b"\xe9\x01", "''$'\\351\\001'", "''$'\\351\\001'"),
            (b"\n'\n", "''$'\\n'\\'''$'\\n'", "''$'\\n'\\'''$'\\n'"),
            (b"\\", "'\\'", "'\\'"),
        ] {
            assert_eq!(both(name), (shown.to_owned(), quoted.to_owned()), "{}", name.escape_ascii());
        }
    }

    /// The system's sort shows names in both ways: where it cannot read one, and where it is one
    /// too many.
    #[test]
    fn as_the_system_sort_shows_them() {
        let Some(gnu) = GnuSort::find("as_the_system_sort_shows_them") else { return };
        let alphabet = b"ab #~{}'\"$`!@?*\\:=\n\t\x01\x7f\xc3\xa9-+%]";
        let seed = datapipes_testkit::seed(1);
        let random = &mut Random(seed);
        for _ in 0..300 {
            let name: Vec<u8> = (0..1 + random.below(6)).map(|_| alphabet[random.below(alphabet.len())]).collect();
            let (shown, quoted) = both(&name);
            let name = OsStr::from_bytes(&name);
            // 9.1 begins a name with both apostrophes and escapes by two quotes too many.
            let both_kinds = name.as_bytes().contains(&b'\'') && shown.contains("'$'");
            if name == "-" || gnu.is_9_1() && both_kinds {
                continue;
            }
            let said = |arguments: &[&OsStr]| {
                let output = gnu.command().args(arguments).current_dir("/sys").output();
                String::from_utf8_lossy(&output.unwrap().stderr).into_owned()
            };
            let text = said(&["--".as_ref(), name]);
            assert!(text.contains(&format!("cannot read: {shown}: ")), "seed {seed}: {name:?}: {shown}: {text}");
            let text = said(&["-c".as_ref(), "--".as_ref(), "x".as_ref(), name]);
            assert!(
                text.contains(&format!("extra operand {quoted} not allowed")),
                "seed {seed}: {name:?}: {quoted}: {text}"
            );
        }
    }
}
