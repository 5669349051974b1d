// The page: sends what is typed, shows what comes, keeps the conversation.

import { newAnswer, textOf } from "./answer.js";
import { requestBody, run } from "./run.js";
import { keep, onSettings, randomSeed, readSettings, restore } from "./settings.js";
import { TurnView } from "./turn.js";

const $ = (id) => document.getElementById(id);
const prompt = $("prompt");
const scroller = $("scroller");
const MODES = { on: [true], off: [false], both: [true, false] };
const HEALTH_EVERY_MS = 15_000;

const turns = restore();
let running = null; // AbortController of the run in progress

function messages() {
  const isKept = ({ answers: [answer] }) => answer.state !== "failed" && textOf(answer);
  return turns.filter(isKept).flatMap((turn) => [
    { role: "user", content: turn.prompt },
    { role: "assistant", content: textOf(turn.answers[0]) },
  ]);
}

function show(turn) {
  const view = new TurnView(turn, turns.indexOf(turn) + 1, () => again(turn, view));
  $("turns").append(view.root);
  $("empty").hidden = true;
  $("clear").hidden = false;
  return view;
}

function setRunning(controller) {
  running = controller;
  $("stop").hidden = !controller;
  $("send").hidden = Boolean(controller);
  $("clear").disabled = Boolean(controller);
  $("turns").setAttribute("aria-busy", String(Boolean(controller)));
}

function say(words) {
  $("said").textContent = words;
}

/** Keeps the end in view unless the reader has scrolled away from it. */
function following(change) {
  const isAtEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 48;
  change();
  if (isAtEnd) scroller.scrollTop = scroller.scrollHeight;
}

async function ask(text, mode) {
  const settings = readSettings();
  if (running || !settings) return false;
  const before = messages();
  const seed = settings.seed ?? randomSeed();
  const answers = MODES[mode ?? settings.mode].map((speculates) => newAnswer(speculates, seed));
  const turn = { prompt: text, seed, mode: mode ?? settings.mode, settings, answers };
  turns.push(turn);
  const view = show(turn);
  scroller.scrollTop = scroller.scrollHeight;
  setRunning(new AbortController());
  say("Answering.");
  try {
    await runAll(turn, view, [...before, { role: "user", content: text }]);
  } finally {
    finish(view);
  }
  return true;
}

/** One after the other, so that each has the machine to itself; the first bad end is the last. */
async function runAll(turn, view, history) {
  for (const [i, answer] of turn.answers.entries()) {
    const body = requestBody(document.body.dataset.model, history, turn.settings, answer);
    await run(body, answer, running.signal, (pieces) =>
      following(() => {
        view.views[i].add(pieces);
        view.update();
      }),
    );
    if (answer.state !== "done") break;
  }
}

function finish(view) {
  const hadFocus = document.activeElement === $("stop");
  setRunning(null);
  if (hadFocus) prompt.focus();
  closeOpen(view.turn);
  view.views.forEach((answer) => answer.add([]));
  view.update();
  const [first] = view.turn.answers;
  say(`${textOf(first)} ${view.summary()}`); // an error speaks for itself: it is an alert
  keep(turns);
  askHealth();
}

/** An answer that nobody will finish any more. */
function closeOpen(turn) {
  for (const answer of turn.answers) {
    if (answer.state === "waiting") answer.state = "skipped";
    if (answer.state === "writing") answer.state = "stopped";
  }
}

function again(turn, view) {
  if (running) return;
  turns.splice(turns.indexOf(turn), 1);
  view.root.remove();
  prompt.focus();
  ask(turn.prompt, turn.mode);
}

async function askHealth() {
  let [isReady, words] = [false, "the service cannot be reached"];
  try {
    const reply = await fetch("health", { cache: "no-store" });
    const body = await reply.json();
    isReady = reply.ok;
    const { num_targets: targets, num_drafts: drafts } = body;
    words = isReady ? `ready: ${targets} target, ${drafts} draft` : body.error.message;
  } catch {
    // the words say so already
  }
  $("health").dataset.ready = String(isReady);
  if ($("health-text").textContent !== words) $("health-text").textContent = words;
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = prompt.value.trim();
  if (!text || running || !readSettings()) return;
  prompt.value = "";
  ask(text);
});
prompt.addEventListener("keydown", (key) => {
  if (key.key !== "Enter" || key.shiftKey || key.isComposing) return;
  key.preventDefault();
  if (!running) $("composer").requestSubmit();
});
$("stop").addEventListener("click", () => running?.abort());
$("clear").addEventListener("click", () => {
  turns.length = 0;
  $("turns").replaceChildren();
  $("empty").hidden = false;
  $("clear").hidden = true;
  keep(turns);
  say("New conversation.");
  prompt.focus();
});
for (const example of document.querySelectorAll(".examples button")) {
  example.addEventListener("click", () => {
    prompt.focus();
    ask(example.textContent);
  });
}

onSettings(() => keep(turns));
turns.forEach(closeOpen);
turns.forEach(show);
scroller.scrollTop = scroller.scrollHeight;
askHealth();
setInterval(() => document.hidden || askHealth(), HEALTH_EVERY_MS);
