//! The tests that read nothing but the repository: the rules of the house, the links of the pages, the lists of
//! traps. They are modules of the command line's tests; here they are built without the binary, for `make quick`.
#![allow(clippy::unwrap_used)]

#[path = "../../lapsed-cli/tests/all/house.rs"]
mod house;
#[path = "../../lapsed-cli/tests/all/pages.rs"]
mod pages;
#[path = "../../lapsed-cli/tests/all/traps.rs"]
mod traps;
