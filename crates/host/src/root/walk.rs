//! Resolves a path component by component, like the kernel, within one tree: an absolute link starts at the
//! root of the tree, and `..` does not leave it.
//!
//! Input: a path and a function that returns the kind of entry at a path without links. Output: the path
//! without links, or an error.

use super::fault::{Fault, MAX_LINKS};
use super::files::Look;
use rustix::io::Errno;
use std::collections::VecDeque;

/// Maximum path length, in bytes (`PATH_MAX` in include/uapi/linux/limits.h).
pub(super) const MAX_PATH: usize = 4096;

/// Maximum number of components followed for one path, including those of links: links in an archive may be
/// crafted to take long. The deepest device of a real machine has some 30.
const MAX_STEPS: usize = 1024;

/// Resolves `path`; `look` is called for each component with the path so far (`/sys/class`) and returns the
/// kind of entry. The last component is checked only if `follow_last`.
pub(super) fn walk(
    path: &str,
    follow_last: bool,
    mut look: impl FnMut(&str) -> Result<Look, Fault>,
) -> Result<String, Fault> {
    if path.len() > MAX_PATH {
        return Err(Errno::NAMETOOLONG.into());
    }
    let mut rest: VecDeque<String> = components(path).collect();
    let mut done = String::new();
    let (mut links, mut steps) = (0, 0);
    while let Some(component) = rest.pop_front() {
        steps += 1;
        if steps > MAX_STEPS {
            return Err(Errno::LOOP.into());
        }
        if component == ".." {
            done.truncate(done.rfind('/').unwrap_or(0));
            continue;
        }
        let parent = done.len();
        done.push('/');
        done.push_str(&component);
        if done.len() > MAX_PATH {
            return Err(Errno::NAMETOOLONG.into());
        }
        if rest.is_empty() && !follow_last {
            break;
        }
        match look(&done) {
            Ok(Look::Dir | Look::File) => {}
            Ok(Look::Link(target)) => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::LOOP.into());
                }
                if target.len() > MAX_PATH {
                    return Err(Errno::NAMETOOLONG.into());
                }
                done.truncate(if target.starts_with('/') { 0 } else { parent });
                let target: Vec<String> = components(&target).collect();
                for component in target.into_iter().rev() {
                    rest.push_front(component);
                }
            }
            Err(fault) => return Err(fault),
        }
    }
    if done.is_empty() {
        done.push('/');
    }
    Ok(done)
}

fn components(path: &str) -> impl Iterator<Item = String> {
    path.split('/').filter(|c| !c.is_empty() && *c != ".").map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(path: &str) -> Result<String, String> {
        walk(path, true, |at| match at {
            "/sys/class/net/eth0" => Ok(Look::Link("../../devices/pci0/net/eth0".to_owned())),
            "/sys/out" => Ok(Look::Link("../../../../etc/passwd".to_owned())),
            "/sys/absolute" => Ok(Look::Link("/proc/self".to_owned())),
            "/sys/a" => Ok(Look::Link("b".to_owned())),
            "/sys/b" => Ok(Look::Link("a".to_owned())),
            "/sys/none" => Err(Errno::NOENT.into()),
            _ => Ok(Look::Dir),
        })
        .map_err(|fault| fault.reason.into_owned())
    }

    #[test]
    fn links_are_resolved_inside() {
        for (path, expected) in [
            ("/sys/class/net/eth0/mtu", Ok("/sys/devices/pci0/net/eth0/mtu")),
            ("/sys/class/net/eth0/..", Ok("/sys/devices/pci0/net")),
            ("sys//./class/", Ok("/sys/class")),
            ("/../../sys", Ok("/sys")),
            ("/", Ok("/")),
            ("/sys/out", Ok("/etc/passwd")),
            ("/sys/absolute/stat", Ok("/proc/self/stat")),
            ("/sys/a/x", Err("symbolic link loop")),
            ("/sys/none/x", Err("not found")),
        ] {
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(resolved(path), expected, "{path}");
        }
    }

    #[test]
    fn the_last_link_can_be_kept() {
        let kept = walk("/x/l", false, |_| Ok(Look::Dir)).unwrap();
        assert_eq!(kept, "/x/l");
    }
}
