//! Log directories as training leaves them, with plausible values.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;
use tensorpack_dashboard::{Dashboard, Options};
use tensorpack_protobuf::Message;

/// Starts a dashboard for a folder. Returns its address, and the address to open.
pub(crate) fn serve(folder: &Path, change: impl FnOnce(&mut Options)) -> (std::net::SocketAddr, String) {
    let mut options = Options { folders: vec![folder.to_path_buf()], port: 0, ..Options::default() };
    options.interval = Duration::from_millis(100);
    change(&mut options);
    let dashboard = Dashboard::bind(&options).unwrap();
    let started = (dashboard.address(), dashboard.url());
    // It serves until the tests end.
    thread::spawn(move || dashboard.run().unwrap());
    started
}

/// A generator of numbers from -1 to 1 that is the same everywhere.
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Noise {
        Noise(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

/// A run to write.
pub(crate) struct Sample {
    pub(crate) name: &'static str,
    pub(crate) seed: u64,
    pub(crate) epochs: u32,
    pub(crate) learning_rate: f64,
    /// The last line of the log.
    pub(crate) ending: &'static str,
    /// Whether it has images, histograms and a graph.
    pub(crate) media: bool,
}

pub(crate) const STEPS_PER_EPOCH: u32 = 468;

/// Five runs of two models. The process that holds the returned lock trains the last one.
pub(crate) fn write_samples(folder: &Path) -> File {
    let finished = "training finished after epoch 30, step 14040";
    let run = |name, seed, epochs, learning_rate, ending, media| Sample {
        name,
        seed,
        epochs,
        learning_rate,
        ending,
        media,
    };
    for sample in [
        run("mnist/baseline", 1, 30, 1e-3, finished, true),
        run("mnist/dropout-0.3", 2, 30, 1e-3, finished, true),
        run(
            "mnist/lr-1e-2",
            3,
            30,
            1e-2,
            "training stopped: no better validation_error for 10 epochs",
            false,
        ),
        run("mnist/wide", 4, 11, 5e-4, "saved", false),
        run("mnist/cosine", 5, 18, 2e-3, "saved", true),
    ] {
        write_run(&folder.join(sample.name), &sample);
    }
    let lock = File::options().write(true).open(folder.join("mnist/cosine/lock")).unwrap();
    lock.lock().unwrap();
    lock
}

/// Writes a log directory.
pub(crate) fn write_run(dir: &Path, sample: &Sample) {
    fs::create_dir_all(dir.join("checkpoints/step-1")).unwrap();
    let mut noise = Noise::new(sample.seed);
    let (mut stats, mut steps, mut timing, mut log) =
        (String::new(), String::new(), String::new(), String::new());
    let (mut events, start) =
        (record(Message::new().double(1, 1.8e9).string(3, "brain.Event:2")), 1.8e9 + sample.seed as f64);
    let speed = sample.learning_rate.powf(0.35) * 9.0;
    let cost = |epoch: f64, noise: &mut Noise| {
        let floor = 0.01 + 0.004 * (sample.seed % 3) as f64;
        floor + 2.3 * (-speed * epoch).exp() + 0.28 / (1.0 + epoch * speed) * (1.0 + 0.8 * noise.next())
    };
    if sample.media {
        events.extend(record(event(start, 0).bytes(4, graph().into_bytes())));
    }
    let _ = writeln!(log, "[1116 05:23:00 @trainer.rs:202] 12 trainable variables, 836522 elements, 3.19 MB");
    let _ =
        writeln!(log, "[1116 05:23:00 @main_loop.rs:94] epoch 1 of {}, global step 0", sample.epochs.max(30));
    for epoch in 1..=sample.epochs {
        for part in 1..=50 {
            let at = f64::from(epoch - 1) + f64::from(part) / 50.0;
            let step = (at * f64::from(STEPS_PER_EPOCH)) as u32;
            let value = cost(at, &mut noise);
            let norm = 0.3 + 2.0 * value + 0.2 * noise.next().abs();
            let _ = writeln!(
                steps,
                r#"{{"epoch_num":{epoch},"global_step":{step},"cost":{value},"gradient_norm":{norm}}}"#
            );
        }
        let step = epoch * STEPS_PER_EPOCH;
        let at = f64::from(epoch);
        let (train, valid) = (cost(at, &mut noise), cost(at, &mut noise) * 1.2);
        let (accuracy, error) = (1.0 - train * 0.3, valid * 0.22);
        let rate = sample.learning_rate * 0.5 * (1.0 + (at / 30.0 * std::f64::consts::PI).cos());
        let odd = if sample.seed == 3 && epoch == 7 { "\"NaN\"".to_string() } else { train.to_string() };
        let _ = write!(stats, r#"{{"epoch_num":{epoch},"global_step":{step},"accuracy":{accuracy}"#);
        let _ =
            write!(stats, r#","cost":{odd},"learning_rate":{rate},"validation_accuracy":{}"#, 1.0 - error);
        let _ = writeln!(stats, r#","validation_error":{error}}}"#);
        let (input, compute, callbacks) =
            (1.2 + 0.3 * noise.next(), 4.1 + 0.2 * noise.next(), 0.5 + 0.1 * noise.next());
        let throughput = f64::from(STEPS_PER_EPOCH) * 128.0 / (input + compute);
        let (memory, queue) = (1.4 + 0.02 * at + 0.05 * noise.next(), 35.0 + 12.0 * noise.next());
        let _ = write!(timing, r#"{{"epoch_num":{epoch},"global_step":{step},"CPU memory (GB)":{memory}"#);
        let _ = write!(timing, r#","QueueInput/queue_size":{queue}"#);
        let _ = writeln!(timing, r#","Throughput (samples/sec)":{throughput}}}"#);
        let _ = writeln!(log, "[1116 05:23:07 @scalar_printer.rs:78] statistics of epoch {epoch}");
        let _ = writeln!(log, "  validation_error {error:.5}");
        let all = input + compute + 0.05;
        let _ = writeln!(
            log,
            "[1116 05:23:07 @main_loop.rs:197] epoch {epoch}: {all:.3} s = input {input:.3} + \
             compute {compute:.3} + other 0.050; then callbacks {callbacks:.3} s"
        );
        if epoch == 4 {
            let _ = writeln!(log, "[1116 05:23:07 @monitors.rs:88] WRN the disk is nearly full");
        }
        let seconds = start + at * (all + callbacks);
        let scalar = Message::new().string(1, "cost").float(2, train as f32);
        events.extend(record(event(seconds, step).message(5, &Message::new().message(1, &scalar))));
        if sample.media && epoch % 3 == 0 {
            events.extend(image_event(
                seconds,
                step,
                "samples",
                &digits(sample.seed, at / f64::from(sample.epochs)),
            ));
            for (tag, width) in [("conv0/W", 0.12), ("fc0/W", 0.05), ("gradients/fc0/W", 0.02)] {
                events.extend(histogram_event(seconds, step, tag, width * (1.0 + at / 12.0)));
            }
        }
    }
    let _ = writeln!(log, "[1116 05:24:27 @main_loop.rs:81] {}", sample.ending);
    let write = |name: &str, text: &str| fs::write(dir.join(name), text).unwrap();
    write("stats.jsonl", &stats);
    write("steps.jsonl", &steps);
    write("timing.jsonl", &timing);
    write("log.log", &log);
    fs::write(dir.join("events.out.tfevents.1800000000.tensorpack"), events).unwrap();
    write("lock", &format!("{} {}\n", std::process::id(), host()));
    write("hyper.txt", &format!("learning_rate: {}\n", sample.learning_rate));
    let start = serde_json::json!({
        "time": format!("2027-01-15T08:0{}:00Z", sample.seed),
        "program": "mnist_convnet",
        "arguments": ["--logdir", sample.name, "--seed", "0"],
        "git": {"commit": "5bd6e3a", "dirty": sample.seed == 5},
        "versions": {"tensorpack": "0.1.0", "rustc": "1.91.0"},
        "host": {"name": "node-3", "threads": 16},
        "options": {"max_epoch": 30, "learning_rate": sample.learning_rate},
    });
    write("manifest.json", &serde_json::json!({"version": 1, "starts": [start]}).to_string());
    write("checkpoints/latest", "step-1\n");
    write(
        "checkpoints/step-1/state.json",
        r#"{"settings":{"device":"cpu:0","max_epoch":30,"seed":0,"towers":1}}"#,
    );
}

fn host() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_string()
}

fn event(seconds: f64, step: u32) -> Message {
    Message::new().double(1, seconds).int64(2, i64::from(step))
}

fn record(event: Message) -> Vec<u8> {
    let data = event.into_bytes();
    let length = (data.len() as u64).to_le_bytes();
    let crc = |bytes: &[u8]| crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    [&length[..], &crc(&length), &data, &crc(&data)].concat()
}

fn image_event(seconds: f64, step: u32, tag: &str, image: &(u32, u32, Vec<u8>)) -> Vec<u8> {
    let (width, height, pixels) = image;
    let proto = Message::new()
        .int64(1, i64::from(*height))
        .int64(2, i64::from(*width))
        .int64(3, 1)
        .bytes(4, png(*width, *height, pixels));
    let value = Message::new().string(1, tag).message(4, &proto);
    record(event(seconds, step).message(5, &Message::new().message(1, &value)))
}

fn png(width: u32, height: u32, pixels: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.write_header().unwrap().write_image_data(pixels).unwrap();
    file
}

/// A sheet of rings that get sharper.
fn digits(seed: u64, sharpness: f64) -> (u32, u32, Vec<u8>) {
    let (count, rows, size) = (8, 4, 28);
    let mut noise = Noise::new(seed);
    let ring =
        |noise: &mut Noise| [14.0 + 3.0 * noise.next(), 14.0 + 3.0 * noise.next(), 7.0 + 2.5 * noise.next()];
    let rings: Vec<[f64; 3]> = (0..count * rows).map(|_| ring(&mut noise)).collect();
    let mut pixels = Vec::new();
    for y in 0..rows * size {
        for x in 0..count * size {
            let [cx, cy, radius] = rings[y / size * count + x / size];
            let distance = ((x % size) as f64 - cx).hypot((y % size) as f64 - cy);
            let ring = (-((distance - radius) / (4.0 - 2.6 * sharpness)).powi(2)).exp();
            pixels.push((255.0 * ring + 90.0 * (1.0 - sharpness) * noise.next()) as u8);
        }
    }
    ((count * size) as u32, (rows * size) as u32, pixels)
}

fn histogram_event(seconds: f64, step: u32, tag: &str, width: f64) -> Vec<u8> {
    let limits: Vec<f64> = (-30..=30).map(|i| f64::from(i) / 30.0).collect();
    let counts: Vec<f64> =
        limits.iter().map(|x| (1e4 * (-(x / width).powi(2) / 2.0).exp()).round()).collect();
    let proto = Message::new()
        .double(1, -4.0 * width)
        .double(2, 4.0 * width)
        .packed_double(6, limits)
        .packed_double(7, counts);
    let value = Message::new().string(1, tag).message(5, &proto);
    record(event(seconds, step).message(5, &Message::new().message(1, &value)))
}

fn graph() -> Message {
    let node = |name: &str, op: &str, inputs: &[&str], sizes: &[i64]| {
        let shape = sizes.iter().fold(Message::new(), |s, &n| s.message(2, &Message::new().int64(1, n)));
        let list = Message::new().message(1, &Message::new().message(7, &shape));
        let attribute = Message::new().string(1, "_output_shapes").message(2, &list);
        let def = Message::new().string(1, name).string(2, op);
        inputs.iter().fold(def, |d, i| d.string(3, i)).message(5, &attribute)
    };
    let mut nodes =
        vec![node("input", "Placeholder", &[], &[-1, 28, 28]), node("label", "Placeholder", &[], &[-1])];
    let mut last = "input".to_string();
    for (i, size) in [28, 14, 14, 7].into_iter().enumerate() {
        let name = |part: &str| format!("conv{i}/{part}");
        nodes.push(node(&name("W"), "Read", &[], &[3, 3, 32, 32]));
        nodes.push(node(&name("Conv2d"), "Conv2d", &[&last, &name("W")], &[-1, size, size, 32]));
        nodes.push(node(&name("b"), "Read", &[], &[32]));
        nodes.push(node(&name("Add"), "Add", &[&name("Conv2d"), &name("b")], &[-1, size, size, 32]));
        nodes.push(node(&name("Relu"), "Relu", &[&name("Add")], &[-1, size, size, 32]));
        last = name("Relu");
        if i % 2 == 0 {
            let pool = format!("pool{i}");
            nodes.push(node(&pool, "MaxPool", &[&last], &[-1, size / 2, size / 2, 32]));
            last = pool;
        }
    }
    nodes.push(node("fc/W", "Read", &[], &[1568, 10]));
    nodes.push(node("fc/MatMul", "MatMul", &[&last, "fc/W"], &[-1, 10]));
    nodes.push(node("softmax/CrossEntropy", "CrossEntropy", &["fc/MatMul", "label"], &[-1]));
    nodes.push(node("cost", "Mean", &["softmax/CrossEntropy"], &[]));
    nodes.push(node("accuracy", "Mean", &["fc/MatMul", "label"], &[]));
    nodes.push(node("gradients/Mul", "Mul", &["cost"], &[]));
    nodes.iter().fold(Message::new(), |graph, node| graph.message(1, node))
}

/// Returns the values of a statistic in a file of JSON lines, as serde_json reads them.
pub(crate) fn values(path: PathBuf, name: &str) -> Vec<(f64, f64)> {
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
    lines.filter_map(|l| Some((l["global_step"].as_f64()?, l[name].as_f64()?))).collect()
}
