/** Run by test_same_words.py in Node: prints what the views say of runs and figures in English. */

import { readFileSync } from "node:fs";

import { agoText, durationText, numberText, sizeText } from "../../../extension/frontend/src/figures";
import { remarks, sentence, statusWord, userMetrics } from "../../../extension/frontend/src/sentences";
import type { RunView, Status } from "../../../extension/frontend/src/types";
import { english } from "../../../extension/frontend/src/words";

interface Asked {
  views: RunView[];
  statuses: Status[];
  seconds: number[];
  bytes: number[];
  numbers: (number | string)[];
  ago: number[];
  keys: string[];
}

const asked = JSON.parse(readFileSync(process.argv[2], "utf-8")) as Asked;
console.log(
  JSON.stringify({
    views: asked.views.map((view) => sentence(view, english)),
    remarks: asked.views.map((view) => remarks(view, english)),
    statuses: asked.statuses.map((status) => statusWord(status, english)),
    suspended: asked.statuses.map((status) => statusWord(status, english, "suspended by ann")),
    seconds: asked.seconds.map((seconds) => durationText(seconds, english)),
    bytes: asked.bytes.map(sizeText),
    numbers: asked.numbers.map(numberText),
    ago: asked.ago.map((passed) => agoText(1000, english, 1000 + passed)),
    keys: userMetrics(asked.keys),
  }),
);
