//! The configurations that `lapsed init` writes for `availability`.

use crate::systems::Preset;

pub const PRESETS: &[Preset] = &[Preset {
    name: "mitra",
    order: 3,
    help: "Providers: who can take work now",
    about: "providers: who can take work now",
    templates: &[
        ("postgres", include_str!("presets/mitra-postgres.toml")),
        ("embedded", include_str!("presets/mitra-embedded.toml")),
    ],
    mirrored_on: Some("postgres"),
}];
