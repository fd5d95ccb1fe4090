//! The command-line tool of the fib library; everything is in the library part of this package.

use std::process::ExitCode;

fn main() -> ExitCode {
    fib_bench::cli::main()
}
