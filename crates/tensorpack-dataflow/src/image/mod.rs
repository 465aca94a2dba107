//! Image decoding, resizing and augmentation.
//!
//! An image is a tensor `[height, width, channels]`, or `[height, width]` for one channel, of u8 or
//! f32 with values in 0..255, RGB or grayscale. An [`Augmentor`] draws a [`Transform`], which
//! modifies images and moves coordinates together with the pixels. Conversions to u8 round and clip
//! to 0..255.

mod pixels;
mod luma;
mod resize;
mod orientation;
mod png;
mod image_file;
mod augmentor;
mod photometric;
mod identity;
mod map_image;
mod augmentor_list;
mod random_choice;
mod flip;
mod crop;
mod paste;
mod resize_augmentors;
mod random_resized_crop;
mod warp_affine;
mod affine;
mod color;
mod convert;
mod normalize;
mod blur;
mod noise;
mod augment_ext;
mod mix;
mod draw;
mod enhance;
mod rand_augment;

pub use affine::{Affine, Rotation, RotationAndCropValid, Shift};
pub use augment_ext::AugmentExt;
pub use augmentor::{Augmentor, Transform};
pub use augmentor_list::{AugmentorList, TransformList};
pub use blur::GaussianBlur;
pub use color::{Brightness, BrightnessScale, Clip, Contrast, Gamma, Hue, Lighting, Saturation};
pub use convert::{Grayscale, RgbToBgr, ToFloat32, ToUint8};
pub use crop::{CenterCrop, RandomCrop, RandomCropRandomShape, RandomCutout};
pub use draw::{draw_boxes, stack_patches};
pub use flip::{Flip, Transpose};
pub use identity::Identity;
pub use image_file::{ImageFile, decode};
pub use map_image::MapImage;
pub use mix::{CutMix, Mixup};
pub use noise::{GaussianNoise, JpegNoise, SaltPepperNoise};
pub use normalize::{MeanVarianceNormalize, MinMaxNormalize};
pub use paste::Paste;
pub use rand_augment::{RandAugment, RandAugmentOp};
pub use random_choice::{RandomApply, RandomChoose, RandomOrder};
pub use random_resized_crop::RandomResizedCrop;
pub use resize::{Interpolation, resize};
pub use resize_augmentors::{RandomResize, Resize, ResizeShortestEdge};
pub use warp_affine::Border;

pub use tensorpack_jpeg::{Channels, Rect};

use photometric::photometric;
