//! What a file says of modules: which it declares, what it imports, which paths it names. What is
//! compiled for tests alone is left out.

use std::collections::{BTreeMap, BTreeSet};

use crate::tokens::Token;

/// One name that a `use` brings in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Import {
    pub(crate) path: Vec<String>,
    /// By which name; `*` for all of a module.
    pub(crate) name: String,
    /// Others may import it from here.
    pub(crate) is_public: bool,
}

/// A module, as its text has it.
#[derive(Debug, Default)]
pub(crate) struct Module {
    /// Modules in files of their own.
    pub(crate) declared: Vec<String>,
    /// Modules whose text stands here.
    pub(crate) inline: BTreeMap<String, Module>,
    pub(crate) imports: Vec<Import>,
    /// Paths in the code, of two names at least.
    pub(crate) paths: Vec<Vec<String>>,
    /// Words of the code outside imports.
    pub(crate) words: BTreeSet<String>,
    /// What is defined here.
    pub(crate) items: BTreeSet<String>,
}

/// Words that begin an item, which ends with a semicolon or a block.
const ITEMS: [&str; 15] = [
    "mod",
    "fn",
    "impl",
    "struct",
    "enum",
    "union",
    "trait",
    "unsafe",
    "const",
    "static",
    "type",
    "use",
    "async",
    "extern",
    "macro_rules",
];
/// Those of them after which a name is defined.
const DEFINING: [&str; 9] = ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "mod"];

/// Reads a module until its closing brace, or the end of the file.
pub(crate) fn module(tokens: &[Token], at: &mut usize) -> Module {
    let mut own = Module::default();
    let (mut depth, mut is_public) = (0, false);
    while let Some(token) = tokens.get(*at) {
        *at += 1;
        let was_public = std::mem::take(&mut is_public);
        match token {
            Token::Sign('{') => depth += 1,
            Token::Sign('}') if depth == 0 => break,
            Token::Sign('}') => depth -= 1,
            Token::Sign('#') => skip_if_for_tests(tokens, at),
            Token::Word(word) => match word.as_str() {
                "mod" => module_of(&mut own, tokens, at),
                "use" if !tokens.get(*at).is_some_and(|next| next.is_sign('<')) => {
                    import(&mut own.imports, Vec::new(), was_public, tokens, at);
                }
                "pub" => {
                    is_public = true;
                    skip_where(tokens, at);
                }
                _ => code_word(&mut own, word, tokens, at),
            },
            _ => {}
        }
    }
    own
}

/// A word of the code, with the path that it may begin.
fn code_word(own: &mut Module, word: &str, tokens: &[Token], at: &mut usize) {
    own.words.insert(word.to_owned());
    if DEFINING.contains(&word)
        && let Some(name) = tokens.get(*at).and_then(Token::word)
    {
        own.items.insert(name.to_owned());
    }
    let mut path = vec![word.to_owned()];
    while let Some([Token::Separator, Token::Word(next)]) = tokens.get(*at..*at + 2) {
        path.push(next.clone());
        own.words.insert(next.clone());
        *at += 2;
    }
    if path.len() > 1 {
        own.paths.push(path);
    }
}

/// `mod name;` or `mod name { ... }`, behind its first word.
fn module_of(own: &mut Module, tokens: &[Token], at: &mut usize) {
    let Some(name) = tokens.get(*at).and_then(Token::word) else { return };
    *at += 2;
    match tokens.get(*at - 1) {
        Some(Token::Sign(';')) => own.declared.push(name.to_owned()),
        Some(Token::Sign('{')) => _ = own.inline.insert(name.to_owned(), module(tokens, at)),
        _ => {}
    }
}

/// Goes behind the `(in a::module)` of a visibility, which is no use of that module.
fn skip_where(tokens: &[Token], at: &mut usize) {
    let [Some(Token::Sign('(')), Some(Token::Word(first))] = [tokens.get(*at), tokens.get(*at + 1)] else { return };
    if ["crate", "self", "super", "in"].contains(&first.as_str()) {
        let closes = tokens[*at..].iter().position(|token| token.is_sign(')'));
        *at += closes.map_or(0, |len| len + 1);
    }
}

/// A tree of imports, behind `use` or behind a part of the path that all of it has.
fn import(found: &mut Vec<Import>, mut path: Vec<String>, is_public: bool, tokens: &[Token], at: &mut usize) {
    let mut name = None;
    while let Some(token) = tokens.get(*at) {
        *at += 1;
        match token {
            Token::Word(word) if word == "as" => {
                name = tokens.get(*at).and_then(Token::word).map(str::to_owned);
                *at += 1;
            }
            Token::Word(word) => path.push(word.clone()),
            Token::Sign('*') => name = Some("*".to_owned()),
            Token::Sign('{') => {
                while tokens.get(*at).is_some_and(|next| !next.is_sign('}')) {
                    import(found, path.clone(), is_public, tokens, at);
                    if tokens.get(*at).is_some_and(|next| next.is_sign(',')) {
                        *at += 1;
                    }
                }
                *at += 1;
                return;
            }
            Token::Separator => {}
            Token::Sign(_) => {
                *at -= 1;
                break;
            }
        }
    }
    // `{self}` is the module itself.
    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    let name = name.or_else(|| path.last().cloned()).unwrap_or_default();
    found.push(Import { path, name, is_public });
}

/// The tokens of an attribute, behind its `#`.
fn attribute<'a>(tokens: &'a [Token], at: &mut usize) -> &'a [Token] {
    let from = *at;
    let mut depth = 0;
    while let Some(token) = tokens.get(*at) {
        *at += 1;
        match token {
            Token::Sign('[') => depth += 1,
            Token::Sign(']') => depth -= 1,
            Token::Sign('!') if depth == 0 => continue,
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    &tokens[from..*at]
}

/// Goes behind an attribute, and behind what has it where that is compiled for tests alone.
fn skip_if_for_tests(tokens: &[Token], at: &mut usize) {
    if is_for_tests(attribute(tokens, at)) {
        skip_item(tokens, at);
    }
}

/// Whether what has the attribute is compiled for tests alone.
fn is_for_tests(attribute: &[Token]) -> bool {
    let words: Vec<&str> = attribute.iter().filter_map(Token::word).collect();
    let denied = attribute.windows(3).any(|three| three[0].is("not") && three[2].is("test"));
    words == ["test"] || words.first() == Some(&"cfg") && words.contains(&"test") && !words.contains(&"any") && !denied
}

/// Goes behind the item, the field or the statement that begins here.
fn skip_item(tokens: &[Token], at: &mut usize) {
    while tokens.get(*at).is_some_and(|token| token.is_sign('#')) {
        *at += 1;
        attribute(tokens, at);
    }
    let mut begin = *at;
    while tokens.get(begin).is_some_and(|t| t.is("pub") || t.is_sign('(') || t.is("crate") || t.is_sign(')')) {
        begin += 1;
    }
    let is_item = tokens.get(begin).and_then(Token::word).is_some_and(|word| ITEMS.contains(&word));
    let is_import = tokens.get(begin).is_some_and(|token| token.is("use"));
    let mut depth = 0;
    while let Some(token) = tokens.get(*at) {
        match token {
            Token::Sign('(' | '[' | '{') => depth += 1,
            Token::Sign('}') if depth == 0 => return,
            Token::Sign(')' | ']') => depth -= 1,
            Token::Sign('}') => {
                depth -= 1;
                if depth == 0 && is_item && !is_import {
                    *at += 1;
                    return;
                }
            }
            Token::Sign(';') if depth == 0 => {
                *at += 1;
                return;
            }
            Token::Sign(',') if depth == 0 && !is_item => return,
            _ => {}
        }
        *at += 1;
    }
}
