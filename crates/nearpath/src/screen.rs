//! The terminal as a screen: taken over while this lives, and given back whatever ends it.
//!
//! Input: keys. Output: what is drawn. SIGINT and SIGTERM are noticed by whoever waits; a panic restores the terminal
//! before its message is printed.

use nearpath_views::terminal::Key;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::io::{self, IsTerminal};
use std::time::Duration;

/// The screen.
pub struct Screen(DefaultTerminal);

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// A key was pressed.
    Key(Key),
    /// Ctrl-C.
    Interrupt,
    /// The size changed.
    Resized,
    /// Nothing that matters, or nothing at all.
    Nothing,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// There is none.
    pub fn open() -> io::Result<Self> {
        if !io::stdout().is_terminal() {
            return Err(io::Error::other("standard output is not a terminal"));
        }
        let opened = ratatui::try_init();
        if opened.is_err() {
            let _ = ratatui::try_restore();
        }
        Ok(Self(opened?))
    }

    /// Draws.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn draw(&mut self, with: impl FnOnce(&mut ratatui::Frame<'_>)) -> io::Result<()> {
        self.0.draw(with).map(|_| ())
    }

    /// Waits for a key at most so long.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn wait(&mut self, time: Duration) -> io::Result<Input> {
        match event::poll(time) {
            Ok(true) => {}
            Ok(false) => return Ok(Input::Nothing),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Input::Nothing),
            Err(error) => return Err(error),
        }
        Ok(match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => input(key),
            Event::Resize(..) => Input::Resized,
            _ => Input::Nothing,
        })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nothing is left to do if the terminal is gone.
        let _ = ratatui::try_restore();
    }
}

fn input(key: KeyEvent) -> Input {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        let is_interrupt = matches!(key.code, KeyCode::Char('c' | 'd'));
        return if is_interrupt { Input::Interrupt } else { Input::Nothing };
    }
    Input::Key(match key.code {
        KeyCode::Char(c) => Key::Char(c),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Tab => Key::Tab,
        KeyCode::BackTab => Key::BackTab,
        _ => return Input::Nothing,
    })
}
