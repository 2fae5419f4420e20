// The replay of a game of 2048: a board, what is known of the position, a slider and buttons.
// Python sends every position that is shown (see BoardReplay); nothing here knows the rules.

// Keeps JupyterLab's shortcuts (Enter, arrows, letters) away. It begins to look at what has the focus, so each such
// element has it: seen on the box alone, an arrow on the slider has folded the section already.
const OWN_KEYS = { "data-lm-suppress-shortcuts": "true" };

const DIRECTIONS = { U: ["↑", "up"], D: ["↓", "down"], L: ["←", "left"], R: ["→", "right"] };
const SPEEDS = [["slow", 4], ["medium", 15], ["fast", 60]]; // positions a second
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

function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  const path = svg.appendChild(document.createElementNS(SVG, "path"));
  path.setAttribute("d", ICONS[name]);
  return svg;
}

function button(name, label, onClick) {
  const node = element("button", { type: "button", title: label, "aria-label": label, ...OWN_KEYS }, icon(name));
  node.addEventListener("click", onClick);
  return node;
}

// A cell's character is the exponent of its tile, counted from "0": an empty cell.
function exponents(frame) {
  return Array.from(frame, (character) => character.charCodeAt(0) - 48);
}

function makeBoard(size, colours) {
  const cells = Array.from({ length: size * size }, () => element("div", { class: "rlnb-2048-cell" }));
  const board = element("div", { class: "rlnb-2048-board", role: "img" }, ...cells);
  board.style.setProperty("--size", size);
  function draw(frame, spawned) {
    exponents(frame).forEach((exponent, index) => {
      const cell = cells[index];
      const text = exponent ? String(2 ** exponent) : "";
      const [background, foreground] = exponent ? colours[Math.min(exponent, colours.length) - 1] : ["", ""];
      cell.textContent = text;
      cell.style.background = background;
      cell.style.color = foreground;
      cell.style.setProperty("--scale", Math.min(0.42, 1.3 / Math.max(text.length, 1)));
      cell.classList.toggle("rlnb-2048-new", index === spawned);
    });
    const rows = Array.from({ length: size }, (_, y) =>
      exponents(frame.slice(y * size, (y + 1) * size)).map((e) => (e ? 2 ** e : "empty")).join(" "));
    board.setAttribute("aria-label", `Board, row by row: ${rows.join("; ")}`);
  }
  return { board, draw };
}

function makeFacts(names) {
  const values = names.map(() => element("dd"));
  const facts = element("dl", {}, ...names.flatMap((name, i) => [element("dt", {}, name), values[i]]));
  return { facts, show: (texts) => texts.forEach((text, i) => (values[i].textContent = text)) };
}

function keyText(letter, keys) {
  if (!(letter in DIRECTIONS)) return ["–", "start"];
  const [arrow, word] = DIRECTIONS[letter];
  return [keys[letter] === arrow ? arrow : `${arrow} ${keys[letter]}`, word];
}

function render({ model, el }) {
  const [frames, steps, scores, spawned, letters, keys] = ["frames", "steps", "scores", "spawned", "letters", "key_names"].map((name) => model.get(name));
  const end = frames.length - 1;
  const { board, draw: drawBoard } = makeBoard(model.get("size"), model.get("colours"));
  const { facts, show } = makeFacts(["Move", "Key", "Score", "Largest"]);
  const slider = element("input", { type: "range", min: 0, max: end, step: 1, "aria-label": "Position in the game", ...OWN_KEYS });
  const speed = element("select", { "aria-label": "Speed", title: "Speed", ...OWN_KEYS });
  for (const [name, perSecond] of SPEEDS) speed.append(element("option", { value: perSecond }, name));
  speed.value = SPEEDS[1][1];

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
    const largest = 2 ** Math.max(...exponents(frames[at]));
    const [key, direction] = keyText(letters[at], keys);
    drawBoard(frames[at], spawned[at]);
    show([`${steps[at]} of ${steps[end]}`, key, String(scores[at]), String(largest)]);
    slider.value = at;
    slider.setAttribute("aria-valuetext", `move ${steps[at]} of ${steps[end]}, ${direction}, score ${scores[at]}, largest tile ${largest}`);
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

  const heading = element("div", { class: "rlnb-2048-title" }, model.get("title"));
  const ending = element("div", { class: "rlnb-2048-ending" }, model.get("ending"));
  const buttons = element("div", { class: "rlnb-2048-buttons", role: "group", "aria-label": "Replay" }, ...back, play, ...forward, speed);
  const side = element("div", { class: "rlnb-2048-side" }, heading, ending, facts, buttons, slider);
  el.append(element("div", { class: "rlnb-2048", ...OWN_KEYS }, board, side));
  draw();
  return () => {
    clearInterval(timer);
    model.off("change:position", draw);
  };
}

export default { render };
