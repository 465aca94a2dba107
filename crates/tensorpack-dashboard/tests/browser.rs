//! The page in a real Chromium.

use crate::devtools::Browser;
use crate::sample_runs::{Sample, serve, values, write_run, write_samples};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;

/// The points of a chart that the page has: run name to list of x and y.
fn points(browser: &mut Browser, tag: &str) -> Value {
    browser.evaluate(&format!(
        "Object.fromEntries(dashboard.charts()[{tag:?}].curves.map(c => \
         [dashboard.server.runs.find(r => r.id === c.run).name, [...c.rawX].map((x, i) => [x, c.rawY[i]])]))"
    ))
}

fn loaded(tag: &str, runs: usize) -> String {
    format!("window.dashboard?.charts()[{tag:?}]?.curves.length === {runs}")
}

/// The mean brightness of a picture, from 0 to 255.
fn brightness(file: &[u8]) -> f64 {
    let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    reader.next_frame(&mut pixels).unwrap();
    pixels.iter().map(|&p| f64::from(p)).sum::<f64>() / pixels.len() as f64
}

/// Lists the texts whose contrast is below that of WCAG AA: 4.5.
const LOW_CONTRAST: &str = r"(() => {
  const parse = (text) => {
    const n = text.match(/[\d.]+/g)?.map(Number) ?? [0, 0, 0, 0];
    const scale = text.startsWith('color(') ? 255 : 1;
    return [n[0] * scale, n[1] * scale, n[2] * scale, n[3] ?? 1];
  };
  const over = (top, below) => top.slice(0, 3).map((c, i) => c * top[3] + below[i] * (1 - top[3])).concat(1);
  const luminance = (color) => {
    const [r, g, b] = color.map((c) => ((c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const low = [];
  for (const e of document.querySelectorAll('body *')) {
    const text = [...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data.trim()).join('');
    if (!text || !e.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true }) || e.closest('.skip')) continue;
    let [below, opacity] = [[], 1];
    for (let at = e; at; at = at.parentElement) {
      below.push(parse(getComputedStyle(at).backgroundColor));
      opacity *= Number(getComputedStyle(at).opacity);
    }
    const back = below.reverse().reduce((under, color) => over(color, under), [255, 255, 255, 1]);
    const style = getComputedStyle(e);
    const color = parse(e instanceof SVGElement ? style.fill : style.color);
    const front = over([...color.slice(0, 3), color[3] * opacity], back);
    const [a, b] = [luminance(front), luminance(back)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    // The parts of a graph have their own background, which differs little from that of the page.
    if (ratio < (e.closest('svg') ? 4 : 4.5)) low.push(`${ratio.toFixed(2)}: ${text.slice(0, 40)} (${e.className})`);
  }
  return [...new Set(low)];
})()";

#[test]
fn the_page_shows_what_the_files_have() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let _lock = write_samples(folder.path());
    let (_, url) = serve(folder.path(), |_| ());

    browser.prefer("light");
    browser.open(&format!("{url}#smooth=0"), 1400, 900);
    browser.wait(&loaded("validation_error", 5));
    assert_eq!(browser.evaluate("document.querySelectorAll('.run').length"), json!(5));
    let status = |browser: &mut Browser, name: &str| {
        browser.evaluate(&format!("dashboard.server.runs.find(r => r.name === {name:?}).status"))
    };
    for (run, expected) in [
        ("mnist/baseline", "finished"),
        ("mnist/lr-1e-2", "stopped"),
        ("mnist/wide", "killed"),
        ("mnist/cosine", "running"),
    ] {
        assert_eq!(status(&mut browser, run), json!(expected), "{run}");
    }
    // Every value of a chart is that of the file.
    for run in ["mnist/baseline", "mnist/lr-1e-2"] {
        let shown = points(&mut browser, "validation_error");
        let shown: Vec<(f64, f64)> = serde_json::from_value(shown[run].clone()).unwrap();
        let expected = values(folder.path().join(run).join("stats.jsonl"), "validation_error");
        assert_eq!(shown, expected, "{run}");
    }
    // A value that is not finite is marked.
    browser.evaluate("document.querySelector('[data-tag=\"cost\"]').scrollIntoView()");
    browser.wait(&loaded("cost", 5));
    let bad = browser.evaluate("dashboard.charts().cost.curves.map(c => c.bad.length).sort()");
    assert_eq!(bad, json!([0, 0, 0, 0, 1]));

    // A line that is appended appears; half a line does not.
    browser.evaluate("document.querySelector('[data-tag=\"validation_error\"]').scrollIntoView()");
    let stats = folder.path().join("mnist/cosine/stats.jsonl");
    let mut file = File::options().append(true).open(&stats).unwrap();
    let before = points(&mut browser, "validation_error")["mnist/cosine"].as_array().unwrap().len();
    file.write_all(
        b"{\"epoch_num\":19,\"global_step\":8892,\"validation_error\":0.5}\n{\"epoch_num\":20,\"glo",
    )
    .unwrap();
    let last = "dashboard.charts().validation_error.curves.flatMap(c => [...c.rawY]).includes(0.5)";
    browser.wait(last);
    let after = points(&mut browser, "validation_error")["mnist/cosine"].as_array().unwrap().len();
    assert_eq!(after, before + 1);

    // A new run appears, with a color of its own.
    let late = Sample { name: "", seed: 9, epochs: 2, learning_rate: 0.1, ending: "saved", media: false };
    write_run(&folder.path().join("mnist/late"), &late);
    browser.wait(&loaded("validation_error", 6));
    let colors = browser.evaluate(
        "new Set([...document.querySelectorAll('.run .swatch')] \
                   .map(s => s.style.getPropertyValue('--color'))).size",
    );
    assert_eq!(colors, json!(6));

    // The table has the best value of each statistic.
    browser.evaluate("document.getElementById('tab-table').click()");
    browser.wait("document.querySelectorAll('td[data-tag=validation_error]').length === 6");
    let expected = values(folder.path().join("mnist/baseline/stats.jsonl"), "validation_error");
    let expected = expected.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
    let shown = browser.evaluate(
        "Number([...document.querySelectorAll('tbody tr')].find(r => r.innerText.includes('baseline')) \
         .querySelector('td[data-tag=validation_error]').dataset.value)",
    );
    assert_eq!(shown, json!(expected));
    assert_eq!(browser.problems, Vec::<String>::new());
}

#[test]
fn charts_zoom_and_the_address_keeps_the_state() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let _lock = write_samples(folder.path());
    let (_, url) = serve(folder.path(), |_| ());
    browser.open(&format!("{url}#smooth=0.9&runs=all"), 1400, 900);
    browser.wait(&loaded("steps/cost", 5));
    let all = browser.evaluate("dashboard.charts()['steps/cost'].curves[0].total").as_u64().unwrap();
    assert_eq!(all, 1500);
    // The moving average of a curve that falls lags behind it.
    let end = "dashboard.charts()['steps/cost'].curves[0]";
    let smoother = browser.evaluate(&format!(
        "(() => {{ const d = (a) => a.slice(1).reduce((s, y, i) => s + Math.abs(y - a[i]), 0); \
         return d([...{end}.smoothY]) < d([...{end}.rawY]) / 2; }})()"
    ));
    assert_eq!(smoother, json!(true));

    let at = browser.evaluate(
        "(() => { const plot = document.querySelector('[data-tag=\"steps/cost\"] .plot'); \
         const b = plot.getBoundingClientRect(); \
         return [b.left, b.top, b.width, b.height]; })()",
    );
    let at: Vec<f64> = at.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
    let (y, width) = (at[1] + at[3] / 2.0, at[2]);
    browser.hover(at[0] + width * 0.5, y);
    browser.wait("!document.getElementById('tooltip').hidden");
    let rows = browser.evaluate("document.querySelectorAll('#tooltip tr').length");
    assert_eq!(rows, json!(5));
    browser.screenshot("hover");
    browser.drag((at[0] + width * 0.5, y), (at[0] + width * 0.7, y));
    browser.wait("dashboard.ui.from !== '' && dashboard.charts()['steps/cost'].curves[0].total < 500");
    let inside = "dashboard.charts()['steps/cost'].curves.every(c => \
                  c.rawX.every(x => x >= Number(dashboard.ui.from) && x <= Number(dashboard.ui.to)))";
    assert_eq!(browser.evaluate(inside), json!(true));
    let address = browser.evaluate("location.hash");
    assert!(address.as_str().unwrap().contains("from="), "{address}");
    browser.key("Escape");
    browser.wait("dashboard.charts()['steps/cost'].curves[0].total === 1500");

    // Keys move the cursor, pin a chart and switch views.
    browser.evaluate("document.querySelector('[data-tag=\"steps/cost\"] .plot').focus()");
    browser.key("ArrowRight");
    browser.wait("document.getElementById('announce').textContent.includes('baseline')");
    browser.key("p");
    browser.wait("document.querySelector('.group h2').textContent === 'Pinned'");
    browser.evaluate("document.activeElement.blur()");
    for (key, tab) in [("2", "system"), ("4", "configuration"), ("1", "charts")] {
        browser.key(key);
        browser.wait(&format!("dashboard.ui.tab === {tab:?}"));
    }
    // The address alone brings all of it back.
    let hash = browser.evaluate("location.hash");
    browser.open(&format!("{url}{}", hash.as_str().unwrap()), 1400, 900);
    browser.wait("document.querySelector('.group h2')?.textContent === 'Pinned'");
    assert_eq!(browser.evaluate("dashboard.ui.smooth"), json!("0.9"));
    for axis in ["epoch", "time"] {
        browser.evaluate(&format!("document.querySelector('input[value={axis}]').click()"));
        browser.wait("dashboard.charts()['steps/cost'].curves[0]?.rawX.at(-1) < 1000");
    }
    browser.evaluate("document.querySelector('input[value=epoch]').click()");
    browser.wait("dashboard.charts()['steps/cost'].curves[0]?.rawX.at(-1) === 30");
    assert_eq!(browser.problems, Vec::<String>::new());
}

#[test]
fn every_view_is_drawn_in_light_and_dark() {
    let Some(mut browser) = Browser::start() else { return };
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path().join("train_log");
    let _lock = write_samples(&folder);
    let (_, url) = serve(&folder, |_| ());
    let wait = [
        ("charts", "document.querySelectorAll('.card[data-points]').length >= 3"),
        (
            "system",
            "document.querySelector('#time-bars') && \
             document.querySelectorAll('.card[data-points]').length >= 3",
        ),
        ("table", "document.querySelectorAll('tbody tr').length === 5"),
        ("configuration", "document.querySelectorAll('tr.differs').length >= 2"),
        (
            "images",
            "[...document.images].filter(i => i.src.includes('api')).length === 3 && \
             [...document.images].every(i => i.complete && i.naturalWidth > 0)",
        ),
        ("histograms", "document.querySelectorAll('.card canvas').length === 9"),
        ("graph", "document.querySelectorAll('.node').length >= 8"),
        ("log", "document.querySelectorAll('.log-line.warn').length === 1"),
    ];
    for (scheme, (width, height)) in [("light", (1400, 900)), ("dark", (1400, 900)), ("light", (400, 800))] {
        browser.prefer(scheme);
        browser.open(&url, width, height);
        browser.wait("window.dashboard?.server.loaded && document.querySelectorAll('.run').length === 5");
        // A run that is not selected is legible, too.
        browser.evaluate("document.querySelectorAll('.run input')[4].click()");
        browser.wait("document.querySelector('.run.off')");
        assert_eq!(browser.evaluate(LOW_CONTRAST), json!([]), "hard to read in {scheme}");
        for (tab, ready) in wait {
            browser.evaluate(&format!("location.hash = 'tab={tab}&ylog=1&smooth=0.85'"));
            browser.wait(&format!("dashboard.ui.tab === {tab:?}"));
            browser.wait(ready);
            // Nothing makes the page wider than the window.
            let overflow = browser.evaluate("document.documentElement.scrollWidth - innerWidth");
            assert_eq!(overflow, json!(0), "{tab} at {width} pixels");
            let shot = browser.screenshot(&format!("{tab}-{scheme}-{width}"));
            let light = brightness(&shot);
            assert_eq!(light > 128.0, scheme == "light", "{tab} in {scheme} has a brightness of {light}");
            let names = "[...document.querySelectorAll('button, input, select, [role=img], [role=tab]')] \
                         .filter(e => !e.getAttribute('aria-label')) \
                         .filter(e => !(e.labels?.length || e.textContent.trim())) \
                         .map(e => e.outerHTML)";
            assert_eq!(browser.evaluate(names), json!([]), "controls without a name in {tab}");
            assert_eq!(browser.evaluate(LOW_CONTRAST), json!([]), "hard to read in {tab}, {scheme}");
        }
    }
    // On a narrow screen the runs are behind a button.
    let visible = "document.getElementById('runs').checkVisibility({ checkVisibilityCSS: true })";
    assert_eq!(browser.evaluate(visible), json!(false));
    browser.evaluate("document.getElementById('open-runs').click()");
    browser.wait(visible);
    browser.wait("getComputedStyle(document.getElementById('sidebar')).opacity === '1'");
    browser.screenshot("runs-400");
    browser.evaluate("document.getElementById('close-runs').click()");
    browser.wait(&format!("!{visible}"));
    // The scope of a layer opens with the keyboard.
    browser.open(&format!("{url}#tab=graph"), 1400, 900);
    browser.wait("document.querySelector('.node.scope')");
    browser.evaluate("document.querySelector('.node.scope').focus()");
    browser.key("Enter");
    browser.wait("[...document.querySelectorAll('.node .label')].some(l => l.textContent === 'Conv2d')");
    assert_eq!(browser.problems, Vec::<String>::new());
}

#[test]
fn a_page_with_a_token_controls_runs() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let _lock = write_samples(folder.path());
    let (_, url) = serve(folder.path(), |options| options.allow_control = true);
    browser.open(&url, 1400, 900);
    browser.wait(
        "window.dashboard?.server.control && \
                  document.querySelectorAll('.run .stop:not([hidden])').length === 1",
    );
    let address = browser.evaluate("location.href");
    assert!(!address.as_str().unwrap().contains("token"), "{address}");
    browser.evaluate("document.getElementById('tab-configuration').click()");
    browser.wait("document.querySelector('form.control')");
    browser.evaluate(
        "(() => { const f = document.querySelector('form.control'); \
         f.querySelectorAll('input')[1].value = '0.125'; \
         f.requestSubmit(); })()",
    );
    browser
        .wait("document.querySelector('form.control .faint:last-child').textContent.includes('hyper.txt')");
    let written = std::fs::read_to_string(folder.path().join("mnist/cosine/hyper.txt")).unwrap();
    assert_eq!(written, "learning_rate: 0.125\n");
    browser.evaluate("document.querySelector('.run .stop:not([hidden])').click()");
    browser.wait("document.querySelector('#confirm[open]')");
    browser.screenshot("stop");
    browser.key("Escape");
    assert_eq!(browser.problems, Vec::<String>::new());
}

/// Values that differ in the last bit, that are never finite, or that end with NaN; names that look alike.
#[test]
fn odd_curves_are_drawn() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("odd");
    std::fs::create_dir(&run).unwrap();
    let mut stats = File::create(run.join("stats.jsonl")).unwrap();
    for epoch in 1..=10u32 {
        // As two ways to compute the same rate give it.
        let rate = if epoch % 2 == 0 { 0.1 + 0.2 } else { 0.3 };
        let cost = if epoch <= 4 { json!(f64::from(epoch)) } else { json!("NaN") };
        let line = json!({"epoch_num": epoch, "global_step": 10 * epoch, "learning_rate": rate, "cost": cost,
            "validation_error": "NaN", "train/accuracy": 0.5, "val/accuracy": 0.5, "constructor/a": 1});
        writeln!(stats, "{line}").unwrap();
    }
    let (_, url) = serve(folder.path(), |_| ());
    browser.open(&format!("{url}#smooth=0"), 1400, 1600);
    for tag in ["learning_rate", "cost", "validation_error"] {
        browser.wait(&loaded(tag, 1));
    }
    // An exact constant would be drawn over the same range.
    let [low, high] = ["[2]", "[3]"].map(|at| {
        browser.evaluate(&format!("dashboard.charts().learning_rate.extent(){at}")).as_f64().unwrap()
    });
    assert!(low < 0.29 && high > 0.31, "{low} {high}");
    // The triangles of NaN lie inside of the chart.
    for tag in ["cost", "validation_error"] {
        let ends = browser.evaluate(&format!("dashboard.charts().{tag}.extent().slice(0, 2)"));
        assert_eq!(ends, json!([10, 100]), "{tag}");
        let drawn = format!(
            "(() => {{ const c = dashboard.charts().{tag}; const [x, y] = [c.px(100), 12].map(p => p * devicePixelRatio); \
             return c.canvas.getContext('2d').getImageData(x - 2, y, 3, 3).data.some(v => v > 0); }})()"
        );
        assert_eq!(browser.evaluate(&drawn), json!(true), "{tag}");
    }
    let titles =
        browser.evaluate("[...document.querySelectorAll('.card h3')].map(h => h.textContent).sort()");
    let expected =
        ["constructor/a", "cost", "learning_rate", "train/accuracy", "val/accuracy", "validation_error"];
    assert_eq!(titles, json!(expected));
    browser.evaluate("location.hash = 'tab=table'");
    browser.wait("document.querySelector('td[data-tag=validation_error]') !== null");
    let shown = browser.evaluate("document.querySelector('td[data-tag=validation_error] span').textContent");
    assert_eq!(shown, json!("NaN"));
    assert!(browser.problems.is_empty(), "{:?}", browser.problems);
}
