//! Compiles the Rust in the pages of the repository, as doc tests.

#[doc = include_str!("../../../README.md")]
struct Readme;

#[doc = include_str!("../../../docs/inflight.md")]
struct InflightPage;
