//! Resolves a path component by component, as the kernel does, within one tree: an absolute link
//! starts at the tree's top, and `..` does not leave it.
//!
//! In goes a path and a function that tells what stands at a path without links; out comes the
//! path without links, or how far it went and why no further.

use super::fault::{Fault, MAX_LINKS};
use rustix::io::Errno;
use std::collections::VecDeque;

/// Longest path that is followed, in bytes (`PATH_MAX` in include/uapi/linux/limits.h).
pub(super) const MAX_PATH: usize = 4096;

/// Resolves `path`; `link_at` is asked about each component by its path so far (`/sys/class`)
/// and answers with the text of the link that stands there, or `None` when it is something else.
/// The last component is followed if `follow_last`.
///
/// On failure the first of the pair is the path at which it ended.
pub(super) fn walk(
    path: &str,
    follow_last: bool,
    mut link_at: impl FnMut(&str) -> Result<Option<String>, Fault>,
) -> Result<String, (String, Fault)> {
    if path.len() > MAX_PATH {
        return Err((String::new(), Errno::NAMETOOLONG.into()));
    }
    let mut rest: VecDeque<String> = components(path).collect();
    let mut done = String::new();
    let mut links = 0;
    while let Some(component) = rest.pop_front() {
        if component == ".." {
            done.truncate(done.rfind('/').unwrap_or(0));
            continue;
        }
        let parent = done.len();
        done.push('/');
        done.push_str(&component);
        if done.len() > MAX_PATH {
            return Err((done, Errno::NAMETOOLONG.into()));
        }
        if rest.is_empty() && !follow_last {
            break;
        }
        match link_at(&done) {
            Ok(None) => {}
            Ok(Some(target)) => {
                links += 1;
                if links > MAX_LINKS {
                    return Err((done, Errno::LOOP.into()));
                }
                if target.len() > MAX_PATH {
                    return Err((done, Errno::NAMETOOLONG.into()));
                }
                done.truncate(if target.starts_with('/') { 0 } else { parent });
                let target: Vec<String> = components(&target).collect();
                for component in target.into_iter().rev() {
                    rest.push_front(component);
                }
            }
            Err(fault) => return Err((done, fault)),
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
            "/sys/class/net/eth0" => Ok(Some("../../devices/pci0/net/eth0".to_owned())),
            "/sys/out" => Ok(Some("../../../../etc/passwd".to_owned())),
            "/sys/absolute" => Ok(Some("/proc/self".to_owned())),
            "/sys/a" => Ok(Some("b".to_owned())),
            "/sys/b" => Ok(Some("a".to_owned())),
            "/sys/none" => Err(Errno::NOENT.into()),
            _ => Ok(None),
        })
        .map_err(|(at, fault)| format!("{at}: {}", fault.reason))
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
            ("/sys/a/x", Err("/sys/a: links go in a circle")),
            ("/sys/none/x", Err("/sys/none: is not there")),
        ] {
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(resolved(path), expected, "{path}");
        }
    }

    #[test]
    fn the_last_link_may_be_kept() {
        let kept = walk("/x/l", false, |_| Ok(None)).unwrap();
        assert_eq!(kept, "/x/l");
    }
}
