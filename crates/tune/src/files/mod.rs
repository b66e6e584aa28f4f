//! Settings in files of `/sys` and `/proc`, as read and written on a host. The list is [`nearpath_model::TABLE`].

mod all;
mod interfaces;
mod offline;
mod tree;

pub use all::settings;
pub(crate) use all::settings_of;
pub(crate) use interfaces::is_device;
pub(crate) use tree::Files;
