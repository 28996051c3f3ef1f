// Prints what the browser loads, in KB after gzip, as one JSON line: {"lab_kb", "widget_kb", "total_kb", "goal_kb"}.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";

const lab = "../slicelift/labextension/static";
const kb = (bytes) => Math.round(bytes / 100) / 10;
const packed = (path) => gzipSync(readFileSync(path), { level: 9 }).length;
const scripts = readdirSync(lab).filter((name) => name.endsWith(".js"));
const inLab = scripts.reduce((sum, name) => sum + packed(join(lab, name)), 0);
const widget = packed("../slicelift/widgets/static/widget.js");
console.log(JSON.stringify({ lab_kb: kb(inLab), widget_kb: kb(widget), total_kb: kb(inLab + widget), goal_kb: 150 }));
