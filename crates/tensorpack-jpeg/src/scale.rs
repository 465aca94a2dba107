//! The scales at which an image can be decoded.

/// The scale at which an image is decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Full size.
    #[default]
    Full,
    /// Half the height and width.
    Half,
    /// A quarter of the height and width.
    Quarter,
    /// An eighth of the height and width.
    Eighth,
}

impl Scale {
    /// Returns the numerator of the scale in eighths.
    pub fn eighths(self) -> usize {
        match self {
            Scale::Full => 8,
            Scale::Half => 4,
            Scale::Quarter => 2,
            Scale::Eighth => 1,
        }
    }

    /// Returns the scaled length of a side, rounded up.
    pub fn scaled(self, side: usize) -> usize {
        (side * self.eighths()).div_ceil(8)
    }
}
