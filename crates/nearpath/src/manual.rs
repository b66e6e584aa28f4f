//! The manual pages: `nearpath(1)`, `nearpath-diagnose(1)` and so on, one per command.
//!
//! Input: the command. Output: its pages in roff. Options and synopsis are rendered by clap_mangen; the text after
//! the options is rendered here, as it is only a string for clap.

use anyhow::Context;
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use std::io;

/// A page and its file name.
pub struct Page {
    /// Such as `nearpath-show.1`.
    pub name: String,
    /// In roff.
    pub text: Vec<u8>,
}

/// The pages of a command and of its subcommands that are not hidden.
///
/// # Errors
/// Never in practice: it writes to memory.
pub fn pages(mut command: Command) -> anyhow::Result<Vec<Page>> {
    command.build();
    let mut pages = Vec::new();
    add(&command, &mut pages).context("cannot write the manual")?;
    Ok(pages)
}

fn add(command: &Command, pages: &mut Vec<Page>) -> io::Result<()> {
    for below in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        add(below, pages)?;
    }
    let man = Man::new(command.clone())
        .source(format!("nearpath {}", crate::version::NUMBER))
        .manual("nearpath");
    let mut text = Vec::new();
    let (description, sections) = after_help(command);
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    let mut roff = Roff::new();
    blocks(&mut roff, &description);
    roff.to_writer(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    man.render_options_section(&mut text)?;
    let mut roff = Roff::new();
    for (title, lines) in sections {
        roff.control("SH", [title.as_str()]);
        blocks(&mut roff, &lines);
    }
    roff.to_writer(&mut text)?;
    pages.push(Page { name: man.get_filename(), text });
    Ok(())
}

/// A heading and the lines below it.
type Section = (String, Vec<String>);

/// The text after the options: what precedes its first heading, and its sections.
fn after_help(command: &Command) -> (Vec<String>, Vec<Section>) {
    let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let (mut description, mut sections): (Vec<String>, Vec<Section>) = Default::default();
    for line in text.lines() {
        let Some((_, section)) = sections.last_mut().filter(|_| !is_heading(line)) else {
            match is_heading(line) {
                true => sections.push((line.to_owned(), Vec::new())),
                false => description.push(line.to_owned()),
            }
            continue;
        };
        // Text below a list of examples applies to the whole command.
        if is_text(line) && section.iter().any(|line| !is_text(line)) {
            sections.push(("NOTES".to_owned(), vec![line.to_owned()]));
        } else {
            section.push(line.to_owned());
        }
    }
    (description, sections)
}

/// A line in capitals, such as `EXIT STATUS`.
fn is_heading(line: &str) -> bool {
    is_text(line) && line.chars().all(|c| c.is_ascii_uppercase() || c == ' ')
}

/// A line of a paragraph, which is not indented.
fn is_text(line: &str) -> bool {
    !line.is_empty() && !line.starts_with(' ')
}

/// Paragraphs are filled; indented lines are printed verbatim.
fn blocks(roff: &mut Roff, lines: &[String]) {
    for block in lines.split(|line| line.is_empty()).filter(|block| !block.is_empty()) {
        let verbatim = !is_text(&block[0]);
        roff.control("PP", []);
        if verbatim {
            roff.control("nf", []);
        }
        for line in block {
            roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
        }
        if verbatim {
            roff.control("fi", []);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(name: &str) -> String {
        let pages = pages(crate::command()).unwrap();
        let page = pages.into_iter().find(|page| page.name == name).expect(name);
        String::from_utf8(page.text).unwrap()
    }

    #[test]
    fn each_command_has_a_page_and_hidden_ones_have_none() {
        let names: Vec<String> =
            pages(crate::command()).unwrap().into_iter().map(|page| page.name).collect();
        for name in ["nearpath.1", "nearpath-diagnose.1", "nearpath-tune-plan.1"] {
            assert!(names.iter().any(|there| there == name), "{name}: {names:?}");
        }
        assert!(!names.iter().any(|name| name.contains("demo-server")), "{names:?}");
    }

    #[test]
    fn examples_keep_their_lines_and_notes_are_a_section() {
        let page = page("nearpath-measure-stages.1");
        let (_, examples) = page.split_once(".SH EXAMPLES\n").expect("examples");
        assert!(examples.starts_with(".PP\n.nf\nnearpath measure stages"), "{examples}");
        assert!(examples.contains(".fi\n.SH NOTES\n.PP\n"), "{examples}");
        assert!(page.contains(".SH \"EXPERT OPTIONS\"\n"), "{page}");
    }

    #[test]
    fn a_description_comes_before_the_options() {
        let page = page("nearpath-steer.1");
        let place = |text: &str| page.find(text).expect(text);
        assert!(place("Finds the sockets that share the port") < place(".SH OPTIONS"));
        assert!(place(".SH SUBCOMMANDS") < place(".SH OPTIONS"));
    }
}
