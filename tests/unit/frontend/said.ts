/** Run by test_sentences.py in Node: prints what texts of Python are in a catalogue's language. */

import { readFileSync } from "node:fs";

import { type Catalogue, makeSay } from "../../../extension/frontend/src/said";

const { catalogue, texts } = JSON.parse(readFileSync(process.argv[2], "utf-8")) as { catalogue: Catalogue; texts: string[] };
console.log(JSON.stringify(texts.map(makeSay(catalogue))));
