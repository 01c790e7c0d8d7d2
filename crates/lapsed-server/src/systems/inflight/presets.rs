//! The configurations that `lapsed init` writes for `inflight`.

use crate::systems::Preset;

pub const PRESETS: &[Preset] = &[Preset {
    name: "sidekiq-async-http",
    order: 5,
    help: "Jobs in flight, as the gem has them",
    about: "HTTP requests of Sidekiq jobs, put back when their process died",
    templates: &[
        ("redis", include_str!("presets/sidekiq-redis.toml")),
        ("embedded", include_str!("presets/sidekiq-embedded.toml")),
    ],
    mirrored_on: None,
}];
