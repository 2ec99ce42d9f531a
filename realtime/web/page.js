// The page: one turn at a time over one socket that is kept, and what is seen of it.

import { cloning } from "./clone.js";
import { Feed } from "./feed.js";
import { Player, RATE } from "./player.js";
import { Server } from "./server.js";
import { Transcript } from "./transcript.js";
import { Wave } from "./wave.js";

const HEALTH_MS = 3000;
const ENOUGH_S = 30; // of sound that waits: no more text until less does
const $ = (id) => document.getElementById(id);

const server = new Server(() => $("key").value.trim());
const transcript = new Transcript($("spoken"));
const wave = new Wave($("wave"));
const player = new Player(report);
let socket = null;
let connecting = null;
let turns = 0;
let sounding = 0; // the turn that the socket's audio belongs to
// The turn that is on: { id, asked, audio, cut } with times in ms of the page. `finished`: all of
// it came from the server. `over`: nothing more of it is wanted, or heard. `refused`: an error was said.
let turn = { id: 0, over: true };

// One turn -----------------------------------------------------------------------------------------

async function speak() {
  const text = $("text").value;
  if (!text.trim()) return fail("There is no text to speak.");
  stop();
  player.cut();
  const mine = (turn = { id: ++turns });
  $("problem").hidden = true;
  busy(true);
  try {
    await Promise.all([player.open(), connect()]);
  } catch (error) {
    if (turn === mine) {
      turn.over = true;
      busy(false);
      fail(error.message);
    }
    return;
  }
  if (turn !== mine || turn.over) return; // another click came in between
  transcript.clear();
  for (const id of ["ttfa", "heard", "silenced"]) $(id).textContent = "–";
  $("gaps").textContent = "0";
  player.begin();
  send({ event: "start", timestamps: true, context_id: turn.id, request: request() });
  turn.asked = performance.now();
  turn.feed = new Feed(text, Number($("feed").value), {
    onPiece: (piece) => send({ event: "text", text: piece }),
    onEnd: () => send({ event: "stop" }),
    ahead: () => player.buffered > ENOUGH_S,
  });
}

function request() {
  const voice = $("voice").value;
  return {
    format: "pcm",
    sample_rate: RATE,
    latency: "balanced",
    ...(voice ? { reference_id: voice } : {}),
  };
}

function send(message) {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
}

// Silence now, and nothing more of this turn: the barge-in of a conversation.
function interrupt() {
  if (turn.over) return;
  turn.cut = performance.now();
  player.cut();
  transcript.cut();
  stop();
}

function stop() {
  turn.feed?.stop();
  if (turn.asked && !turn.over && !turn.finished) send({ event: "cancel" });
  turn.over = true;
  busy(false);
}

function busy(on) {
  $("cut").disabled = !on;
}

// The socket ---------------------------------------------------------------------------------------

async function connect() {
  if (socket?.readyState === WebSocket.OPEN) return;
  connecting ??= server.connect().finally(() => (connecting = null));
  const opened = await connecting;
  if (socket === opened) return;
  socket = opened;
  seen(true);
  opened.onmessage = ({ data }) => {
    if (socket !== opened) return;
    if (data instanceof ArrayBuffer) sound(data);
    else heard(JSON.parse(data));
  };
  opened.onclose = () => {
    if (socket === opened) lost();
  };
}

function lost() {
  socket = null;
  sounding = 0;
  look();
  if (turn.over || turn.finished || !turn.asked) return;
  turn.feed.stop();
  turn.finished = true; // what came before is heard to its end, or until it is interrupted
  player.end();
  if (!turn.refused) fail("The server went away in the middle of this.");
  if (!turn.audio) stop();
}

function sound(buffer) {
  // Audio that was on its way when another turn was asked for is none of that turn's.
  if (turn.over || sounding !== turn.id) return;
  if (!turn.audio) {
    turn.audio = performance.now();
    $("ttfa").textContent = `${Math.round(turn.audio - turn.asked)} ms`;
  }
  player.push(buffer);
}

function heard(message) {
  if (message.event === "ready") sounding = message.context_id;
  if (turn.over || (message.context_id ?? turn.id) !== turn.id) return;
  switch (message.event) {
    case "aligned":
      transcript.align(message);
      turn.feed.heard(message.chars);
      return;
    case "finish":
      turn.finished = true;
      turn.feed.stop();
      player.end();
      if (message.reason !== "stop") fail(message.message ?? "The server could not speak this.");
      if (!turn.audio) stop();
      return;
    case "error":
      turn.refused = true; // a finish or the end of the socket follows
      return fail(message.error);
  }
}

function fail(message) {
  $("problem").textContent = message;
  $("problem").hidden = false;
}

// What the player says -----------------------------------------------------------------------------

function report(state) {
  if (state.started) {
    $("heard").textContent = `${Math.round(performance.now() - turn.asked)} ms`;
  } else if (state.silent) {
    if (turn.cut) $("silenced").textContent = `${Math.round(performance.now() - turn.cut)} ms`;
    level(0);
  } else {
    wave.add(state.peak ?? 0);
    if (turn.over) return;
    transcript.played(state.done ? Infinity : state.heard);
    $("played").textContent = `${state.played.toFixed(1)} s`;
    level(state.buffered ?? 0);
    if (state.done) stop();
    else $("gaps").textContent = String(state.gaps);
  }
}

function level(seconds) {
  $("level").value = seconds;
  $("buffered").textContent = `${seconds.toFixed(2)} s`;
}

// The server's state and its voices ----------------------------------------------------------------

function seen(ok) {
  const was = $("server").dataset.state;
  const now = ok ? "ok" : "away";
  if (was === now) return;
  $("server").dataset.state = now;
  $("server").textContent = ok ? "ready" : "the server cannot be reached; trying again…";
  if (ok) voices();
}

async function look() {
  seen(await server.healthy());
}

async function voices(chosen = $("voice").value) {
  let items = [];
  try {
    items = await server.voices();
    if ($("key").value) $("keyed").textContent = "The server takes this key.";
  } catch (error) {
    $("access").open = true;
    $("keyed").textContent = error.message;
  }
  const options = items.map(({ _id, title }) => new Option(title || _id, _id));
  $("voice").replaceChildren(new Option("Default voice", ""), ...options);
  $("voice").value = items.some(({ _id }) => _id === chosen) ? chosen : "";
}

// Hands on -----------------------------------------------------------------------------------------

$("speak").addEventListener("submit", (event) => {
  event.preventDefault();
  speak();
});
$("cut").addEventListener("click", interrupt);
$("key").addEventListener("change", () => {
  sessionStorage.setItem("key", $("key").value);
  $("keyed").textContent = "";
  if (turn.over) socket?.close(); // the next turn comes with this key
  voices();
});
$("access").addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("keydown", (event) => {
  if (event.isComposing) return;
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.repeat) {
    event.preventDefault();
    speak();
  } else if (event.key === "Escape") {
    interrupt();
  }
});
$("key").value = sessionStorage.getItem("key") ?? "";
cloning(server, voices);
look();
setInterval(look, HEALTH_MS);
