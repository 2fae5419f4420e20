// The replay of a game of two: a grid or words, a bar for each legal move, what was written, a slider.
// Python sends every position that is shown (see GameReplay); nothing here knows the rules.

// Keeps JupyterLab's shortcuts (arrows, letters) away. It begins to look at what has the focus, so each such
// element has it: seen on the box alone, an arrow on the slider has folded the section already.
const OWN_KEYS = { "data-lm-suppress-shortcuts": "true" };

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function percent(share) {
  return share === null ? "–" : `${(100 * share).toFixed(1)}%`;
}

function drawGrid(board, frame, columns) {
  board.style.setProperty("--columns", columns);
  board.replaceChildren(...Array.from(frame.marks, (mark, index) => {
    const share = frame.shades[index];
    const text = mark === "." ? (share === null ? "" : `${Math.round(100 * share)}%`) : mark.toUpperCase();
    const cell = element("div", { class: `rlnb-game-cell rlnb-game-${mark === "." ? "empty" : mark}` }, text);
    if (share !== null) cell.style.background = `rgba(47, 127, 209, ${0.1 + 0.5 * share})`;
    cell.classList.toggle("rlnb-game-chosen", index === frame.chosen);
    cell.classList.toggle("rlnb-game-last", index === frame.last);
    return cell;
  }));
  const rows = [];
  for (let at = 0; at < frame.marks.length; at += columns) {
    rows.push(Array.from(frame.marks.slice(at, at + columns), (mark) => (mark === "." ? "empty" : mark.toUpperCase())).join(" "));
  }
  board.setAttribute("aria-label", `Board, row by row: ${rows.join("; ")}`);
}

function barRow([words, share, isChosen]) {
  const strip = element("span", { class: "rlnb-game-strip" });
  strip.style.width = `${100 * (share ?? 0)}%`;
  const row = element("div", { class: "rlnb-game-bar" },
    element("span", {}, words), element("span", {}, strip), element("span", {}, percent(share)));
  row.classList.toggle("rlnb-game-played", isChosen);
  return row;
}

function render({ model, el }) {
  const frames = model.get("frames");
  const columns = model.get("columns");
  const end = frames.length - 1;
  const board = element("div", { class: "rlnb-game-board", role: "img" });
  const words = element("pre", { class: "rlnb-game-words" });
  const heading = element("div", { class: "rlnb-game-heading", "aria-live": "polite" });
  const bars = element("div", { class: "rlnb-game-bars" });
  const note = element("div", { class: "rlnb-game-note" });
  const answers = element("dl");
  const slider = element("input", { type: "range", min: 0, max: end, step: 1, "aria-label": "Position in the game", ...OWN_KEYS });

  const position = () => Math.min(Math.max(model.get("position"), 0), end);
  function go(to) {
    model.set("position", Math.min(Math.max(to, 0), end));
    model.save_changes();
  }
  function button(text, label, to) {
    const node = element("button", { type: "button", title: label, "aria-label": label, ...OWN_KEYS }, text);
    node.addEventListener("click", () => go(to()));
    return node;
  }
  const back = [button("|◀", "First position", () => 0), button("◀", "One back", () => position() - 1)];
  const forward = [button("▶", "One forward", () => position() + 1), button("▶|", "Last position", () => end)];

  function draw() {
    const at = position();
    const frame = frames[at];
    heading.textContent = `${at} of ${end} moves: ${frame.heading}`;
    if (columns) drawGrid(board, frame, columns);
    words.textContent = frame.text;
    bars.replaceChildren(...frame.bars.map(barRow));
    note.textContent = frame.note;
    answers.replaceChildren(...frame.answers.filter(([, text]) => text).flatMap(([role, text]) =>
      [element("dt", {}, `${role} wrote`), element("dd", {}, text)]));
    slider.value = at;
    slider.setAttribute("aria-valuetext", heading.textContent);
    back.forEach((node) => (node.disabled = at === 0));
    forward.forEach((node) => (node.disabled = at === end));
  }

  slider.addEventListener("input", () => go(Number(slider.value)));
  model.on("change:position", draw);
  const title = element("div", { class: "rlnb-game-title" }, model.get("title"));
  const ending = element("div", { class: "rlnb-game-note" }, model.get("ending"));
  const buttons = element("div", { class: "rlnb-game-buttons", role: "group", "aria-label": "Replay" }, ...back, ...forward);
  const side = element("div", { class: "rlnb-game-side" }, title, ending, buttons, slider, heading, bars, note, answers);
  el.append(element("div", { class: "rlnb-game", ...OWN_KEYS }, columns ? board : words, side));
  draw();
  return () => model.off("change:position", draw);
}

export default { render };
