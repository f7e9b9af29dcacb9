//! Parser to come.
