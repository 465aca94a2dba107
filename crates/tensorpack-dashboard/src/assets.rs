//! The files of the page, which the program contains.

use crate::api::Answer;
use bytes::Bytes;
use hyper::StatusCode;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

const ASSETS: [(&str, &str, &str); 9] = [
    ("/", HTML, include_str!("../assets/index.html")),
    ("/style.css", CSS, include_str!("../assets/style.css")),
    ("/icon.svg", SVG, include_str!("../assets/icon.svg")),
    ("/app.js", SCRIPT, include_str!("../assets/app.js")),
    ("/chart.js", SCRIPT, include_str!("../assets/chart.js")),
    ("/charts.js", SCRIPT, include_str!("../assets/charts.js")),
    ("/graph.js", SCRIPT, include_str!("../assets/graph.js")),
    ("/state.js", SCRIPT, include_str!("../assets/state.js")),
    ("/tabs.js", SCRIPT, include_str!("../assets/tabs.js")),
];

/// Returns a file of the page.
pub(crate) fn get(path: &str) -> Answer {
    match ASSETS.iter().find(|(name, ..)| *name == path) {
        Some(&(_, content_type, text)) => Answer {
            status: StatusCode::OK,
            content_type,
            body: Bytes::from_static(text.as_bytes()),
            immutable: false,
        },
        None => Answer::text(StatusCode::NOT_FOUND, "no such page"),
    }
}
