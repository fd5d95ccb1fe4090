//! Which commands and options are there.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::commands::{load, lookup, replay, run, script, update};
use crate::{readers, sync_mem};

/// Loads, verifies and measures the fib library.
///
/// Without a command it makes an Internet-like table in memory, loads it, verifies lookups against an independent
/// method, and measures lookups and updates.
///
/// Exit codes: 0; 1 for a wrong answer (with --strict also for a figure that falls short); 2 for bad options or files.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    main_job: run::RunOptions,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The main job, as without a command
    Run(run::RunOptions),
    /// Load route files: size, form and load time of the table
    Load(load::LoadOptions),
    /// Look up addresses: next hop, matched prefix, all covering prefixes
    Lookup(lookup::LookupOptions),
    /// Run scripts of operations with expected answers
    Script(script::ScriptOptions),
    /// Apply an update trace to a table and verify the end state
    Replay(replay::ReplayOptions),
    /// Measure random updates and the covering prefixes that touch most of a table
    Update(update::UpdateOptions),
    /// Measure what the dirty-memory budget costs the writer, and the writer the readers
    SyncMem(sync_mem::SyncMemOptions),
    /// Measure what a reader pays per burst, beside other libraries
    Readers(readers::ReadersOptions),
}

/// The whole program.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        None => run::run(&cli.main_job),
        Some(Command::Run(options)) => run::run(options),
        Some(Command::Load(options)) => load::run(options),
        Some(Command::Lookup(options)) => lookup::run(options),
        Some(Command::Script(options)) => script::run(options),
        Some(Command::Replay(options)) => replay::run(options),
        Some(Command::Update(options)) => update::run(options),
        Some(Command::SyncMem(options)) => sync_mem::run(options),
        Some(Command::Readers(options)) => readers::run(options),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("fib-bench: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn options_are_consistent() {
        super::Cli::command().debug_assert();
    }
}
