// The replay of a played game: a board or words, facts, a bar for each legal move, a slider and buttons.
// Python sends every position that is shown (see rlnb/display/replay.py); nothing here knows the rules.

// Keeps JupyterLab's shortcuts (Enter, arrows, letters) away. JupyterLab looks at the focused element first, so each
// such element has the attribute: with it on the box alone, an arrow key on the slider folded the section.
const OWN_KEYS = { "data-lm-suppress-shortcuts": "true" };

const SPEEDS = [1, 4, 15, 60]; // positions a second
const LONG_GAME = 60; // positions; longer games start at 15 a second
const ICONS = {
  first: "M3 3h2v10H3zM13 3v10L6 8z",
  back: "M11 3v10L4 8z",
  play: "M4 2v12l9-6z",
  pause: "M4 3h3v10H4zM9 3h3v10H9z",
  forward: "M5 3v10l7-5z",
  last: "M11 3h2v10h-2zM3 3v10l7-5z",
};
const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function box(part, ...children) {
  return element("div", { class: `rlnb-replay-${part}` }, ...children);
}

function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  svg.appendChild(document.createElementNS(SVG, "path")).setAttribute("d", ICONS[name]);
  return svg;
}

function button(name, label, onClick) {
  const node = element("button", { type: "button", title: label, "aria-label": label, ...OWN_KEYS }, icon(name));
  node.addEventListener("click", onClick);
  return node;
}

function percent(share, digits) {
  return share === null ? "–" : `${(100 * share).toFixed(digits)}%`;
}

function drawCell(symbol, share, isChosen, isLast) {
  const [text, background, colour] = symbol;
  const isShaded = share !== null && share !== undefined;
  const shown = text || !isShaded ? text : percent(share, 0);
  const cell = box("cell", shown);
  cell.style.background = isShaded ? `rgba(47, 127, 209, ${0.1 + 0.5 * share})` : background;
  cell.style.color = colour;
  cell.style.setProperty("--scale", text ? Math.min(0.5, 1.3 / text.length) : 0.28);
  cell.classList.toggle("rlnb-replay-share", !text);
  cell.classList.toggle("rlnb-replay-chosen", isChosen);
  cell.classList.toggle("rlnb-replay-last", isLast);
  return cell;
}

function describeBoard(texts, columns) {
  const rows = [];
  for (let at = 0; at < texts.length; at += columns) {
    rows.push(texts.slice(at, at + columns).map((text) => text || "empty").join(" "));
  }
  return `Board, row by row: ${rows.join("; ")}`;
}

function drawBar([words, share, isChosen]) {
  const strip = element("span", { class: "rlnb-replay-strip" });
  strip.style.width = `${100 * (share ?? 0)}%`;
  const row = box("bar", element("span", {}, words), element("span", {}, strip), element("span", {}, percent(share, 1)));
  row.classList.toggle("rlnb-replay-played", isChosen);
  return row;
}

function drawPairs(pairs) {
  return pairs.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]);
}

function render({ model, el }) {
  const [moves, cells, last, facts, details, symbols, columns] =
    ["moves", "cells", "last", "facts", "details", "symbols", "columns"].map((name) => model.get(name));
  const end = moves.length - 1;
  const board = element("div", { class: "rlnb-replay-board", role: "img" });
  board.style.setProperty("--columns", columns);
  const words = element("pre", { class: "rlnb-replay-words" });
  const heading = element("div", { class: "rlnb-replay-heading", "aria-live": "polite" });
  const factList = element("dl", { class: "rlnb-replay-facts" });
  const bars = box("bars");
  const note = box("note");
  const answers = element("dl");
  const slider = element("input", { type: "range", min: 0, max: end, step: 1, "aria-label": "Position in the game", ...OWN_KEYS });
  const speed = element("select", { "aria-label": "Speed", title: "Speed", ...OWN_KEYS });
  for (const perSecond of SPEEDS) speed.append(element("option", { value: perSecond }, `${perSecond} a second`));
  speed.value = end < LONG_GAME ? 1 : 15;

  let timer = null;
  const position = () => Math.min(Math.max(model.get("position"), 0), end);
  const go = (to) => model.set("position", Math.min(Math.max(to, 0), end));
  function stop() {
    clearInterval(timer);
    timer = null;
    drawPlay();
    model.save_changes(); // Python hears where it stopped, not of every position on the way
  }
  function start() {
    if (position() === end) go(0);
    timer = setInterval(() => (position() < end ? go(position() + 1) : stop()), 1000 / Number(speed.value));
    drawPlay();
  }
  const jump = (to) => () => {
    go(to());
    stop();
  };
  const play = button("play", "Play", () => (timer === null ? start() : stop()));
  function drawPlay() {
    const label = timer === null ? "Play" : "Pause";
    play.replaceChildren(icon(label.toLowerCase()));
    play.title = label;
    play.setAttribute("aria-label", label);
  }
  const back = [button("first", "First position", jump(() => 0)), button("back", "One back", jump(() => position() - 1))];
  const forward = [button("forward", "One forward", jump(() => position() + 1)), button("last", "Last position", jump(() => end))];

  function draw() {
    const at = position();
    const detail = details[at] ?? { heading: "", chosen: null, shades: [], text: "", bars: [], note: "", answers: [] };
    const looks = Array.from(cells[at], (character) => symbols[character]);
    board.replaceChildren(...looks.map((look, index) =>
      drawCell(look, detail.shades[index], index === detail.chosen, index === last[at])));
    board.setAttribute("aria-label", describeBoard(looks.map(([text]) => text), columns));
    words.textContent = detail.text;
    heading.textContent = `${moves[at]} of ${moves[end]} moves${detail.heading && ": "}${detail.heading}`;
    const pairs = Object.entries(facts).map(([name, values]) => [name, values[at]]);
    factList.replaceChildren(...drawPairs(pairs));
    bars.replaceChildren(...detail.bars.map(drawBar));
    note.textContent = detail.note;
    answers.replaceChildren(...drawPairs(
      detail.answers.filter(([, text]) => text).map(([role, text]) => [`${role} wrote`, text])));
    slider.value = at;
    slider.setAttribute("aria-valuetext", [heading.textContent, ...pairs.map((pair) => pair.join(" "))].join(", "));
    back.forEach((node) => (node.disabled = at === 0));
    forward.forEach((node) => (node.disabled = at === end));
  }

  slider.addEventListener("input", jump(() => Number(slider.value)));
  slider.addEventListener("keydown", (event) => {
    if (event.key !== " ") return;
    event.preventDefault();
    play.click();
  });
  speed.addEventListener("change", () => {
    if (timer === null) return;
    clearInterval(timer);
    start();
  });
  model.on("change:position", draw);

  const buttons = element("div", { class: "rlnb-replay-buttons", role: "group", "aria-label": "Replay" }, ...back, play, ...forward, speed);
  const side = box("side", box("title", model.get("title")), box("note", model.get("ending")),
    buttons, slider, heading, factList, bars, note, answers);
  el.append(element("div", { class: "rlnb-replay", ...OWN_KEYS }, columns ? board : words, side));
  draw();
  return () => {
    clearInterval(timer);
    model.off("change:position", draw);
  };
}

export default { render };
