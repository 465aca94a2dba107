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
    /// All of a picture.
    #[doc(alias = "all")]
    pub fn full(height: usize, width: usize) -> Rect {
        Rect { x: 0, y: 0, width, height }
    }

    /// Whether a picture has all its pixels.
    pub fn is_within(&self, height: usize, width: usize) -> bool {
        self.x.saturating_add(self.width) <= width && self.y.saturating_add(self.height) <= height
    }
}
