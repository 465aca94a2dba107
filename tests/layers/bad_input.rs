//! Layers on invalid inputs: an error that names the layer and points at the caller, never a panic.

use tensorpack::prelude::*;

type Apply = fn(&TowerContext, &Tensor);

/// Every layer, with valid and with invalid settings.
const LAYERS: [(&str, Apply); 40] = [
    ("Linear", |t, x| drop(Linear::new(3).apply(t, "layer", x))),
    ("Linear with nothing", |t, x| drop(Linear::new(0).last_axis().apply(t, "layer", x))),
    ("Conv2d", |t, x| drop(Conv2d::new(4, 3).layout(Layout::Nchw).apply(t, "layer", x))),
    ("Conv2d without a kernel", |t, x| drop(Conv2d::new(4, 0).apply(t, "layer", x))),
    ("Conv2d without a stride", |t, x| drop(Conv2d::new(4, 3).stride(0).apply(t, "layer", x))),
    ("Conv2d in no group", |t, x| drop(Conv2d::new(4, 3).groups(0).apply(t, "layer", x))),
    ("Conv2d in 3 groups", |t, x| drop(Conv2d::new(4, 3).groups(3).apply(t, "layer", x))),
    ("Conv2d beyond the image", |t, x| {
        drop(Conv2d::new(4, usize::MAX).padding(Padding::Valid).apply(t, "layer", x))
    }),
    ("DepthwiseConv2d", |t, x| drop(DepthwiseConv2d::new(3).apply(t, "layer", x))),
    ("DepthwiseConv2d of nothing", |t, x| drop(DepthwiseConv2d::new(3).multiplier(0).apply(t, "layer", x))),
    ("Conv2dTranspose", |t, x| drop(Conv2dTranspose::new(4, 3).stride(2).apply(t, "layer", x))),
    ("Conv2dTranspose without a stride", |t, x| {
        drop(Conv2dTranspose::new(4, 3).stride(0).apply(t, "layer", x))
    }),
    ("Conv2dTranspose far away", |t, x| {
        let padding = Padding::Explicit([[9, 9], [usize::MAX, usize::MAX]]);
        drop(Conv2dTranspose::new(4, 3).padding(padding).apply(t, "layer", x));
    }),
    ("Conv2dTranspose very large", |t, x| {
        drop(Conv2dTranspose::new(4, 3).stride(usize::MAX).apply(t, "layer", x))
    }),
    ("Conv3d", |t, x| drop(Conv3d::new(4, 3).apply(t, "layer", x))),
    ("Conv3d in 3 groups", |t, x| drop(Conv3d::new(4, 3).groups(3).apply(t, "layer", x))),
    ("Conv1d", |t, x| drop(Conv1d::new(4, 3).causal().apply(t, "layer", x))),
    ("Conv1d very far", |t, x| drop(Conv1d::new(4, 3).causal().dilation(usize::MAX).apply(t, "layer", x))),
    ("Conv1d in 3 groups", |t, x| drop(Conv1d::new(4, 3).groups(3).apply(t, "layer", x))),
    ("BatchNorm", |t, x| drop(BatchNorm::new().apply(t, "layer", x))),
    ("BatchNorm channels first", |t, x| drop(BatchNorm::new().layout(Layout::Nchw).apply(t, "layer", x))),
    ("BatchNorm of no examples", |t, x| drop(BatchNorm::new().virtual_batch_size(0).apply(t, "layer", x))),
    ("BatchNorm of many", |t, x| drop(BatchNorm::new().virtual_batch_size(usize::MAX).apply(t, "layer", x))),
    ("BatchNorm frozen", |t, x| drop(BatchNorm::new().use_running().apply(t, "layer", x))),
    ("LayerNorm", |t, x| drop(LayerNorm::new().apply(t, "layer", x))),
    ("InstanceNorm", |t, x| drop(InstanceNorm::new().apply(t, "layer", x))),
    ("GroupNorm", |t, x| drop(GroupNorm::new(3).apply(t, "layer", x))),
    ("GroupNorm without groups", |t, x| drop(GroupNorm::new(0).layout(Layout::Nchw).apply(t, "layer", x))),
    ("Dropout of all", |t, x| drop(Dropout::new(1.0).apply(t, "layer", x))),
    ("Embedding", |t, x| drop(Embedding::new(4, 2).apply(t, "layer", x))),
    ("Lstm", |t, x| drop(Lstm::new(2).apply(t, "layer", x, None))),
    ("LstmCell", |t, x| drop(LstmCell::new(2).step(t, "layer", x, None))),
    ("Gru", |t, x| drop(Gru::new(2).apply(t, "layer", x, Some(x)))),
    ("GruCell", |t, x| drop(GruCell::new(2).step(t, "layer", x, Some(x)))),
    ("MultiHeadAttention", |t, x| drop(MultiHeadAttention::new(2).causal().apply(t, "layer", x))),
    ("MultiHeadAttention with odd key heads", |t, x| {
        drop(MultiHeadAttention::new(4).kv_heads(3).apply(t, "layer", x))
    }),
    ("MultiHeadAttention with a cache", |t, x| {
        drop(MultiHeadAttention::new(2).apply_cached(t, "layer", x, &KvCache::new(x, x), x))
    }),
    ("MultiHeadAttention without heads", |t, x| drop(MultiHeadAttention::new(0).apply(t, "layer", x))),
    ("PRelu", |t, x| drop(PRelu::new().apply(t, "layer", x))),
    ("Maxout", |t, x| drop(Maxout::new(0).apply(t, "layer", x))),
];

#[test]
fn layers_never_panic_and_errors_point_here() {
    let shapes: [&[Option<usize>]; 11] = [
        &[],
        &[None],
        &[Some(4)],
        &[None, None],
        &[None, Some(8)],
        &[None, None, None],
        &[None, Some(5), Some(8)],
        &[Some(0), Some(0), Some(0), Some(0)],
        &[None, None, None, Some(8)],
        &[None, Some(5), Some(5), None],
        &[None, Some(2), Some(2), Some(2), Some(2)],
    ];
    let mut failed = 0;
    for (name, apply) in LAYERS {
        for dtype in [DType::F32, DType::I32, DType::Bool] {
            for shape in shapes {
                let graph = Graph::new();
                let x = graph.placeholder(&TensorSpec::new("x", dtype, shape));
                apply(&TowerContext::training(&graph), &x);
                // A failed layer returns poison, so that later layers record no further errors.
                if let Err(e) = graph.freeze() {
                    let site = e.site().unwrap_or_else(|| panic!("{name} of {shape:?}: {e} has no line"));
                    assert!(site.file.ends_with("bad_input.rs"), "{name} of {dtype}{shape:?}: {e}");
                    assert!(
                        e.message().starts_with("layer/") || e.message().contains("DepthwiseConv2d"),
                        "{name}: {e}"
                    );
                    failed += 1;
                }
            }
        }
    }
    assert!(failed > 500, "only {failed} were errors");
}

#[test]
fn poison_flows_through_all_layers() {
    for (name, apply) in LAYERS {
        let graph = Graph::new();
        let x = graph.placeholder(&TensorSpec::f32("x", [Some(2), Some(3)]));
        let broken = x.reshape(&[7]);
        let right = graph.first_error().unwrap_err().to_string();
        apply(&TowerContext::training(&graph), &broken);
        assert_eq!(graph.freeze().unwrap_err().to_string(), right, "{name}");
    }
}
