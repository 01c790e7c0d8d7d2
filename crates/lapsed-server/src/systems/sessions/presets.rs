//! The configurations that `lapsed init` writes for `sessions`.

use crate::systems::Preset;

pub const PRESETS: &[Preset] = &[Preset {
    name: "chatpulse",
    order: 2,
    help: "Chat sessions with a reference count and a grace",
    about: "chat sessions, kept for a grace after the last one left",
    templates: &[
        ("redis", include_str!("presets/chatpulse-redis.toml")),
        ("embedded", include_str!("presets/chatpulse-embedded.toml")),
    ],
    mirrored_on: None,
}];
