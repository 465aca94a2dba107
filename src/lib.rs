//! tensorpack: under construction in this commit.
