//! Contents.
