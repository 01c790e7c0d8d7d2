//! Compiles the Rust in the pages of the repository.
