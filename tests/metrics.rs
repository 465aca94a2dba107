//! Metrics of inference: hand-computed values, definitions written out here, errors, and equal bits
//! on any number of towers.

use std::collections::BTreeMap;
use tensorpack::callback::{
    Auc, BinaryClassificationStats, Bleu, ConfusionMatrix, CtcErrorRate, Inferencer, MeanAveragePrecision,
    Perplexity, TopKError, WordErrorRate,
};
use tensorpack::dataflow::FromList;
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;
use tensorpack_testing::assert_mentions;

/// A model whose inputs are the tensors that metrics read.
#[derive(Clone)]
struct Given(Vec<TensorSpec>);

impl ModelDesc for Given {
    fn inputs(&self) -> Vec<TensorSpec> {
        self.0.clone()
    }

    fn build_graph(&self, t: &TowerContext, _: &[Tensor]) -> Tensor {
        t.variable(VariableSpec::new("w", []).init(Init::zeros())).value().square().named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(0.1).boxed()
    }
}

type Inferencers = Vec<Box<dyn Inferencer>>;

/// Returns the statistics that inferencers report for these batches.
fn statistics(
    specs: &[TensorSpec],
    batches: Vec<Vec<HostTensor>>,
    inferencers: Inferencers,
    towers: usize,
) -> Result<BTreeMap<String, f64>> {
    let names: Vec<String> = inferencers.iter().flat_map(|i| i.names()).collect();
    let mut runner = InferenceRunner::new(FromList::new(batches.clone()), [] as [ScalarStats; 0]);
    for inferencer in inferencers {
        runner = runner.with(Boxed(inferencer));
    }
    let config = TrainConfig::new(Given(specs.to_vec()), FromList::new(batches)).steps_per_epoch(1);
    let config = config.max_epoch(1).no_logdir().callback(runner.towers(towers));
    let trained = launch_train_with_config(config, SimpleTrainer::new())?;
    let latest = |name: String| {
        let value = trained.monitors.latest(&name).unwrap_or_else(|| panic!("{name} was not reported"));
        (name, value)
    };
    Ok(names.into_iter().map(latest).collect())
}

/// An inferencer of any type.
struct Boxed(Box<dyn Inferencer>);

impl Inferencer for Boxed {
    fn fetches(&mut self, tower: &tensorpack::tower::TowerHandle) -> Result<Vec<Tensor>> {
        self.0.fetches(tower)
    }
    fn start(&mut self) {
        self.0.start();
    }
    fn batch(&mut self, values: &[HostTensor], examples: usize) -> Result<()> {
        self.0.batch(values, examples)
    }
    fn finish(&mut self) -> Vec<(String, f64)> {
        self.0.finish()
    }
    fn names(&self) -> Vec<String> {
        self.0.names()
    }
}

fn ints(sizes: &[usize], values: &[i32]) -> HostTensor {
    HostTensor::new(sizes, values.to_vec()).unwrap()
}

fn floats(sizes: &[usize], values: &[f32]) -> HostTensor {
    HostTensor::new(sizes, values.to_vec()).unwrap()
}

fn assert_close(found: &BTreeMap<String, f64>, name: &str, expected: f64) {
    let value = found[&format!("validation_{name}")];
    assert!((value - expected).abs() < 1e-7, "{name} is {value}, not {expected}");
}

#[test]
fn classes_of_a_worked_example() {
    let specs = [TensorSpec::i32("chosen", [None]), TensorSpec::i32("label", [None])];
    let batches = vec![
        vec![ints(&[5], &[0, 2, 1, 0, 0]), ints(&[5], &[0, 1, 2, 0, 1])],
        vec![ints(&[3], &[1, 0, 3]), ints(&[3], &[2, 9, 9])],
    ];
    let matrix = ConfusionMatrix::new("chosen", "label", 5).ignore_label(9);
    let counts = matrix.counts();
    let found = statistics(&specs, batches, vec![Box::new(matrix)], 1).unwrap();
    // The classes 3 and 4 do not occur, and so do not count in the means.
    assert_close(&found, "accuracy", 2.0 / 6.0);
    assert_close(&found, "macro_precision", (2.0 / 3.0) / 3.0);
    assert_close(&found, "macro_recall", 1.0 / 3.0);
    assert_close(&found, "macro_f1", (4.0 / 5.0) / 3.0);
    assert_close(&found, "mean_iou", (2.0 / 3.0) / 3.0);
    let counts = counts.lock().unwrap().clone();
    let row = |label| (0..3).map(|chosen| counts.count(label, chosen)).collect::<Vec<_>>();
    assert_eq!([row(0), row(1), row(2)], [[2, 0, 0], [1, 0, 1], [0, 2, 0]]);
    assert_eq!((counts.precision(0), counts.recall(0), counts.f1(0)), (2.0 / 3.0, 1.0, 0.8));
}

#[test]
fn f1_is_the_harmonic_mean() {
    let specs = [TensorSpec::i32("chosen", [None]), TensorSpec::i32("label", [None])];
    let batch = vec![ints(&[6], &[1, 1, 1, 0, 0, 1]), ints(&[6], &[1, 0, 1, 1, 0, 0])];
    let stats = BinaryClassificationStats::new("chosen", "label");
    let found = statistics(&specs, vec![batch], vec![Box::new(stats)], 1).unwrap();
    assert_close(&found, "precision", 0.5);
    assert_close(&found, "recall", 2.0 / 3.0);
    assert_close(&found, "f1", 4.0 / 7.0);
}

#[test]
fn scores_of_a_worked_example() {
    let specs = [TensorSpec::f32("score", [None]), TensorSpec::i32("label", [None])];
    let batches = vec![
        vec![floats(&[3], &[0.1, 0.4, 0.35]), ints(&[3], &[0, 0, 1])],
        vec![floats(&[1], &[0.8]), ints(&[1], &[1])],
    ];
    let auc = || vec![Box::new(Auc::new("score", "label")) as Box<dyn Inferencer>];
    let found = statistics(&specs, batches, auc(), 1).unwrap();
    assert_close(&found, "auc", 0.75);
    assert_close(&found, "average_precision", 0.5 + 0.5 * (2.0 / 3.0));
    let same = vec![vec![floats(&[2], &[0.5, 0.5]), ints(&[2], &[1, 1])]];
    let found = statistics(&specs, same, auc(), 1).unwrap();
    assert!(found["validation_auc"].is_nan(), "{found:?}");
    assert_close(&found, "average_precision", 1.0);
    let broken = [floats(&[2], &[0.5, f32::NAN]), ints(&[2], &[1, 0])];
    let e = Auc::new("score", "label").batch(&broken, 2).unwrap_err();
    assert_mentions(&e, &["element 1", "score", "NaN"]);
}

#[test]
fn means_may_be_weighted_by_tokens() {
    let specs = [TensorSpec::f32("loss", []), TensorSpec::f32("tokens", []), TensorSpec::f32("x", [None])];
    let batch = |loss: f32, tokens: f32, examples: usize| {
        vec![floats(&[], &[loss]), floats(&[], &[tokens]), floats(&[examples], &vec![0.0; examples])]
    };
    let batches = vec![batch(1.0, 10.0, 7), batch(4.0, 20.0, 1), batch(100.0, 0.0, 3)];
    let stats = ScalarStats::new("loss").weighted_by("tokens");
    let found = statistics(&specs, batches.clone(), vec![Box::new(stats)], 1).unwrap();
    assert_close(&found, "loss", 3.0);
    let e = statistics(&specs, batches, vec![Box::new(ScalarStats::new("loss").weighted_by("x"))], 1);
    assert_mentions(e.unwrap_err(), &["x", "not a scalar"]);
}

#[test]
fn label_errors_of_a_worked_example() {
    let specs = [
        TensorSpec::f32("logits", [None, Some(4), Some(3)]),
        TensorSpec::i32("steps", [None]),
        TensorSpec::i32("label", [None, Some(2)]),
    ];
    let paths = [[1, 1, 0, 1], [2, 2, 1, 0], [0, 1, 0, 2]];
    let mut logits = [0.0f32; 36];
    paths.iter().flatten().enumerate().for_each(|(i, class)| logits[3 * i + class] = 1.0);
    // Right; one of one labels missing, because no step counts; one of two wrong.
    let batch =
        vec![floats(&[3, 4, 3], &logits), ints(&[3], &[4, 0, 4]), ints(&[3, 2], &[1, 1, 2, -1, 1, 1])];
    let error = CtcErrorRate::new("logits", "steps", "label");
    let found = statistics(&specs, vec![batch], vec![Box::new(error)], 1).unwrap();
    assert_close(&found, "label_error", 2.0 / 5.0);
    assert_close(&found, "sequence_error", 2.0 / 3.0);
}

#[test]
fn sequences_of_a_worked_example() {
    let specs = [TensorSpec::i32("decoded", [None, None]), TensorSpec::i32("reference", [None, None])];
    // "kitten" and "sitting", then one without its last word, and two that are empty.
    let batches = vec![
        vec![
            ints(&[2, 6], &[11, 9, 20, 20, 5, 14, 1, 2, -1, 3, -1, 3]),
            ints(&[2, 7], &[19, 9, 20, 20, 9, 14, 7, 1, 2, 3, -1, -1, -1, -1]),
        ],
        vec![ints(&[1, 2], &[0, 7]), ints(&[1, 1], &[0])],
    ];
    let wer = WordErrorRate::new("decoded", "reference").end(0).name("cer");
    let found = statistics(&specs, batches, vec![Box::new(wer)], 1).unwrap();
    assert_close(&found, "cer", 4.0 / 10.0);
    // Matches: 5 of 6, 3 of 5, 2 of 4 and 1 of 3 n-grams; then a prediction that is too short.
    let batches = vec![vec![ints(&[1, 6], &[1, 2, 3, 4, 5, 6]), ints(&[1, 6], &[1, 2, 3, 4, 7, 6])]];
    let bleu = || vec![Box::new(Bleu::new("decoded", "reference")) as Box<dyn Inferencer>];
    let found = statistics(&specs, batches, bleu(), 1).unwrap();
    assert_close(&found, "bleu", 100.0 * (1.0f64 / 12.0).powf(0.25));
    let short = vec![vec![ints(&[1, 6], &[1, 2, 3, 4, 5, -1]), ints(&[1, 7], &[1, 2, 3, 4, 5, 6, 7])]];
    let found = statistics(&specs, short, bleu(), 1).unwrap();
    assert_close(&found, "bleu", 100.0 * (1.0f64 - 7.0 / 5.0).exp());
    let none = vec![vec![ints(&[1, 3], &[1, 2, 3]), ints(&[1, 3], &[1, 2, 3])]];
    assert_close(&statistics(&specs, none, bleu(), 1).unwrap(), "bleu", 0.0);
}

/// Such as hashes of words.
#[test]
fn tokens_of_64_bits_are_compared_exactly() {
    let specs = ["decoded", "reference"].map(|name| TensorSpec::new(name, DType::I64, [None, None]));
    let batch = [1i64 << 60, (1 << 60) + 1].map(|token| HostTensor::new([1, 1], vec![token]).unwrap());
    let wer = || vec![Box::new(WordErrorRate::new("decoded", "reference")) as Box<dyn Inferencer>];
    assert_close(&statistics(&specs, vec![batch.to_vec()], wer(), 1).unwrap(), "wer", 1.0);
}

#[test]
fn the_closest_of_several_references() {
    let specs = [TensorSpec::i32("decoded", [None, None]), TensorSpec::i32("reference", [None, None, None])];
    // "the" is in the first reference once, in the second twice: 2 of the 3 count.
    let batch = vec![
        ints(&[1, 7], &[1, 1, 1, 2, 3, 4, 5]),
        ints(&[1, 3, 7], &[1, 2, 3, 4, 5, -1, -1, 1, 1, 2, 3, 6, 7, -1, -1, -1, -1, -1, -1, -1, -1]),
    ];
    let found =
        statistics(&specs, vec![batch], vec![Box::new(Bleu::new("decoded", "reference"))], 1).unwrap();
    // One n-gram of every length matches nowhere. The closest reference has 6 tokens, so there is no
    // penalty.
    let product = (6.0 / 7.0) * (5.0 / 6.0) * (4.0 / 5.0) * (3.0f64 / 4.0);
    assert_close(&found, "bleu", 100.0 * product.powf(0.25));
}

#[test]
fn perplexity_counts_tokens() {
    let specs = [TensorSpec::f32("loss", [None, None]), TensorSpec::f32("mask", [None, None])];
    let batches = vec![
        vec![floats(&[2, 2], &[1.0, 2.0, 0.5, 9.0]), floats(&[2, 2], &[1.0, 1.0, 1.0, 0.0])],
        vec![floats(&[1, 1], &[4.5]), floats(&[1, 1], &[1.0])],
    ];
    let masked = Perplexity::new("loss").weighted_by("mask");
    let found = statistics(&specs, batches, vec![Box::new(masked)], 1).unwrap();
    assert_close(&found, "perplexity", 2.0f64.exp());
    let batches = vec![
        vec![floats(&[1, 3], &[1.0, 2.0, 3.0]), floats(&[1, 1], &[1.0])],
        vec![floats(&[1, 1], &[4.0]), floats(&[1, 1], &[1.0])],
    ];
    let all = Perplexity::new("loss").prefix("");
    let found = statistics(&specs, batches.clone(), vec![Box::new(all)], 1).unwrap();
    assert!((found["perplexity"] - 2.5f64.exp()).abs() < 1e-7, "{found:?}");
    let masked = Perplexity::new("loss").weighted_by("mask");
    let e = statistics(&specs, batches, vec![Box::new(masked)], 1).unwrap_err();
    assert_mentions(&e, &["weights [1, 1]", "losses [1, 3]"]);
    // The loss of padding may be infinite.
    let mut masked = Perplexity::new("loss").weighted_by("mask");
    masked.start();
    masked.batch(&[floats(&[2], &[3.0, f32::INFINITY]), floats(&[2], &[1.0, 0.0])], 1).unwrap();
    assert_eq!(masked.finish(), [("validation_perplexity".to_string(), 3.0f64.exp())]);
}

#[test]
fn bad_classes_and_tokens_are_errors() {
    let specs = [TensorSpec::i32("chosen", [None]), TensorSpec::i32("label", [None])];
    let error = |chosen: i32, label: i32| {
        let batch = vec![ints(&[1], &[chosen]), ints(&[1], &[label])];
        let matrix = ConfusionMatrix::new("chosen", "label", 2);
        statistics(&specs, vec![batch], vec![Box::new(matrix)], 1).unwrap_err()
    };
    assert_mentions(error(0, 2), &["label 2", "0..2"]);
    assert_mentions(error(3, 1), &["prediction 3", "0..2"]);
    assert_mentions(error(0, -1), &["label -1", "negative"]);
    let batch = || vec![ints(&[2], &[1, 2]), ints(&[2], &[1, -1])];
    let auc: Inferencers = vec![Box::new(Auc::new("chosen", "label"))];
    assert_mentions(statistics(&specs, vec![batch()], auc, 1).unwrap_err(), &["element 1 of label is -1"]);
    let binary: Inferencers = vec![Box::new(BinaryClassificationStats::new("chosen", "label"))];
    assert_mentions(statistics(&specs, vec![batch()], binary, 1).unwrap_err(), &["element 1 of chosen is 2"]);
    let wrong: Inferencers = vec![Box::new(ClassificationError::new("label"))];
    assert_mentions(statistics(&specs, vec![batch()], wrong, 1).unwrap_err(), &["label is -1, not 0 or 1"]);
    let batch = vec![ints(&[1], &[0]), ints(&[1], &[0])];
    let wer = WordErrorRate::new("chosen", "label");
    let e = statistics(&specs, vec![batch], vec![Box::new(wer)], 1).unwrap_err();
    assert_mentions(&e, &["chosen", "[batch, time]"]);
}

/// Random examples: scores of 5 classes, a label, a binary score with many ties, and two sequences.
fn examples(sizes: &[usize]) -> Vec<Vec<HostTensor>> {
    let rng = CounterRng::new(3, "metrics");
    let mut drawn = 0;
    let mut below = |n: usize| {
        drawn += 1;
        (rng.uniform(0, drawn) * n as f64) as i32
    };
    let mut batch = |&n: &usize| {
        let mut tensor = |sizes: &[usize], n: usize| -> Vec<i32> {
            (0..sizes.iter().product()).map(|_| below(n)).collect()
        };
        let as_floats = |v: Vec<i32>| v.iter().map(|&x| x as f32 / 8.0).collect::<Vec<f32>>();
        vec![
            floats(&[n, 5], &as_floats(tensor(&[n, 5], 1 << 20))),
            ints(&[n], &tensor(&[n], 5)),
            ints(&[n], &tensor(&[n], 2)),
            floats(&[n], &as_floats(tensor(&[n], 6))),
            ints(&[n, 6], &tensor(&[n, 6], 3)),
            ints(&[n, 6], &tensor(&[n, 6], 3)),
            floats(&[n, 6], &as_floats(tensor(&[n, 6], 9))),
        ]
    };
    sizes.iter().map(&mut batch).collect()
}

/// Returns the Levenshtein distance by its recursive definition.
fn distance(a: &[i32], b: &[i32]) -> usize {
    match (a, b) {
        ([], rest) | (rest, []) => rest.len(),
        ([x, a1 @ ..], [y, b1 @ ..]) => {
            let edit = 1 + distance(a1, b).min(distance(a, b1));
            edit.min(distance(a1, b1) + usize::from(x != y))
        }
    }
}

#[test]
fn definitions_hold_on_any_number_of_towers() {
    let specs = [
        TensorSpec::f32("scores", [None, Some(5)]),
        TensorSpec::i32("label", [None]),
        TensorSpec::i32("binary", [None]),
        TensorSpec::f32("score", [None]),
        TensorSpec::i32("decoded", [None, Some(6)]),
        TensorSpec::i32("reference", [None, Some(6)]),
        TensorSpec::f32("loss", [None, Some(6)]),
    ];
    let batches = examples(&[7, 3, 8, 8, 1, 5, 2]);
    let inferencers = || -> Inferencers {
        vec![
            Box::new(TopKError::new("scores", "label", 1)),
            Box::new(TopKError::new("scores", "label", 3)),
            Box::new(ConfusionMatrix::new("label", "label", 5).prefix("validation_self")),
            Box::new(Auc::new("score", "binary")),
            Box::new(WordErrorRate::new("decoded", "reference")),
            Box::new(Bleu::new("decoded", "reference")),
            Box::new(Perplexity::new("loss")),
        ]
    };
    let found = statistics(&specs, batches.clone(), inferencers(), 1).unwrap();
    let all = |i: usize| batches.iter().flat_map(move |b| b[i].to_f64_vec()).collect::<Vec<f64>>();
    let tokens = |i: usize| all(i).iter().map(|&x| x as i32).collect::<Vec<i32>>();
    let labels = tokens(1);
    for k in [1, 3] {
        let wrong =
            |(row, &label): (&[f64], &i32)| row.iter().filter(|&&s| s > row[label as usize]).count() >= k;
        let wrong = all(0).chunks(5).zip(&labels).filter(|&(row, label)| wrong((row, label))).count();
        assert_close(&found, &format!("top{k}_error"), wrong as f64 / labels.len() as f64);
    }
    assert_close(&found, "self_mean_iou", 1.0);
    let scored: Vec<(f64, f64)> = all(3).into_iter().zip(all(2)).collect();
    let (mut ordered, mut pairs) = (0.0, 0.0);
    for (a, _) in scored.iter().filter(|(_, label)| *label == 1.0) {
        for (b, _) in scored.iter().filter(|(_, label)| *label == 0.0) {
            pairs += 1.0;
            ordered += if a > b { 1.0 } else { f64::from(u8::from(a == b)) / 2.0 };
        }
    }
    assert_close(&found, "auc", ordered / pairs);
    let (decoded, reference) = (tokens(4), tokens(5));
    let edits: usize = decoded.chunks(6).zip(reference.chunks(6)).map(|(a, b)| distance(a, b)).sum();
    assert_close(&found, "wer", edits as f64 / reference.len() as f64);
    let losses = all(6);
    assert_close(&found, "perplexity", (losses.iter().sum::<f64>() / losses.len() as f64).exp());
    assert!(found["validation_bleu"] > 0.0, "{found:?}");
    let bits = |found: BTreeMap<String, f64>| found.into_values().map(f64::to_bits).collect::<Vec<_>>();
    let one = bits(found);
    for towers in [2, 3] {
        let several = statistics(&specs, batches.clone(), inferencers(), towers).unwrap();
        assert_eq!(bits(several), one, "{towers} towers");
    }
}

/// Compares with `coco.json`, which `tests/golden/make_coco.py` writes: crowds, areas that differ from
/// those of the boxes, equal scores, images without objects or detections, other limits.
#[test]
fn average_precision_equals_that_of_pycocotools() -> Result<()> {
    let text = std::fs::read_to_string("tests/golden/coco.json").expect("coco.json");
    let golden: serde_json::Value = serde_json::from_str(&text).expect("valid JSON");
    let list = |v: &serde_json::Value| v.as_array().expect("a list").clone();
    let row =
        |v: &serde_json::Value| list(v).iter().map(|n| n.as_f64().expect("a number")).collect::<Vec<_>>();
    for (number, case) in list(&golden["cases"]).iter().enumerate() {
        let images = list(&case["images"]);
        let rows =
            |image: &serde_json::Value, key: &str| list(&image[key]).iter().map(row).collect::<Vec<_>>();
        let most = |key: &str| images.iter().map(|image| list(&image[key]).len()).max().unwrap_or(0) + 1;
        let (found, given) = (most("detections"), most("truths"));
        // One value of every entry of an image; entries that do not exist have class -1.
        let column = |rows: &[Vec<f64>], count: usize, at: usize| -> Vec<f64> {
            (0..count).map(|i| rows.get(i).map_or(-1.0, |row| row[at])).collect()
        };
        let corners = |rows: &[Vec<f64>], count: usize| -> Vec<f64> {
            (0..count).flat_map(|i| rows.get(i).map_or(vec![0.0; 4], |row| row[..4].to_vec())).collect()
        };
        let batches: Vec<Vec<HostTensor>> = images
            .chunks(2)
            .map(|chunk| {
                let [d, t] = ["detections", "truths"]
                    .map(|key| chunk.iter().map(|image| rows(image, key)).collect::<Vec<_>>());
                let of = |all: &[Vec<Vec<f64>>], count, at| -> Vec<f64> {
                    all.iter().flat_map(|rows| column(rows, count, at)).collect()
                };
                let boxes = |all: &[Vec<Vec<f64>>], count| -> Vec<f64> {
                    all.iter().flat_map(|rows| corners(rows, count)).collect()
                };
                let n = chunk.len();
                let floats = |sizes: &[usize], values: Vec<f64>| {
                    HostTensor::from_f64(DType::F64, sizes.to_vec(), &values).expect("values")
                };
                let classes = |sizes: &[usize], values: Vec<f64>| {
                    HostTensor::from_f64(DType::I32, sizes.to_vec(), &values).expect("values")
                };
                vec![
                    floats(&[n, found, 4], boxes(&d, found)),
                    floats(&[n, found], of(&d, found, 5)),
                    classes(&[n, found], of(&d, found, 4)),
                    floats(&[n, given, 4], boxes(&t, given)),
                    classes(&[n, given], of(&t, given, 4)),
                    classes(&[n, given], of(&t, given, 5)),
                    floats(&[n, given], of(&t, given, 6)),
                ]
            })
            .collect();
        let spec = |name: &str, dtype, last: &[usize]| {
            let dims: Vec<Option<usize>> = [None].into_iter().chain(last.iter().map(|&n| Some(n))).collect();
            TensorSpec::new(name, dtype, dims)
        };
        let specs = [
            spec("detected_boxes", DType::F64, &[found, 4]),
            spec("detected_scores", DType::F64, &[found]),
            spec("detected_classes", DType::I32, &[found]),
            spec("boxes", DType::F64, &[given, 4]),
            spec("kinds", DType::I32, &[given]),
            spec("crowd", DType::I32, &[given]),
            spec("area", DType::F64, &[given]),
        ];
        let limits: Vec<usize> = row(&case["max_detections"]).iter().map(|&n| n as usize).collect();
        let metric = MeanAveragePrecision::new()
            .ground_truth("boxes", "kinds")
            .crowd("crowd")
            .area("area")
            .max_detections(limits.try_into().expect("three limits"))
            .prefix("");
        let names = metric.names();
        for towers in [1, 2] {
            let found = statistics(&specs, batches.clone(), vec![Box::new(metric.clone())], towers)?;
            for (name, expected) in names.iter().zip(row(&case["stats"])) {
                let value = found[name];
                let equal = if expected == -1.0 { value.is_nan() } else { (value - expected).abs() < 1e-12 };
                assert!(equal, "case {number}, {towers} towers: {name} is {value}, not {expected}");
            }
        }
    }
    Ok(())
}
