//! lapsed on object stores.
