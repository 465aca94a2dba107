//! The answers to the page's requests for data.

use crate::control;
use crate::curve::{Curve, View};
use crate::event_index::{self, Kind, Place};
use crate::graph_def;
use crate::run::{Run, RunData};
use crate::run_list::RunList;
use bytes::Bytes;
use hyper::StatusCode;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

/// An answer: its status, content type and body.
pub(crate) struct Answer {
    /// The status.
    pub(crate) status: StatusCode,
    /// The content type.
    pub(crate) content_type: &'static str,
    /// The body.
    pub(crate) body: Bytes,
    /// Whether the browser may keep it: it will never change.
    pub(crate) immutable: bool,
}

impl Answer {
    /// An answer with a status and a line of text.
    pub(crate) fn text(status: StatusCode, text: &str) -> Answer {
        let body = Bytes::from(format!("{text}\n"));
        Answer { status, content_type: "text/plain; charset=utf-8", body, immutable: false }
    }

    fn json(value: &Value) -> Answer {
        let body = Bytes::from(value.to_string());
        Answer { status: StatusCode::OK, content_type: "application/json", body, immutable: false }
    }

    fn missing(what: &str) -> Answer {
        Answer::text(StatusCode::NOT_FOUND, what)
    }
}

/// The parameters of a request.
pub(crate) type Query = BTreeMap<String, String>;

/// Parses the part of an address after `?`.
pub(crate) fn parse_query(query: &str) -> Query {
    let decode = |text: &str| {
        let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
        while let Some((&first, after)) = rest.split_first() {
            let hex = |b: &u8| char::from(*b).to_digit(16);
            (rest, _) = match (first, after) {
                (b'%', [a, b, after @ ..]) if hex(a).is_some() && hex(b).is_some() => {
                    (after, bytes.push((hex(a).unwrap_or(0) * 16 + hex(b).unwrap_or(0)) as u8))
                }
                (b'+', after) => (after, bytes.push(b' ')),
                (other, after) => (after, bytes.push(other)),
            };
        }
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (decode(name), decode(value))).collect()
}

/// Answers a request for data. `allow_control` is whether runs may be changed.
pub(crate) fn get(list: &RunList, path: &str, query: &Query, allow_control: bool) -> Answer {
    let run = || query.get("run").and_then(|id| list.run(id)).ok_or_else(|| Answer::missing("no such run"));
    let answer = match path {
        "/api/runs" => Ok(runs(list, query, allow_control)),
        "/api/curves" => Ok(curves(list, query)),
        "/api/table" => Ok(table(list, query)),
        "/api/details" => Ok(details(list, query)),
        "/api/media" => run().map(|run| media(&run)),
        "/api/image" => run().and_then(|run| image(list, &run, query)),
        "/api/histograms" => run().map(|run| histograms(list, &run, query)),
        "/api/graph" => run().and_then(|run| graph(list, &run, query)),
        "/api/log" => run().and_then(|run| log(list, &run, query)),
        _ => Err(Answer::missing("no such page")),
    };
    answer.unwrap_or_else(|refused| refused)
}

/// Answers a request that changes a run.
pub(crate) fn post(list: &RunList, path: &str, body: &[u8]) -> Answer {
    let Ok(body) = serde_json::from_slice::<Value>(body) else {
        return Answer::text(StatusCode::BAD_REQUEST, "the body is not JSON");
    };
    let Some(run) = body["run"].as_str().and_then(|id| list.run(id)) else {
        return Answer::missing("no such run");
    };
    let done = match path {
        "/api/stop" => control::stop(list.roots(), &run),
        "/api/hyper" => match (body["name"].as_str(), body["value"].as_f64()) {
            (Some(name), Some(value)) => control::set_hyper_param(list.roots(), &run, name, value),
            _ => Err("a name and a number are needed".into()),
        },
        _ => return Answer::missing("no such page"),
    };
    match done {
        Ok(()) => Answer::json(&json!({"done": true})),
        Err(why) => Answer::text(StatusCode::CONFLICT, &why),
    }
}

/// The runs that a request names, in that order.
fn chosen(list: &RunList, query: &Query) -> Vec<Arc<Run>> {
    let ids = query.get("runs").map_or("", String::as_str);
    ids.split(',').filter_map(|id| list.run(id)).collect()
}

fn runs(list: &RunList, query: &Query, allow_control: bool) -> Answer {
    let runs = list.runs();
    let infos: Vec<_> = runs.iter().map(|r| (r, r.info())).collect();
    // Runs may disappear, so the sum of the revisions alone could stay the same.
    let revision = format!("{}-{}", runs.len(), infos.iter().map(|(_, i)| i.revision).sum::<u64>());
    if query.get("revision") == Some(&revision) {
        return Answer::json(&json!({"revision": revision}));
    }
    let mut tags: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, info) in &infos {
        for tag in &info.tags {
            let next = tags.len();
            tags.entry(tag).or_insert(next);
        }
    }
    let mut names = vec![""; tags.len()];
    tags.iter().for_each(|(&name, &at)| names[at] = name);
    let shown = infos.iter().map(|(run, info)| {
        json!({
            "id": run.id,
            "name": run.name,
            "status": info.status.word(),
            "revision": info.revision,
            "epoch": info.position.0,
            "step": info.position.1,
            "changed": info.changed,
            "started": info.started,
            "points": info.points,
            "damaged": info.damaged,
            "complete": info.complete,
            "images": info.has[0],
            "histograms": info.has[1],
            "graph": info.has[2],
            "log": info.has[3],
            "tags": info.tags.iter().map(|t| tags[t.as_str()]).collect::<Vec<_>>(),
        })
    });
    let folders: Vec<_> = list.roots().dirs().iter().map(|d| d.display().to_string()).collect();
    Answer::json(&json!({
        "revision": revision,
        "tags": names,
        "runs": shown.collect::<Vec<_>>(),
        "control": allow_control,
        "folders": folders,
    }))
}

/// The curves of one statistic, as binary data: the length of a JSON header (4 bytes, little-endian),
/// the header padded to a multiple of 8, then for each run x and y of the raw and of the smoothed
/// points, as f64.
fn curves(list: &RunList, query: &Query) -> Answer {
    let number = |name: &str| query.get(name).and_then(|v| v.parse::<f64>().ok()).filter(|v| v.is_finite());
    let view = View {
        smoothing: number("smooth").unwrap_or(0.0),
        width: number("width").map_or(600, |w| w.clamp(10.0, 4000.0) as usize),
        range: number("from").zip(number("to")),
        log_x: query.get("xlog").is_some_and(|v| v == "1"),
    };
    let tag = query.get("tag").map_or("", String::as_str);
    let axis = query.get("x").map_or("step", String::as_str);
    let mut header = Vec::new();
    let mut data: Vec<f64> = Vec::new();
    for run in chosen(list, query) {
        let run_data = run.data();
        let Some(curve) = curve(&run_data, tag, axis, &view) else { continue };
        header.push(json!({
            "run": run.id,
            "raw": curve.raw.len(),
            "smooth": curve.smooth.len(),
            "total": curve.total,
            "bad": curve.not_finite,
        }));
        for points in [&curve.raw, &curve.smooth] {
            data.extend(points.iter().map(|p| p.0));
            data.extend(points.iter().map(|p| p.1));
        }
    }
    let mut header = json!(header).to_string();
    while (header.len() + 4) % 8 != 0 {
        header.push(' ');
    }
    let mut body = Vec::with_capacity(4 + header.len() + 8 * data.len());
    body.extend((header.len() as u32).to_le_bytes());
    body.extend(header.as_bytes());
    data.iter().for_each(|v| body.extend(v.to_le_bytes()));
    let content_type = "application/octet-stream";
    Answer { status: StatusCode::OK, content_type, body: body.into(), immutable: false }
}

/// Computes the curve of a statistic over steps, epochs or seconds.
fn curve(data: &RunData, tag: &str, axis: &str, view: &View) -> Option<Curve> {
    let (table, column) = data.column(tag)?;
    let (rows, values) = (column.rows(), column.values());
    let step = |i: usize| data.step_of(table, rows[i]);
    if axis == "step" {
        return Some(Curve::new(rows.len(), |i| (step(i) as f64, values[i]), view));
    }
    if axis == "time" && data.events.times().is_empty() {
        return None;
    }
    // Each x takes a search, so it is computed once.
    let position = |i| match axis {
        "epoch" => data.epoch_of(step(i)),
        _ => data.seconds_of(step(i)).unwrap_or(0.0),
    };
    let xs: Vec<f64> = (0..rows.len()).map(position).collect();
    Some(Curve::new(rows.len(), |i| (xs[i], values[i]), view))
}

/// The last, smallest and largest value of each statistic of the runs, with their steps.
fn table(list: &RunList, query: &Query) -> Answer {
    let float = |x: f64| if x.is_finite() { json!(x) } else { json!(x.to_string()) };
    let rows = chosen(list, query).into_iter().map(|run| {
        let data = run.data();
        let cells = data.columns().filter_map(|(tag, table, column)| {
            let (row, last) = (*column.rows().last()?, *column.values().last()?);
            let at = |(row, value): (u32, f64)| json!([data.step_of(table, row), float(value)]);
            let extremes = column.extremes();
            let cell = json!({
                "last": at((row, last)),
                "min": extremes.map(|e| at(e.min)),
                "max": extremes.map(|e| at(e.max)),
            });
            Some((tag, cell))
        });
        (run.id.clone(), Value::Object(cells.collect()))
    });
    Answer::json(&Value::Object(rows.collect()))
}

fn details(list: &RunList, query: &Query) -> Answer {
    let rows = chosen(list, query).into_iter().map(|run| {
        let hyper: Vec<_> = run.hyper_params(list.roots());
        (run.id.clone(), json!({"details": run.details(list.roots()), "hyper": hyper}))
    });
    Answer::json(&Value::Object(rows.collect()))
}

/// Lists the images, and the names of the histograms.
fn media(run: &Run) -> Answer {
    let data = run.data();
    let mut images: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    let mut histograms: BTreeMap<&str, usize> = BTreeMap::new();
    for entry in data.events.entries() {
        match entry.kind {
            Kind::Image { width, height } => images.entry(&entry.tag).or_default().push(json!({
                "step": entry.step,
                "seconds": entry.seconds,
                "width": width,
                "height": height,
                "place": place_name(&entry.place),
            })),
            Kind::Histogram => *histograms.entry(&entry.tag).or_default() += 1,
        }
    }
    Answer::json(&json!({"images": images, "histograms": histograms}))
}

/// Names a place of the index. Only names of the index are accepted, and never a file or an offset.
fn place_name(place: &Place) -> String {
    format!("{}@{}", place.file, place.offset)
}

fn image(list: &RunList, run: &Run, query: &Query) -> Result<Answer, Answer> {
    let wanted = query.get("place").ok_or_else(|| Answer::missing("no such image"))?;
    let place = {
        let data = run.data();
        let mut entries = data.events.entries().iter().filter(|e| e.kind != Kind::Histogram);
        entries.find(|e| place_name(&e.place) == *wanted).map(|e| e.place.clone())
    };
    let place = place.ok_or_else(|| Answer::missing("no such image"))?;
    let file = list.roots().open(&run.dir.join(&place.file));
    let bytes = file.and_then(|f| event_index::read_place(f, &place));
    let bytes = bytes.map_err(|_| Answer::missing("the image was removed"))?;
    let content_type = match &bytes[..] {
        [0x89, b'P', b'N', b'G', ..] => "image/png",
        [0xff, 0xd8, ..] => "image/jpeg",
        _ => return Err(Answer::text(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not a PNG or JPEG image")),
    };
    Ok(Answer { status: StatusCode::OK, content_type, body: bytes.into(), immutable: true })
}

/// The most histograms of one answer. More are thinned out evenly.
const MAX_HISTOGRAMS: usize = 60;
/// The number of bins that all histograms of a statistic are brought to.
const BINS: usize = 48;

fn histograms(list: &RunList, run: &Run, query: &Query) -> Answer {
    let tag = query.get("tag").map_or("", String::as_str);
    let places: Vec<(u64, Place)> = {
        let data = run.data();
        let entries = data.events.entries().iter().filter(|e| e.kind == Kind::Histogram && e.tag == tag);
        entries.map(|e| (e.step, e.place.clone())).collect()
    };
    let stride = places.len().div_ceil(MAX_HISTOGRAMS).max(1);
    // The newest is always among them.
    let skip = (places.len().max(1) - 1) % stride;
    let read = places.iter().skip(skip).step_by(stride).filter_map(|(step, place)| {
        let file = list.roots().open(&run.dir.join(&place.file)).ok()?;
        let bytes = event_index::read_place(file, place).ok()?;
        Some((*step, event_index::histogram(&bytes).ok()?))
    });
    let read: Vec<_> = read.collect();
    let low = read.iter().map(|(_, h)| h.min).filter(|v| v.is_finite()).fold(f64::INFINITY, f64::min);
    let high = read.iter().map(|(_, h)| h.max).filter(|v| v.is_finite()).fold(f64::NEG_INFINITY, f64::max);
    if low > high {
        return Answer::json(&json!({"low": 0, "high": 0, "steps": []}));
    }
    let high = if high > low { high } else { low + 1.0 };
    let steps = read.iter().map(|(step, h)| json!({"step": step, "bins": rebinned(h, low, high)}));
    Answer::json(&json!({"low": low, "high": high, "steps": steps.collect::<Vec<_>>()}))
}

/// Spreads the buckets of a histogram over bins of equal width.
fn rebinned(h: &event_index::Histogram, low: f64, high: f64) -> Vec<f64> {
    let mut bins = vec![0.0; BINS];
    let width = (high - low) / BINS as f64;
    let mut below = h.min;
    for (&limit, &count) in h.limits.iter().zip(&h.counts) {
        let (from, to) = (below.max(h.min), limit.min(h.max));
        below = limit;
        if count.is_nan() || count <= 0.0 || from.is_nan() || to.is_nan() {
            continue;
        }
        let bin = |x: f64| (((x - low) / width) as usize).min(BINS - 1);
        if to <= from {
            bins[bin(from)] += count;
            continue;
        }
        for (at, value) in bins.iter_mut().enumerate().take(bin(to) + 1).skip(bin(from)) {
            let (begin, end) = (low + width * at as f64, low + width * (at + 1) as f64);
            *value += count * ((to.min(end) - from.max(begin)) / (to - from)).max(0.0);
        }
    }
    bins
}

fn graph(list: &RunList, run: &Run, query: &Query) -> Result<Answer, Answer> {
    let place = run.data().events.graph().cloned().ok_or_else(|| Answer::missing("the run has no graph"))?;
    let file = list.roots().open(&run.dir.join(&place.file));
    let bytes = file.and_then(|f| event_index::read_place(f, &place));
    let bytes = bytes.map_err(|_| Answer::missing("the graph was removed"))?;
    let nodes = graph_def::nodes(&bytes).map_err(|_| Answer::missing("the graph is damaged"))?;
    Ok(Answer::json(&graph_def::scope(&nodes, query.get("scope").map_or("", String::as_str))))
}

/// The most bytes of the log in one answer.
const MAX_LOG: u64 = 256 << 10;

/// Whole lines of the log from an offset, or its end.
fn log(list: &RunList, run: &Run, query: &Query) -> Result<Answer, Answer> {
    let missing = |_| Answer::missing("the run has no log");
    let mut file = list.roots().open(&run.dir.join("log.log")).map_err(missing)?;
    let length = file.metadata().map_err(missing)?.len();
    let from = query.get("from").and_then(|f| f.parse::<u64>().ok()).filter(|&f| f <= length);
    let restarted = from.is_none();
    let from = from.unwrap_or(0).max(length.saturating_sub(MAX_LOG));
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(from)).map_err(missing)?;
    file.take(MAX_LOG).read_to_end(&mut bytes).map_err(missing)?;
    let whole = bytes.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
    let begin = match restarted && from > 0 {
        // The first line is cut.
        true => bytes.iter().position(|&b| b == b'\n').map_or(0, |at| at + 1).min(whole),
        false => 0,
    };
    let text = String::from_utf8_lossy(&bytes[begin..whole]);
    Ok(Answer::json(&json!({"next": from + whole as u64, "restarted": restarted, "text": text})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        let query = parse_query("tag=a%2Fb+c&runs=1,2&bad=%zz%4&empty=&x");
        assert_eq!(query["tag"], "a/b c");
        assert_eq!((&query["runs"][..], &query["bad"][..], &query["empty"][..]), ("1,2", "%zz%4", ""));
        assert!(!query.contains_key("x"));
    }

    #[test]
    fn bins_have_all_values() {
        let h = event_index::Histogram {
            min: -1.0,
            max: 3.0,
            limits: vec![0.0, 1.0, 2.0, f64::MAX],
            counts: vec![4.0, 0.0, 2.0, 6.0],
        };
        let bins = rebinned(&h, -1.0, 3.0);
        assert!((bins.iter().sum::<f64>() - 12.0).abs() < 1e-9);
        assert!((bins[..BINS / 4].iter().sum::<f64>() - 4.0).abs() < 1e-9);
        assert!(bins[BINS / 4..BINS / 2].iter().all(|&b| b.abs() < 1e-9));
        let one = event_index::Histogram { min: 2.0, max: 2.0, limits: vec![2.2], counts: vec![5.0] };
        assert_eq!(rebinned(&one, 2.0, 3.0)[0], 5.0);
    }
}
