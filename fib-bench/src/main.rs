//! The command-line tool of the fib library.
fn main() {}
