//! What operations do with nothing.
