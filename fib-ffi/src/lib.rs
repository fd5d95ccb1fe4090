//! The C interface of the fib library. Its functions arrive with the C header; this crate exports nothing yet.
