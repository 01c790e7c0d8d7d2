//! Every page with Rust in it is compiled: `src/documents.rs` includes it.

use std::path::{Path, PathBuf};

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.filter(|path| path.extension().is_some_and(|ext| ext == "md"));
    pages.chain([root.join("README.md")]).collect()
}

#[test]
fn every_page_with_rust_is_compiled_and_none_of_it_is_ignored() {
    let included = include_str!("../../src/documents.rs");
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        let name = page.file_name().unwrap().to_str().unwrap();
        let ignored = text.contains("```rust,ignore") || text.contains("```ignore");
        assert!(!ignored, "{name} has Rust that is not compiled");
        let is_included = included.contains(&format!("/{name}\")"));
        assert!(!text.contains("```rust") || is_included, "{name} is not in src/documents.rs");
    }
}
