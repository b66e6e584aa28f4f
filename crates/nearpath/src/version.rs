//! The version and build information of the binary, as printed by `nearpath --version`.

use std::sync::OnceLock;

/// The version number only.
pub const NUMBER: &str = env!("CARGO_PKG_VERSION");

/// The version, and build information, one line each.
pub fn long() -> &'static str {
    static LONG: OnceLock<String> = OnceLock::new();
    LONG.get_or_init(text)
}

fn text() -> String {
    let linked = if cfg!(target_feature = "crt-static") { "static" } else { "dynamic" };
    format!(
        "{NUMBER}\n\
         commit:   {}\n\
         date:     {}\n\
         target:   {}, {linked}\n\
         profile:  {}\n\
         libbpf:   {}",
        env!("NEARPATH_COMMIT"),
        env!("NEARPATH_DATE"),
        env!("NEARPATH_TARGET"),
        env!("NEARPATH_PROFILE"),
        nearpath_instruments::libbpf_version(),
    )
}
