//! Why a command could not do its work: one sentence for the user, exit code 2.

use std::fmt;

/// A sentence that says what went wrong, where, and what to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure(pub String);

impl Failure {
    /// A failure with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Failure(text.into())
    }

    /// Any error, with the words that say what was attempted in front of it.
    pub fn at(place: impl fmt::Display, error: impl fmt::Display) -> Self {
        Failure(format!("{place}: {error}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}
