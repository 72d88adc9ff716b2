//! What is there (under construction).
