//! How far is it: a bar on stderr for steps that turn out to take longer than a second.
//!
//! Nothing is drawn before a second has passed, and nothing at all when stderr is not a terminal, so scripts and logs
//! stay clean and short steps do not flicker.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const PATIENCE: Duration = Duration::from_secs(1);

/// One step of a command; the bar disappears when it is dropped.
#[derive(Debug)]
pub struct Step {
    bar: ProgressBar,
    start: Instant,
    is_shown: bool,
}

impl Step {
    /// A step of `total` parts, named by what is being done.
    pub fn new(what: &str, total: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {elapsed}") {
            bar.set_style(style);
        }
        bar.set_message(what.to_owned());
        Step { bar, start: Instant::now(), is_shown: !std::io::stderr().is_terminal() }
    }

    /// `parts` more are done. Cheap enough for every few thousand operations, never called inside a timed stretch.
    pub fn advance(&mut self, parts: u64) {
        self.bar.inc(parts);
        if !self.is_shown && self.start.elapsed() > PATIENCE {
            self.is_shown = true;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
