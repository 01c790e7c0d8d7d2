//! The dashboard in a real browser. A program of its own: a browser takes more of the machine than
//! all other stories together, and only a few of them should run at a time.
#![allow(clippy::unwrap_used)]

mod acting;
mod entering;
mod following;
mod page;
mod reading;
mod screenshots;
#[path = "../all/support/mod.rs"]
mod support;
