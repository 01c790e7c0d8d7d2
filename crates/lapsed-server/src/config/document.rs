//! The configuration file as text: expands `${ENV}` in every string, and reports errors with their
//! line and the nearest valid word.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::{ConfigError, Env};

/// The text of one configuration file, and its name in errors.
#[derive(Clone, Debug)]
pub struct Document {
    name: String,
    text: String,
}

/// One value of a document, with everything below it.
pub type TomlNode<'d> = Spanned<DeValue<'d>>;

impl Document {
    /// A document that errors call `name`.
    pub fn new(name: &str, text: String) -> Self {
        Document { name: name.to_owned(), text }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn parse(&self, env: &Env<'_>) -> Result<DeTable<'_>, ConfigError> {
        let table =
            DeTable::parse(&self.text).map_err(|e| self.wrong(e.span(), "", e.message()))?;
        let mut table = table.into_inner();
        self.expand_table(&mut table, "", env)?;
        Ok(table)
    }

    /// Deserializes one value as a section; `path` is its path in the file.
    pub fn read<T: DeserializeOwned>(
        &self,
        path: &str,
        value: &TomlNode<'_>,
    ) -> Result<T, ConfigError> {
        T::deserialize(ValueDeserializer::from(value.clone())).map_err(|error| {
            let span = error.span().unwrap_or_else(|| value.span());
            let mut key = path.to_owned();
            if let Some(below) = path_at(value.get_ref(), span.start) {
                key = join(path, &below);
            }
            self.wrong(Some(span), &key, &suggest(error.message()))
        })
    }

    /// An error about the value at `span`, with its line.
    pub fn wrong(&self, span: Option<Range<usize>>, key: &str, what: &str) -> ConfigError {
        let line = span.map_or(String::new(), |span| format!(":{}", self.line(span.start)));
        let key = if key.is_empty() { String::new() } else { format!("`{key}`: ") };
        ConfigError(format!("{}{line}: {key}{what}", self.name))
    }

    /// The line number of the byte at `offset`, counted from 1.
    pub fn line(&self, offset: usize) -> usize {
        self.text.bytes().take(offset).filter(|b| *b == b'\n').count() + 1
    }

    fn expand_table(
        &self,
        table: &mut DeTable<'_>,
        path: &str,
        env: &Env<'_>,
    ) -> Result<(), ConfigError> {
        for (key, value) in table.iter_mut() {
            self.expand(value, &join(path, key.get_ref()), env)?;
        }
        Ok(())
    }

    fn expand(
        &self,
        value: &mut TomlNode<'_>,
        path: &str,
        env: &Env<'_>,
    ) -> Result<(), ConfigError> {
        let span = value.span();
        match value.get_mut() {
            DeValue::String(text) if text.contains("${") => {
                let expanded = expand(text, env).map_err(|e| self.wrong(Some(span), path, &e))?;
                *text = Cow::Owned(expanded);
            }
            DeValue::Array(values) => {
                for value in values.iter_mut() {
                    self.expand(value, path, env)?;
                }
            }
            DeValue::Table(table) => self.expand_table(table, path, env)?,
            _ => {}
        }
        Ok(())
    }
}

/// Joins a path and a key: `a` and `b` become `a.b`.
pub fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// Replaces `${NAME}` and `${NAME:-default}` by the values of environment variables.
fn expand(text: &str, env: &Env<'_>) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        out.push_str(&rest[..start]);
        let inside = &rest[start + 2..];
        let end = inside.find('}').ok_or("`${` without a closing `}`")?;
        let (name, default) = match inside[..end].split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (&inside[..end], None),
        };
        match (env(name), default) {
            (Some(value), _) if !(value.is_empty() && default.is_some()) => out.push_str(&value),
            (_, Some(default)) => out.push_str(default),
            _ => {
                return Err(format!(
                    "the environment variable {name} is not set; set it, or give a default \
                     with ${{{name}:-...}}"
                ));
            }
        }
        rest = &inside[end + 1..];
    }
    out.push_str(rest);
    Ok(out)
}

/// The path of the key or value that contains the byte at `offset`.
fn path_at(value: &DeValue<'_>, offset: usize) -> Option<String> {
    let DeValue::Table(table) = value else { return None };
    for (key, below) in table {
        let name = key.get_ref();
        if let Some(path) = path_at(below.get_ref(), offset) {
            return Some(join(name, &path));
        }
        let is_table = matches!(below.get_ref(), DeValue::Table(_));
        if key.span().contains(&offset) || (!is_table && below.span().contains(&offset)) {
            return Some(name.to_string());
        }
    }
    None
}

/// The lines of all keys below `value`, by their paths.
pub fn lines_below(document: &Document, value: &TomlNode<'_>) -> BTreeMap<String, usize> {
    let mut lines = BTreeMap::new();
    collect_lines(document, value.get_ref(), "", &mut lines);
    lines
}

/// All strings below `value`, each with its path; paths begin with `path`.
pub fn texts_below(value: &TomlNode<'_>, path: &str) -> Vec<(String, String)> {
    match value.get_ref() {
        DeValue::String(text) => vec![(path.to_owned(), text.to_string())],
        DeValue::Table(table) => table
            .iter()
            .flat_map(|(key, below)| texts_below(below, &join(path, key.get_ref())))
            .collect(),
        _ => Vec::new(),
    }
}

fn collect_lines(
    document: &Document,
    value: &DeValue<'_>,
    path: &str,
    lines: &mut BTreeMap<String, usize>,
) {
    let DeValue::Table(table) = value else { return };
    for (key, below) in table {
        let path = join(path, key.get_ref());
        lines.insert(path.clone(), document.line(key.span().start));
        collect_lines(document, below.get_ref(), &path, lines);
    }
}

/// Replaces serde's message about an unknown key or value by one that names the nearest valid word.
fn suggest(message: &str) -> String {
    let what = match message {
        m if m.starts_with("unknown field") => "key",
        m if m.starts_with("unknown variant") => "value",
        _ => return message.to_owned(),
    };
    let words: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let Some((given, valid)) = words.split_first() else { return message.to_owned() };
    unknown(what, given, valid)
}

/// The message about an unknown word: names the nearest valid word and all valid ones.
pub fn unknown(what: &str, given: &str, valid: &[&str]) -> String {
    let near =
        |word: &&&str| (strsim::damerau_levenshtein(given, word) * 1000) - common(given, word);
    match valid.iter().min_by_key(near) {
        Some(nearest) => format!(
            "unknown {what} `{given}`; the nearest valid one is `{nearest}` (valid here: {})",
            valid.join(", ")
        ),
        None => format!("unknown {what} `{given}`; nothing is valid here"),
    }
}

/// Breaks ties between equally near words: how alike their beginnings are, from 0 to 999.
fn common(a: &str, b: &str) -> usize {
    ((strsim::jaro_winkler(a, b) * 999.0) as usize).min(strsim::damerau_levenshtein(a, b) * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_expanded_and_missing_ones_named() {
        let env = |name: &str| (name == "A").then(|| "x".to_owned());
        assert_eq!(expand("${A}-${A}", &env), Ok("x-x".to_owned()));
        assert_eq!(expand("${B:-dflt}!", &env), Ok("dflt!".to_owned()));
        assert!(expand("${B}", &env).unwrap_err().contains("B"));
        assert!(expand("${A", &env).is_err());
    }

    #[test]
    fn the_nearest_key_is_named() {
        let text = unknown("key", "evry", &["every", "jitter", "batch"]);
        assert!(text.contains("`evry`") && text.contains("nearest valid one is `every`"), "{text}");
    }
}
