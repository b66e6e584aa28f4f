//! The terminal as a screen: taken over while this lives, and given back whatever ends it.
//!
//! Input: keys. Output: what is drawn. SIGINT and SIGTERM are noticed by whoever waits; a panic restores the terminal
//! before its message is printed.

use nearpath_views::terminal::Key;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::{DefaultTerminal, Terminal};
use std::io::{self, IsTerminal};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Whether the terminal is a screen now.
static TAKEN: AtomicBool = AtomicBool::new(false);

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
    /// Standard output is not a terminal, or it cannot be set.
    pub fn open() -> io::Result<Self> {
        if !io::stdout().is_terminal() {
            return Err(io::Error::other("standard output is not a terminal"));
        }
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            restore();
            before(info);
        }));
        TAKEN.store(true, Ordering::SeqCst);
        let opened = enable_raw_mode()
            .and_then(|()| execute!(io::stdout(), EnterAlternateScreen))
            .and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        if opened.is_err() {
            restore();
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
        restore();
    }
}

/// Gives the terminal back, once: a second time would move the cursor to where it was before the first.
fn restore() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        // Nothing is left to do if the terminal is gone.
        let _ = disable_raw_mode();
        let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
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
