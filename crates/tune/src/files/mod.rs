//! Settings in files of `/sys` and `/proc`, as they are read and written on a machine. Which there are is
//! the table of [`nearpath_model::TABLE`].

mod all;
mod tree;

pub use all::settings;
pub(crate) use all::settings_of;
pub(crate) use tree::Files;
