//! lapsed on object stores.
#![allow(dead_code)]
mod clock;
mod config;
mod http;
mod names;
mod objects;
mod requests;
