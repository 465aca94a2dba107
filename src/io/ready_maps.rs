//! Weight maps for well-known nets of other packages.

use super::WeightMap;
use std::panic::Location;
use tensorpack_tensor::Site;

impl WeightMap {
    /// Names of the ready maps, for [`WeightMap::ready`].
    pub const READY: [&str; 9] = [
        "torchvision_resnet",
        "torchvision_vgg",
        "torchvision_mobilenet_v2",
        "torchvision_efficientnet",
        "timm_vit",
        "hf_bert",
        "hf_gpt2",
        "hf_vit",
        "same_names",
    ];

    /// Returns the ready map of this name, or `None` if there is none.
    pub fn ready(name: &str) -> Option<WeightMap> {
        match name {
            "torchvision_resnet" => Some(WeightMap::torchvision_resnet()),
            "torchvision_vgg" => Some(WeightMap::torchvision_vgg()),
            "torchvision_mobilenet_v2" => Some(WeightMap::torchvision_mobilenet_v2()),
            "torchvision_efficientnet" => Some(WeightMap::torchvision_efficientnet()),
            "timm_vit" => Some(WeightMap::timm_vit()),
            "hf_bert" => Some(WeightMap::hf_bert()),
            "hf_gpt2" => Some(WeightMap::hf_gpt2()),
            "hf_vit" => Some(WeightMap::hf_vit()),
            "same_names" => Some(WeightMap::new().same_names()),
            _ => None,
        }
    }

    /// Maps torchvision's ResNets, ResNeXts and Wide ResNets of any depth, and timm's, which have the
    /// same names. Variables have
    /// torchvision's names with slashes: `layer1.0.bn2` is `layer1/0/bn2`; the shortcut,
    /// `downsample.0` and `.1` there, is `downsample/conv` and `downsample/bn`.
    ///
    /// All convolutions and the first pooling need explicit padding.
    #[track_caller]
    pub fn torchvision_resnet() -> WeightMap {
        WeightMap::new()
            .conv("conv{i}", "conv{i}")
            .batch_norm("bn{i}", "bn{i}")
            .conv("layer{g}.{b}.conv{c}", "layer{g}/{b}/conv{c}")
            .batch_norm("layer{g}.{b}.bn{c}", "layer{g}/{b}/bn{c}")
            .conv("layer{g}.{b}.downsample.0", "layer{g}/{b}/downsample/conv")
            .batch_norm("layer{g}.{b}.downsample.1", "layer{g}/{b}/downsample/bn")
            .linear("fc", "fc")
    }

    /// Maps torchvision's VGGs, with and without batch normalization. Variables have torchvision's
    /// names with slashes: `features/0/W`. The first linear layer follows a flattened image of 512
    /// channels, 7 by 7.
    #[track_caller]
    pub fn torchvision_vgg() -> WeightMap {
        WeightMap::new().linear_after_flatten("classifier.0", "classifier/0", [512, 7, 7]).same_names()
    }

    /// Maps torchvision's MobileNetV2 of any width. Variables have torchvision's names with slashes:
    /// `features/1/conv/0/0/W`.
    #[track_caller]
    pub fn torchvision_mobilenet_v2() -> WeightMap {
        WeightMap::new().linear("classifier.1", "classifier/1").same_names()
    }

    /// Maps torchvision's EfficientNets of any size. Variables have torchvision's names with slashes:
    /// `features/1/0/block/0/0/W`. The squeeze and excitation layers `fc1` and `fc2` are 1x1
    /// convolutions.
    #[track_caller]
    pub fn torchvision_efficientnet() -> WeightMap {
        WeightMap::new().linear("classifier.1", "classifier/1").same_names()
    }

    /// Maps timm's vision transformers of any size. Variables have timm's names with slashes; the
    /// attention of a block is `blocks/0/attn`, a [`MultiHeadAttention`](crate::nn::MultiHeadAttention).
    /// The class token and the position embedding are the variables `cls_token` and `pos_embed`.
    #[track_caller]
    pub fn timm_vit() -> WeightMap {
        WeightMap::new()
            .fused_attention("blocks.{b}.attn", "blocks/{b}/attn")
            .tensor("cls_token", "cls_token", super::WeightLayout::Unchanged)
            .tensor("pos_embed", "pos_embed", super::WeightLayout::Unchanged)
            .same_names()
    }

    /// Maps Hugging Face's BERT encoders of any size. Variables have their names with slashes;
    /// embeddings are `embeddings/word`, `embeddings/position` and `embeddings/token_type`, and the
    /// attention of a layer is `encoder/layer/0/attention`, a
    /// [`MultiHeadAttention`](crate::nn::MultiHeadAttention).
    #[track_caller]
    pub fn hf_bert() -> WeightMap {
        WeightMap::new()
            .bert_attention("encoder.layer.{i}.attention", "encoder/layer/{i}/attention")
            .embedding("embeddings.{kind}_embeddings", "embeddings/{kind}")
            .same_names()
    }

    /// Maps Hugging Face's GPT-2 of any size, as `GPT2Model` has it; `.strip_prefix("transformer.")`
    /// for a model with a head. The weights `lm_head.weight` of a language model are those of the
    /// embedding, so they are dropped. Variables have its names with slashes: `wte/W`,
    /// `h/0/mlp/c_fc/W`. The attention of a layer is `h/0/attn`, a causal
    /// [`MultiHeadAttention`](crate::nn::MultiHeadAttention).
    ///
    /// GPT-2's activation, `gelu_new`, is the approximation with a hyperbolic tangent.
    #[track_caller]
    pub fn hf_gpt2() -> WeightMap {
        WeightMap::new()
            .embedding("wte", "wte")
            .embedding("wpe", "wpe")
            .gpt2_attention("h.{i}.attn", "h/{i}/attn")
            .linear_in_out("h.{i}.mlp.{layer}", "h/{i}/mlp/{layer}")
            .drop_any("lm_head.weight", Site::from(Location::caller()))
            .same_names()
    }

    /// Maps Hugging Face's vision transformers of any size, with and without a classifier. Variables
    /// have their names with slashes; the attention of a layer is `vit/encoder/layer/0/attention`, a
    /// [`MultiHeadAttention`](crate::nn::MultiHeadAttention). The class token and the position
    /// embedding are the variables `vit/embeddings/cls_token` and
    /// `vit/embeddings/position_embeddings`.
    #[track_caller]
    pub fn hf_vit() -> WeightMap {
        WeightMap::new()
            .tensor("{p*}.cls_token", "{p*}/cls_token", super::WeightLayout::Unchanged)
            .tensor("{p*}.position_embeddings", "{p*}/position_embeddings", super::WeightLayout::Unchanged)
            .vit_attention("{p*}.attention", "{p*}/attention")
            .same_names()
    }
}
