// Fish Audio's JS SDK as it is: HTTP_URL RECORDING -> one JSON line. Node reads this from its input,
// in the folder where the SDK is installed.
//
// Over the socket a turn of two sentences in pcm and one in mp3, one without a sentence end, one
// that is hung up at its first audio, and one after that; the same speech over HTTP; the life of
// a voice; what is wrong. Seconds are of pcm at 24 kHz.

import { readFile } from "node:fs/promises";

import { FishAudioClient, RealtimeEvents } from "fish-audio";

const SPOKEN = "Hello there my friend. How are you today?";
const UNENDED = "and this has no end";
const LONG = "This is a sentence that goes on and on. ".repeat(16);
const LIMIT_MS = 60_000;
const PCM = { text: "", format: "pcm", sample_rate: 24_000 };

const [http, recording] = process.argv.slice(2);
const client = new FishAudioClient({ apiKey: "key", baseUrl: http });
const bytesOf = (chunks) => chunks.reduce((size, chunk) => size + chunk.length, 0);
const secondsOf = (chunks) => bytesOf(chunks) / 48_000;

async function* words(text) {
  for (const word of text.split(/(?= )/)) yield word;
}

// Resolves at the finish, at the socket's end, or, where it is hung up, at that.
async function turn(text, request = PCM, hangUp = false) {
  const chunks = [];
  const connection = await client.textToSpeech.convertRealtime(request, words(text), "s2-pro");
  const ended = new Promise((resolve, reject) => {
    connection.on(RealtimeEvents.CLOSE, () => resolve(chunks));
    connection.on(RealtimeEvents.ERROR, reject);
  });
  connection.on(RealtimeEvents.AUDIO_CHUNK, (chunk) => {
    chunks.push(chunk);
    if (hangUp && chunks.length === 1) connection.close();
  });
  await ended;
  connection.close(); // The SDK keeps its side open.
  return chunks;
}

async function convert(request) {
  const chunks = [];
  const body = await client.textToSpeech.convert(request, "s2-pro");
  for await (const chunk of body) chunks.push(chunk);
  return chunks;
}

async function refusal(promise) {
  try {
    await promise;
  } catch (error) {
    return { status: error.statusCode, body: error.body };
  }
  return null;
}

async function voices() {
  const file = new File([await readFile(recording)], "recording.wav");
  const made = await client.voices.ivc.create({
    title: "t",
    voices: [file],
    texts: ["what is said"],
    tags: ["x"],
    description: "d",
  });
  await client.voices.update(made._id, { title: "t2" });
  const renamed = await client.voices.get(made._id);
  const listed = await client.voices.search({ page_size: 5, self: true });
  const spoken = await convert({ ...PCM, text: SPOKEN, reference_id: made._id });
  await client.voices.delete(made._id);
  return {
    made: [made.title, made.state, made.tags, made.description],
    renamed: renamed.title,
    listed: listed.items.map((voice) => voice._id).includes(made._id),
    spoken_s: secondsOf(spoken),
    gone: await refusal(client.voices.get(made._id)),
  };
}

setTimeout(() => process.exit(1), LIMIT_MS).unref();
const report = {
  turn_s: secondsOf(await turn(SPOKEN)),
  mp3_bytes: bytesOf(await turn(SPOKEN, { text: "", format: "mp3", mp3_bitrate: 64 })),
  flush_s: secondsOf(await turn(UNENDED)),
  interrupted_s: secondsOf(await turn(LONG, PCM, true)),
  again_s: secondsOf(await turn(SPOKEN)),
  convert_s: secondsOf(await convert({ ...PCM, text: SPOKEN })),
  wav_bytes: bytesOf(await convert({ text: SPOKEN, format: "wav", sample_rate: 24_000 })),
  refused: await refusal(convert({ text: SPOKEN, format: "aac" })),
  nobody: await refusal(convert({ text: SPOKEN, reference_id: "nobody" })),
  credit: (await client.user.get_api_credit()).credit,
  balance: (await client.user.get_package()).balance,
  voices: await voices(),
};
console.log(JSON.stringify(report));
process.exit(0);
