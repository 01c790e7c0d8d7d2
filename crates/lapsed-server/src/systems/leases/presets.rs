//! The configurations that `lapsed init` writes for `leases`.

use crate::systems::Preset;

pub const PRESETS: &[Preset] = &[Preset {
    name: "lockd",
    order: 4,
    help: "Leases and transaction decisions",
    about: "leases on keys, and transaction decisions",
    templates: &[
        ("object", include_str!("presets/lockd-object.toml")),
        ("embedded", include_str!("presets/lockd-embedded.toml")),
    ],
    mirrored_on: None,
}];
