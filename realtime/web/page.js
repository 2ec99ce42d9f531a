// The page: one turn at a time over one socket that is kept, and what is seen of it.

import { Feed } from "./feed.js";
import { Player, RATE } from "./player.js";
import { Recorder } from "./recorder.js";
import { Server } from "./server.js";
import { Transcript } from "./transcript.js";
import { Wave } from "./wave.js";

const HEALTH_MS = 3000;
const $ = (id) => document.getElementById(id);

const server = new Server(() => $("key").value.trim());
const transcript = new Transcript($("spoken"));
const wave = new Wave($("wave"));
const player = new Player(report);
let socket = null;
let feed = null;
let turn = null; // { asked, audio, heard, cut }: times of the turn that is on, ms of the page

// One turn -----------------------------------------------------------------------------------------

async function speak() {
  const text = $("text").value;
  if (!text.trim()) return fail("There is no text to speak.");
  stop();
  $("problem").hidden = true;
  try {
    await Promise.all([player.open(), connect()]);
  } catch (error) {
    return fail(error.message);
  }
  transcript.clear();
  for (const id of ["ttfa", "heard", "silenced"]) $(id).textContent = "–";
  $("gaps").textContent = "0";
  player.begin();
  turn = {};
  send({ event: "start", timestamps: true, request: request() });
  turn.asked = performance.now();
  feed = new Feed(
    text,
    Number($("feed").value),
    (piece) => send({ event: "text", text: piece }),
    () => send({ event: "stop" }),
  );
  busy(true);
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
  if (!turn) return;
  turn.cut = performance.now();
  player.cut();
  transcript.cut();
  stop();
}

function stop() {
  feed?.stop();
  feed = null;
  if (turn && !turn.finished) send({ event: "cancel" });
  if (turn) turn.over = true;
  busy(false);
}

function busy(on) {
  $("cut").disabled = !on;
}

// The socket ---------------------------------------------------------------------------------------

async function connect() {
  if (socket?.readyState === WebSocket.OPEN) return;
  socket = await server.connect();
  seen(true);
  socket.onmessage = ({ data }) => (data instanceof ArrayBuffer ? sound(data) : heard(JSON.parse(data)));
  socket.onclose = () => {
    socket = null;
    if (turn && !turn.over && !turn.finished) {
      fail("The server went away in the middle of this.");
      player.end();
      stop();
    }
    look();
  };
}

function sound(buffer) {
  if (!turn || turn.over) return;
  if (!turn.audio) {
    turn.audio = performance.now();
    $("ttfa").textContent = `${Math.round(turn.audio - turn.asked)} ms`;
  }
  player.push(buffer);
}

function heard(message) {
  if (!turn || turn.over) return;
  switch (message.event) {
    case "aligned":
      return transcript.align(message);
    case "finish":
      turn.finished = true;
      player.end();
      if (message.reason !== "stop") fail(message.message ?? "The server could not speak this.");
      return;
    case "error":
      return fail(message.error);
  }
}

function fail(message) {
  $("problem").textContent = message;
  $("problem").hidden = false;
}

// What the player says -----------------------------------------------------------------------------

function report(state) {
  if (!turn) return;
  if (state.started) {
    turn.heard = performance.now();
    $("heard").textContent = `${Math.round(turn.heard - turn.asked)} ms`;
  } else if (state.silent) {
    if (turn.cut) $("silenced").textContent = `${Math.round(performance.now() - turn.cut)} ms`;
  } else if (state.done) {
    transcript.played(Infinity);
    turn.over = true;
    busy(false);
    $("level").value = 0;
    $("buffered").textContent = "0.00 s";
    $("played").textContent = `${state.played.toFixed(1)} s`;
  } else {
    wave.add(state.peak);
    if (turn.over) return;
    transcript.played(state.played);
    $("level").value = state.buffered;
    $("buffered").textContent = `${state.buffered.toFixed(2)} s`;
    $("played").textContent = `${state.played.toFixed(1)} s`;
    $("gaps").textContent = String(state.gaps);
  }
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
  } catch (error) {
    if ($("key").value || $("access").open) fail(error.message);
    else $("access").open = true;
  }
  const options = items.map(({ _id, title }) => new Option(title || _id, _id));
  $("voice").replaceChildren(new Option("Default voice", ""), ...options);
  $("voice").value = items.some(({ _id }) => _id === chosen) ? chosen : "";
}

// A voice of one's own -----------------------------------------------------------------------------

let recorder = null;
let recording = null;

async function record() {
  const on = recorder === null;
  try {
    if (on) {
      const starting = new Recorder();
      await starting.start();
      recorder = starting;
    } else {
      const seconds = recorder.seconds;
      recording = await recorder.stop();
      recorder = null;
      $("recorded").textContent = `${seconds.toFixed(1)} s recorded`;
    }
  } catch (error) {
    recorder = null;
    $("recorded").textContent = `no microphone: ${error.message}`;
    return;
  }
  $("record").textContent = on ? "Stop recording" : "Record again";
  $("record").setAttribute("aria-pressed", String(on));
}

async function clone(event) {
  event.preventDefault();
  const audio = $("recording").files[0] ?? recording;
  if (!audio) {
    $("cloned").textContent = "Choose an audio file or record one.";
    return;
  }
  $("cloned").textContent = "Listening to it…";
  try {
    const voice = await server.addVoice($("title").value, $("words").value, audio);
    $("cloned").textContent = `“${voice.title}” is ready.`;
    await voices(voice._id);
  } catch (error) {
    $("cloned").textContent = error.message;
  }
}

// Hands on -----------------------------------------------------------------------------------------

$("speak").addEventListener("submit", (event) => {
  event.preventDefault();
  speak();
});
$("cut").addEventListener("click", interrupt);
$("record").addEventListener("click", record);
$("recording").addEventListener("change", () => {
  recording = null;
  $("recorded").textContent = "";
});
$("cloning").addEventListener("submit", clone);
$("key").addEventListener("change", () => {
  sessionStorage.setItem("key", $("key").value);
  voices();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    speak();
  } else if (event.key === "Escape") {
    interrupt();
  }
});
$("key").value = sessionStorage.getItem("key") ?? "";
look();
setInterval(look, HEALTH_MS);
