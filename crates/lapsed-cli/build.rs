//! Has the linker fold identical functions in release builds, which makes the binary smaller:
//! docs/decisions/0014-size-of-the-binary.md has the figures. Not every linker can do that, so an empty program
//! is linked first; without the option the binary is larger and works the same.

use std::path::Path;
use std::process::{Command, Stdio};
use std::{env, fs, io};

const FOLD: &str = "-Wl,--icf=all";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if is_release && links_with(FOLD).unwrap_or(false) {
        println!("cargo::rustc-link-arg-bins={FOLD}");
    }
}

/// Whether an empty program links with `argument`, by the linker and with the flags of this build.
fn links_with(argument: &str) -> io::Result<bool> {
    let variable = |name: &str| env::var(name).map_err(io::Error::other);
    let folder = variable("OUT_DIR")?;
    let source = Path::new(&folder).join("empty.rs");
    fs::write(&source, "fn main() {}")?;
    let mut rustc = Command::new(variable("RUSTC")?);
    rustc.arg(&source).args(["--out-dir", &folder, "--target", &variable("TARGET")?]);
    rustc.arg(format!("-Clink-arg={argument}"));
    if let Ok(linker) = variable("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    let flags = variable("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    rustc.args(flags.split('\u{1f}').filter(|flag| !flag.is_empty()));
    let tried = rustc.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    Ok(tried.success())
}
