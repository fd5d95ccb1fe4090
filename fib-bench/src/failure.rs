//! Why a command could not do its work: one sentence for the user, and an exit code.

use std::fmt;

/// A sentence that says what went wrong, where, and what to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    text: String,
    /// A wrong answer after which going on makes no sense; anything else is something that could not be done.
    is_wrong_answer: bool,
}

impl Failure {
    /// Something could not be done.
    pub fn new(text: impl Into<String>) -> Self {
        Failure { text: text.into(), is_wrong_answer: false }
    }

    /// Any error, with the words that say what was attempted in front of it.
    pub fn at(place: impl fmt::Display, error: impl fmt::Display) -> Self {
        Failure::new(format!("{place}: {error}"))
    }

    /// An answer was wrong, and the command stops.
    pub fn wrong(text: impl Into<String>) -> Self {
        Failure { text: text.into(), is_wrong_answer: true }
    }

    /// 1 for a wrong answer, else 2.
    pub fn exit_code(&self) -> u8 {
        if self.is_wrong_answer { 1 } else { 2 }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_answers_are_told_apart() {
        assert_eq!(Failure::at("x", "missing").exit_code(), 2);
        assert_eq!(Failure::wrong("10.0.0.1").exit_code(), 1);
        assert_eq!(Failure::at("x", "missing").to_string(), "x: missing");
    }
}
