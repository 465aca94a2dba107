//! The model as training left it, built again for inference.

use crate::models::{Line, line};
use tensorpack::io::SaverRestore;
use tensorpack::predict::{OfflinePredictor, PredictConfig};
use tensorpack::prelude::*;

#[test]
fn a_predictor_of_the_trained_model_and_one_of_its_checkpoint_agree() {
    let dir = tempfile::tempdir().unwrap();
    let config = TrainConfig::new(Line, line(8)).callback(ModelSaver::new()).logdir(dir.path()).max_epoch(40);
    let trained = launch_train_with_config(config, SimpleTrainer::new()).unwrap();
    let online = trained.get_predictor(&["x"], &["fc/Add"]).unwrap();
    let x = HostTensor::new([2, 3], vec![1.0f32, 0.0, 0.0, 0.0, 1.0, 0.0]).unwrap();
    let y = online.predict(&[&x]).unwrap().remove(0);
    let (a, b) = (y.to_f64_vec()[0], y.to_f64_vec()[1]);
    // The line is x0 - 2 x1 + x2 / 2.
    assert!((a - 1.0).abs() < 0.1 && (b + 2.0).abs() < 0.1, "{y:?}");
    let config = PredictConfig::new(Line, ["fc/Add"]).unwrap().inputs(["x"]);
    let offline = OfflinePredictor::new(config.session_init(SaverRestore::new(dir.path()))).unwrap();
    assert_eq!(offline.predict(&[&x]).unwrap()[0], y);
}

#[test]
fn what_is_asked_of_a_predictor_is_checked() {
    let e = OfflinePredictor::new(PredictConfig::new(Line, ["nothing"]).unwrap()).err().unwrap();
    assert!(e.message().contains("no input, tensor or variable named \"nothing\""), "{e}");
    let none: [&str; 0] = [];
    assert!(OfflinePredictor::new(PredictConfig::new(Line, none).unwrap()).is_err());
    let p = OfflinePredictor::new(PredictConfig::new(Line, ["cost"]).unwrap()).unwrap();
    assert!(p.predict(&[]).unwrap_err().message().contains("takes 2 inputs (x, y)"));
}
