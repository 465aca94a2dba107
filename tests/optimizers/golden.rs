//! Twenty steps of every optimizer compared with PyTorch in float64.

use super::net::{Net, WEIGHTS, assert_close, engines, file, floats, label, list, text};
use serde_json::Value;
use tensorpack::DType;
use tensorpack::optim::gradproc::{GlobalNormClip, ValueClip};
use tensorpack::optim::{
    Accumulate, Adagrad, Adam, AdamW, Ema, Lamb, Momentum, Optimizer, ParamGroups, Rate, RmsProp, Schedule,
    Sgd,
};
use tensorpack::runtime::SessionOptions;

fn number(v: &Value) -> f64 {
    v.as_f64().unwrap_or_else(|| panic!("{v} is not a number"))
}

fn rate(run: &Value) -> Rate {
    let first = number(&run["arguments"]["lr"]);
    let arguments = &run["schedule_arguments"];
    let get = |key: &str| number(&arguments[key]);
    let Some(schedule) = run["schedule"].as_str() else { return first.into() };
    Rate::from(match schedule {
        "piecewise" => {
            let value = |k: usize| first * get("gamma").powi(k as i32 + 1);
            let from = floats(&arguments["milestones"]);
            let later: Vec<_> = from.iter().enumerate().map(|(k, &from)| (from as u64, value(k))).collect();
            Schedule::piecewise(first, later)
        }
        "staircase" => Schedule::staircase(first, get("gamma"), get("step_size") as u64),
        "exponential" => Schedule::exponential(first, get("gamma"), 1),
        "cosine" => Schedule::cosine(first, get("eta_min"), get("T_max") as u64),
        "polynomial" => Schedule::polynomial(first, 0.0, get("total_iters") as u64, get("power")),
        "warm_up" => Schedule::constant(first).warm_up(get("total_iters") as u64 + 1),
        unknown => panic!("unknown schedule {unknown}"),
    })
}

fn rule(run: &Value) -> Box<dyn Optimizer> {
    let arguments = &run["arguments"];
    let get = |key: &str| number(&arguments[key]);
    let or_zero = |key: &str| arguments[key].as_f64().unwrap_or(0.0);
    let is = |key: &str| arguments[key].as_bool().unwrap_or(false);
    let beta = |k: usize| number(&arguments["betas"][k]);
    let rate = rate(run);
    match text(&run["rule"]) {
        "sgd" if is("nesterov") => Momentum::new(rate, get("momentum")).nesterov().boxed(),
        "sgd" if or_zero("momentum") > 0.0 => Momentum::new(rate, get("momentum")).boxed(),
        "sgd" => Sgd::new(rate).boxed(),
        "rmsprop" => {
            let rule = RmsProp::new(rate).alpha(get("alpha")).epsilon(get("eps"));
            let rule = rule.momentum(or_zero("momentum"));
            if is("centered") { rule.centered().boxed() } else { rule.boxed() }
        }
        "adagrad" => Adagrad::new(rate)
            .epsilon(get("eps"))
            .initial_accumulator_value(or_zero("initial_accumulator_value"))
            .boxed(),
        "adam" => Adam::new(rate).betas(beta(0), beta(1)).epsilon(get("eps")).boxed(),
        "adamw" => {
            let rule = AdamW::new(rate).betas(beta(0), beta(1)).epsilon(get("eps"));
            rule.decay(get("weight_decay")).boxed()
        }
        "lamb" => {
            let rule = Lamb::new(rate).betas(beta(0), beta(1)).epsilon(get("eps"));
            rule.decay(get("weight_decay")).boxed()
        }
        unknown => panic!("unknown rule {unknown}"),
    }
}

fn optimizer(run: &Value) -> Box<dyn Optimizer> {
    let mut optimizer = rule(run);
    if let Some(groups) = run["groups"].as_array() {
        let add = |all: ParamGroups, g: &Value| {
            all.group(text(&g["pattern"]), |group| group.rate(number(&g["rate"])).decay(number(&g["decay"])))
        };
        optimizer = groups.iter().fold(ParamGroups::new(optimizer), add).boxed();
    }
    if let Some(limit) = run["clip_norm"].as_f64() {
        optimizer = optimizer.process(GlobalNormClip::new(limit)).boxed();
    }
    if let Some(limit) = run["clip_value"].as_f64() {
        optimizer = optimizer.process(ValueClip::new(limit)).boxed();
    }
    if let Some(steps) = run["accumulate"].as_u64() {
        optimizer = Accumulate::new(optimizer, steps as usize).boxed();
    }
    if let Some(decay) = run["ema"].as_f64() {
        let ema = Ema::new(optimizer, decay);
        optimizer = if run["debiased"].as_bool() == Some(true) { ema.debiased() } else { ema }.boxed();
    }
    optimizer
}

fn check(run: &Value, float: DType, engine: &SessionOptions, tolerance: f64) {
    let name = format!("{} in {float} on {}", text(&run["name"]), label(engine));
    let net = Net::on(engine, float, &*optimizer(run));
    let found = net.steps(0..20);
    // A loss in the file covers all batches of one update; the weights change only with an update.
    let per_update = 20 / list(&run["losses"]).len();
    let means: Vec<f64> =
        found.chunks(per_update).map(|c| c.iter().sum::<f64>() / per_update as f64).collect();
    assert_close(&format!("{name}: losses"), &means, &floats(&run["losses"]), tolerance);
    for weight in list(&run["final"]) {
        let weight_name = text(&weight["name"]);
        assert!(WEIGHTS.contains(&weight_name));
        let right = floats(&weight["data"]);
        assert_close(&format!("{name}: {weight_name}"), &net.read(weight_name), &right, tolerance);
    }
    for average in run["averages"].as_array().into_iter().flatten() {
        let average_name = format!("EMA/{}", text(&average["name"]));
        let right = floats(&average["data"]);
        assert_close(&format!("{name}: {average_name}"), &net.read(&average_name), &right, tolerance);
    }
}

#[test]
fn every_optimizer_matches_pytorch() {
    let runs = list(&file()["runs"]);
    assert!(runs.len() >= 39, "the file has lost runs");
    for run in runs {
        for engine in &engines() {
            check(run, DType::F64, engine, 1e-9);
            check(run, DType::F32, engine, 1e-4);
        }
    }
}
