//! Rectangles of pixels.

/// A rectangle of pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rect {
    /// The left column.
    pub x: usize,
    /// The top row.
    pub y: usize,
    /// The number of columns.
    pub width: usize,
    /// The number of rows.
    pub height: usize,
}

impl Rect {
    /// Returns the rectangle that covers a whole image.
    #[doc(alias = "all")]
    pub fn full(height: usize, width: usize) -> Rect {
        Rect { x: 0, y: 0, width, height }
    }

    /// Returns whether the rectangle lies inside an image of this size.
    pub fn is_within(&self, height: usize, width: usize) -> bool {
        self.x.saturating_add(self.width) <= width && self.y.saturating_add(self.height) <= height
    }
}
