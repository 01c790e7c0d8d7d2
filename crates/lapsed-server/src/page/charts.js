// Charts of the last hour (or since the process started, if that is less), drawn as SVG without a
// library.

import { el, say, svg } from "./elements.js";
import { clock, count, span } from "./words.js";

const BARS = 60;
const HEIGHT = 40;
const RANGE_MS_MIN = 600_000;

/** The values of the bars, oldest first. A bar that covers several slices has the worst of their values. */
function bars(history) {
  const range_ms = Math.max(history.now_ms - history.since_ms, RANGE_MS_MIN);
  const bar_ms = Math.ceil(range_ms / BARS / history.slice_ms) * history.slice_ms;
  const list = Array.from({ length: BARS }, (_, index) => ({ at_ms: history.now_ms - (BARS - index) * bar_ms, reclaimed: 0, p50: 0, p99: 0 }));
  for (const sample of history.samples) {
    const bar = list[BARS - 1 - Math.floor((history.now_ms - sample.at_ms) / bar_ms)];
    if (!bar) continue;
    bar.reclaimed += sample.reclaimed;
    bar.p50 = Math.max(bar.p50, sample.lag_p50_ms ?? 0);
    bar.p99 = Math.max(bar.p99, sample.lag_p99_ms ?? 0);
  }
  return { list, bar_ms };
}

function rectangle(index, value, top, name) {
  const height = Math.max(1, (value / top) * HEIGHT);
  return svg("rect", { x: index * 4, y: HEIGHT - height, width: 3, height, class: name });
}

/** Draws `layers` of bars, one over the other. */
function draw(list, layers, top) {
  const shapes = list.flatMap((bar, index) => layers.map(([key, name]) => (bar[key] > 0 ? rectangle(index, bar[key], top, name) : null)));
  return svg("svg", { viewBox: `0 0 ${BARS * 4} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" }, shapes);
}

/** The frame of a chart: a title and a total above it, the times at both ends and the highest bar below it. */
function frame(title) {
  const parts = { sum: el("strong"), picture: el("div", { class: "picture", role: "img" }), from: el("span"), most: el("span"), to: el("span", { text: "now" }) };
  const root = el("figure", { class: "chart" },
    el("figcaption", null, el("span", { text: title }), parts.sum),
    parts.picture,
    el("div", { class: "ends", "aria-hidden": "true" }, parts.from, parts.most, parts.to));
  return { root, ...parts };
}

function show(chart, history, layers, describe) {
  const { list, bar_ms } = bars(history);
  const [key] = layers[0];
  const top = list.reduce((most, bar) => Math.max(most, bar[key]), 0);
  const { sum, most, words } = describe({ list, bar_ms, top, peak: list.find((bar) => bar[key] === top) });
  say(chart.sum, sum);
  say(chart.most, most);
  say(chart.from, clock(list[0].at_ms).slice(0, 5));
  chart.picture.replaceChildren(draw(list, layers, top || 1));
  chart.picture.setAttribute("aria-label", words);
}

/** The chart of the reclaim lag: p99, with p50 in front. Its total is computed from the newest receipts. */
export function lagChart() {
  const chart = frame("reclaim lag");
  const update = (history, lag, away) => show(chart, history, [["p99", "high"], ["p50", "low"]], ({ top, peak }) => {
    const none = away ? "not known while the store does not answer" : "nobody was late";
    return {
      sum: lag ? `p50 ${span(lag.p50_ms)} · p99 ${span(lag.p99_ms)}` : top ? `p99 up to ${span(top)}` : none,
      most: top ? `up to ${span(top)}` : "",
      words: top ? `Reclaim lag over time; the highest p99 was ${span(top)} at ${clock(peak.at_ms)}` : "Reclaim lag over time: " + none,
    };
  });
  return { root: chart.root, update };
}

/** The chart of the number of reclaims. */
export function reclaimChart() {
  const chart = frame("reclaimed");
  const update = (history) => show(chart, history, [["reclaimed", "plain"]], ({ list, bar_ms, top }) => {
    const all = list.reduce((sum, bar) => sum + bar.reclaimed, 0);
    return {
      sum: count(all),
      most: top ? `up to ${count(top)} in ${bar_ms < 60_000 ? bar_ms / 1_000 + " s" : "a minute"}` : "",
      words: `Reclaims over time: ${count(all)} in all, at most ${count(top)} a bar`,
    };
  });
  return { root: chart.root, update };
}
