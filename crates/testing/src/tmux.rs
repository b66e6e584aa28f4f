//! A terminal for a program: a server of tmux with one window.

use std::process::Command;
use std::time::{Duration, Instant};

/// Loading programs takes long on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server of tmux with one window, ended with this.
pub struct Tmux {
    _folder: tempfile::TempDir,
    socket: String,
}

impl Tmux {
    /// Runs a line of the shell, then says what stty says, and stays.
    pub fn run(line: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("tmux").to_str().unwrap().to_owned();
        let tmux = Self { _folder: folder, socket };
        let shell = format!(
            "{line}; status=$?; stty -a | tail -n 5; echo \"ended: $status\"; exec sleep 1000"
        );
        tmux.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", &shell]);
        tmux
    }

    /// Runs a command of tmux; what it prints.
    pub fn tmux(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        let output = command.args(["-S", &self.socket]).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Presses keys, by tmux' names.
    pub fn press(&self, keys: &[&str]) {
        let mut arguments = vec!["send-keys"];
        arguments.extend(keys);
        self.tmux(&arguments);
    }

    /// What is on the screen.
    pub fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// The screen, as soon as it fulfils this.
    pub fn shows(&self, what: &str, is: impl Fn(&str) -> bool) -> String {
        let ends = Instant::now() + PATIENCE;
        loop {
            let screen = self.screen();
            if is(&screen) {
                return screen;
            }
            assert!(Instant::now() < ends, "no {what}:\n{screen}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Ended, and the terminal is as shells want it.
    pub fn is_restored(&self, status: &str) {
        let screen = self.shows("end", |screen| screen.contains("ended: "));
        assert!(screen.contains(status), "{screen}");
        for mode in ["icanon", "echo", "isig", "opost"] {
            assert!(screen.split_whitespace().any(|word| word == mode), "{mode}:\n{screen}");
        }
        let flags = self.tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
        assert_eq!(flags.trim(), "0 1", "alternate screen, cursor");
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-S", &self.socket, "kill-server"]).status();
    }
}
