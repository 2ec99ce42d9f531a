// The form for a voice of one's own: a file or the microphone, the words, a name.

import { Recorder } from "./recorder.js";

const MOST_S = 60; // the longest recording that a server takes
const $ = (id) => document.getElementById(id);

// `added` is called with the id of a voice that can speak.
export function cloning(server, added) {
  let recorder = null;
  let recording = null;
  let watching = null;

  function watch() {
    $("recorded").textContent = `${recorder.seconds.toFixed(0)} s`;
    if (recorder.seconds >= MOST_S - 0.5) finish();
  }

  async function start() {
    const starting = new Recorder();
    $("record").disabled = true;
    try {
      await starting.start();
    } catch (error) {
      $("recorded").textContent = `no microphone: ${error.message}`;
      return;
    } finally {
      $("record").disabled = false;
    }
    recorder = starting;
    recording = null;
    $("recording").value = "";
    watching = setInterval(watch, 200);
    shown(true);
  }

  async function finish() {
    clearInterval(watching);
    const ending = recorder;
    recorder = null;
    shown(false);
    const seconds = ending.seconds;
    recording = await ending.stop();
    $("recorded").textContent = `${seconds.toFixed(1)} s recorded`;
  }

  function shown(on) {
    $("record").textContent = on ? "Stop recording" : "Record again";
    $("record").setAttribute("aria-pressed", String(on));
  }

  async function add(event) {
    event.preventDefault();
    if (recorder) await finish();
    const audio = $("recording").files[0] ?? recording;
    if (!audio) {
      $("cloned").textContent = "Choose an audio file or record one.";
      return;
    }
    $("cloned").textContent = "Listening to it…";
    $("add").disabled = true;
    try {
      const voice = await server.addVoice($("title").value, $("words").value, audio);
      $("cloned").textContent = `“${voice.title}” is ready.`;
      await added(voice._id);
    } catch (error) {
      $("cloned").textContent = error.message;
    } finally {
      $("add").disabled = false;
    }
  }

  $("record").addEventListener("click", () => (recorder ? finish() : start()));
  $("recording").addEventListener("change", () => {
    if (recorder) finish();
    recording = null;
    $("recorded").textContent = "";
  });
  $("cloning").addEventListener("submit", add);
}
