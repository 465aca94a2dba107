//! A part of a picture.

/// A rectangle of pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rect {
    /// Its left column.
    pub x: usize,
    /// Its top row.
    pub y: usize,
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

impl Rect {
    /// All of a picture of this size.
    pub fn all(height: usize, width: usize) -> Rect {
        Rect { x: 0, y: 0, width, height }
    }
}
