//! What the server uses of opened stores. The table of stores is `lapsed::stores`.

use lapsed_redis::Template;

use crate::config::ConfigError;
use crate::config::common::{Section, plan_key};
use crate::config::origin::Settings;

pub use lapsed::stores::OpenStore;
pub use lapsed::stores::object::OpenObject;

/// The names of the Redis keys that the application writes; `place` stands for an entry's name. Each must
/// contain it.
pub fn plan_template(
    section: &Section<'_>,
    key: &str,
    given: Option<String>,
    (usual, place): (&Template, &str),
    settings: &mut Settings,
) -> Result<Template, ConfigError> {
    let placeholder = format!("{{{place}}}");
    let usual = usual.of(&placeholder);
    let text = plan_key(section, key, given, &usual, Some(&placeholder), settings)?;
    Ok(Template::new(&text, place).expect("the name was found to contain it"))
}
