//! The trie.
pub(crate) mod arena;
