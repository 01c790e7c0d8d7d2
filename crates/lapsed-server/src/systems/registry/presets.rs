//! The configurations that `lapsed init` writes for `registry`.

use crate::systems::Preset;

pub const PRESETS: &[Preset] = &[Preset {
    name: "registry",
    order: 1,
    help: "Connections, and the instance that holds each",
    about: "connections, and the instance that holds each",
    templates: &[
        ("redis", include_str!("presets/registry-redis.toml")),
        ("embedded", include_str!("presets/registry-embedded.toml")),
    ],
    mirrored_on: None,
}];
