//! The channels of a decoded image.

/// The channels of a decoded image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Channels {
    /// One channel: luma.
    #[doc(alias = "Grey")]
    Gray,
    /// Three channels: red, green, blue.
    #[default]
    Rgb,
}

impl Channels {
    /// Returns the number of channels.
    pub fn count(self) -> usize {
        match self {
            Channels::Gray => 1,
            Channels::Rgb => 3,
        }
    }
}
