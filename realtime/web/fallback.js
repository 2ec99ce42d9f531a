// The worklet's player on the page's own thread, for pages that are neither on https nor on
// localhost: there browsers have no worklets. Sound may stutter where the page is busy.

const BLOCK = 2048;

export async function playerNode(context, processorOptions) {
  const { port1, port2 } = new MessageChannel();
  let Processor = null;
  // What a worklet's scope has.
  Object.assign(globalThis, {
    sampleRate: context.sampleRate,
    registerProcessor: (_, constructor) => (Processor = constructor),
    AudioWorkletProcessor: class {
      port = port1;
    },
  });
  await import("./worklet.js");
  const processor = new Processor({ processorOptions });
  const node = context.createScriptProcessor(BLOCK, 0, 1);
  node.onaudioprocess = ({ outputBuffer }) => {
    processor.process([], [[outputBuffer.getChannelData(0)]]);
  };
  return { port: port2, connect: (to) => node.connect(to), node, processor };
}
