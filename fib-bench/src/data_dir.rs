//! Where is the data when no file is named: the directory in `FIB_DATA`, by default `../shared/data`.
//!
//! The default is meant from the root of the workspace; cargo runs tests one directory further down.

use std::env;
use std::path::PathBuf;

use crate::failure::Failure;

/// The directory with `rib4.txt.gz`, `rib6.txt.gz` and `updates.txt.gz`.
pub fn data_dir() -> PathBuf {
    let [default, from_package] = ["../shared/data", "../../shared/data"].map(PathBuf::from);
    match env::var_os("FIB_DATA") {
        Some(dir) => PathBuf::from(dir),
        None if !default.is_dir() && from_package.is_dir() => from_package,
        None => default,
    }
}

/// The file `name` of the data directory, when it is there.
pub fn find(name: &str) -> Option<PathBuf> {
    Some(data_dir().join(name)).filter(|path| path.is_file())
}

/// As [`find`], with words for the user who named no file.
pub fn require(name: &str) -> Result<PathBuf, Failure> {
    find(name).ok_or_else(|| {
        Failure::new(format!(
            "no file was named and {} is not there; name a file, or set FIB_DATA to the directory that holds {name}",
            data_dir().join(name).display()
        ))
    })
}
