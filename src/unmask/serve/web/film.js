// A run as something to show to others: an animated GIF, a WebM video, or a picture. Whatever the panes show is painted
// on a canvas where the page has it, so that there is one layout and not two.

import { Gif, palette } from "./gif.js";

const WIDEST = 960; // pixels
const FRAMES = 90; // at most
const LAST_SECONDS = 1.6; // the finished run stays for so long
const LEFT_OUT = ".plan, .note, .unseen, [hidden]";

/** Paint what the panes show; returns a canvas. size: exactly so large, the panes in the middle. */
export function painted(panes, size = null) {
  const boxes = panes.map(({ root }) => root.getBoundingClientRect());
  const ends = panes.map(({ canvas }) => canvas.getBoundingClientRect().bottom + 12);
  const [left, top] = [Math.min(...boxes.map((box) => box.left)), Math.min(...boxes.map((box) => box.top))];
  const [right, bottom] = [Math.max(...boxes.map((box) => box.right)), Math.max(...ends)];
  const [width, height] = [right - left, bottom - top];
  const scale = size ? Math.min(size.width / width, size.height / height) : Math.min(1, WIDEST / width);
  const canvas = document.createElement("canvas");
  canvas.width = size?.width ?? Math.round(width * scale);
  canvas.height = size?.height ?? Math.round(height * scale);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = getComputedStyle(document.documentElement).backgroundColor;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.translate((canvas.width - width * scale) / 2, (canvas.height - height * scale) / 2);
  context.scale(scale, scale);
  context.translate(-left, -top);
  context.beginPath();
  context.rect(left, top, width, height);
  context.clip();
  panes.forEach(({ root }) => paint(context, root));
  return canvas;
}

function paint(context, element) {
  if (element.matches(LEFT_OUT)) {
    return;
  }
  const style = getComputedStyle(element);
  if (element instanceof SVGSVGElement) {
    return paintDrawing(context, element);
  }
  const back = style.backgroundColor;
  for (const box of element.getClientRects()) {
    if (back !== "transparent" && back !== "rgba(0, 0, 0, 0)") {
      context.fillStyle = back;
      context.beginPath();
      context.roundRect(box.x, box.y, box.width, box.height, Math.min(parseFloat(style.borderRadius) || 0, box.height / 2));
      context.fill();
    }
    const ring = style.boxShadow.match(/^(.*?) 0px 0px 0px (\d+)px/);
    if (ring) {
      Object.assign(context, { strokeStyle: ring[1], lineWidth: Number(ring[2]) });
      context.strokeRect(box.x - ring[2] / 2, box.y - ring[2] / 2, box.width + Number(ring[2]), box.height + Number(ring[2]));
    }
  }
  for (const child of element.childNodes) {
    if (child instanceof Text) {
      paintText(context, child, style);
    } else if (child instanceof Element) {
      paint(context, child);
    }
  }
}

/** A text where it stands; a line that is broken, character by character. */
function paintText(context, node, style) {
  if (!node.data.trim()) {
    return;
  }
  Object.assign(context, { font: style.font, fillStyle: style.color, textBaseline: "alphabetic", textAlign: "left" });
  const ascent = context.measureText("x").fontBoundingBoxAscent;
  const range = document.createRange();
  const put = (from, to) => {
    range.setStart(node, from);
    range.setEnd(node, to);
    const boxes = [...range.getClientRects()].filter((box) => box.width);
    if (boxes.length > 1 && to - from > 1) {
      for (let i = from; i < to; i++) {
        put(i, i + 1);
      }
    } else if (boxes.length) {
      context.fillText(node.data.slice(from, to), boxes[0].x, boxes[0].y + ascent);
    }
  };
  put(0, node.data.length);
}

/** The lines, circles and labels of a molecule. */
function paintDrawing(context, svg) {
  const { a, d, e, f } = svg.getScreenCTM();
  const place = (x, y) => [a * Number(x) + e, d * Number(y) + f];
  for (const shape of svg.children) {
    const style = getComputedStyle(shape);
    const at = (name) => shape.getAttribute(name);
    if (shape.localName === "line") {
      Object.assign(context, { strokeStyle: style.stroke, lineWidth: parseFloat(style.strokeWidth) * a, lineCap: "round" });
      context.setLineDash(style.strokeDasharray === "none" ? [] : style.strokeDasharray.split(",").map((one) => parseFloat(one) * a));
      context.beginPath();
      context.moveTo(...place(at("x1"), at("y1")));
      context.lineTo(...place(at("x2"), at("y2")));
      context.stroke();
      context.setLineDash([]);
    } else if (shape.localName === "circle") {
      context.beginPath();
      context.arc(...place(at("cx"), at("cy")), Number(at("r")) * a, 0, 2 * Math.PI);
      context.fillStyle = style.fill;
      context.fill();
      if (style.stroke !== "none") {
        Object.assign(context, { strokeStyle: style.stroke, lineWidth: parseFloat(style.strokeWidth) * a });
        context.stroke();
      }
    } else {
      const size = parseFloat(style.fontSize) * a;
      Object.assign(context, { font: `${style.fontWeight} ${size}px ${style.fontFamily}`, fillStyle: style.fill, textAlign: "center" });
      context.fillText(shape.textContent, ...place(at("x"), at("y")));
    }
  }
  context.textAlign = "left";
}

/** The calls that become frames: all of them, or evenly many. */
export function chosen(calls, most = FRAMES) {
  const count = Math.min(calls + 1, most);
  return Array.from({ length: count }, (_, i) => Math.round((i * calls) / Math.max(count - 1, 1)));
}

/** The run as a GIF. show(calls) draws the page; seconds: how long it plays. */
export function gif(panes, show, calls, seconds) {
  const frames = chosen(calls).map((at) => {
    show(at);
    const canvas = painted(panes);
    return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  });
  // A line that grows while the run goes on makes the page longer: the film has the size of its last picture.
  const { width, height } = frames.at(-1);
  const fit = frames.map((frame) => fitted(frame, width, height));
  const some = fit.filter((_, i) => i % Math.ceil(fit.length / 6) === 0);
  const made = new Gif(width, height, palette([...some, fit.at(-1)]));
  fit.forEach((pixels, i) => made.add(pixels, i === fit.length - 1 ? LAST_SECONDS : seconds / fit.length));
  return made.blob;
}

function fitted(frame, width, height) {
  if (frame.width === width && frame.height === height) {
    return frame.data;
  }
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = getComputedStyle(document.documentElement).backgroundColor;
  context.fillRect(0, 0, width, height);
  context.putImageData(frame, 0, 0);
  return context.getImageData(0, 0, width, height).data;
}

/** Whether this browser records videos. */
export function records() {
  return typeof MediaRecorder !== "undefined" && MediaRecorder.isTypeSupported("video/webm");
}

/** The run as a WebM video, recorded while it plays. */
export async function webm(panes, show, calls, seconds) {
  show(calls);
  const last = painted(panes);
  const canvas = Object.assign(document.createElement("canvas"), { width: last.width & ~1, height: last.height & ~1 });
  const context = canvas.getContext("2d");
  const recorder = new MediaRecorder(canvas.captureStream(30), { mimeType: "video/webm", videoBitsPerSecond: 4e6 });
  const parts = [];
  recorder.ondataavailable = (event) => parts.push(event.data);
  const stopped = new Promise((resolve) => { recorder.onstop = resolve; });
  const frames = chosen(calls, 10 * FRAMES);
  const hold = (time) => new Promise((resolve) => { setTimeout(resolve, 1000 * time); });
  recorder.start();
  for (const at of frames) {
    show(at);
    context.fillStyle = getComputedStyle(document.documentElement).backgroundColor;
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(painted(panes), 0, 0);
    await hold(at === calls ? LAST_SECONDS : seconds / frames.length);
  }
  recorder.stop();
  await stopped;
  return new Blob(parts, { type: "video/webm" });
}
