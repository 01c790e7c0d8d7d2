//! What the server uses of opened stores. The table of stores is `lapsed::stores`.

use lapsed_redis::Template;

pub use lapsed::stores::OpenStore;
pub use lapsed::stores::object::OpenObject;

/// Parses `text`, the name of a Redis key that must contain `{place}`. `key` is the configuration
/// key that the error message names.
pub fn template(key: &str, text: &str, place: &str) -> lapsed_core::Result<Template> {
    let wrong = || lapsed_core::Error::Invalid(format!("`{key}` must contain `{{{place}}}`"));
    Template::new(text, place).ok_or_else(wrong)
}
