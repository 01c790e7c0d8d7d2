//! What every pair of stores must do for `availability`.
