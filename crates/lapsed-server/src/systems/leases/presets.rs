//! The configurations that `lapsed init` writes for `leases`.

use crate::systems::Preset;

pub const PRESETS: &[Preset] = &[Preset {
    name: "leases",
    order: 4,
    help: "Leases and transaction decisions",
    about: "leases on keys, and transaction decisions, in lapsed's own format",
    templates: &[
        ("object", include_str!("presets/leases-object.toml")),
        ("embedded", include_str!("presets/leases-embedded.toml")),
    ],
    mirrored_on: None,
}];

/// Names that presets had before, with what to say to a user who types one.
pub const FORMER: &[(&str, &str)] = &[(
    "lockd",
    "`lockd` is called `leases` now, because it is not lockd's format: lapsed's records lie under the \
     paths that lockd's design describes, but neither program can read the other's records. Use \
     `--preset leases`, with a bucket or prefix that lockd does not use",
)];
