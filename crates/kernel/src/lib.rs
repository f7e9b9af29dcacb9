//! Linux made safe.
