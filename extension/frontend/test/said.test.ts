import assert from "node:assert/strict";
import test from "node:test";

import { makeSay } from "../src/said";
import { failureSentence } from "../src/sentences";
import type { Failure } from "../src/types";
import { english } from "../src/words";

const server = (text: string) => `server\u0004${text}`;
const catalogue = {
  "": { language: "zh-CN" },
  "%1 is defined in cell %2": ["not of the server"],
  [server("%1 is not defined.")]: ["%1 没有定义。"],
  [server("%1 is defined in %2, which is not promoted.")]: ["%1 在%2 中定义，而该单元格没有被提升。"],
  [server("cell %1")]: ["单元格 %1"],
  [server("Trying again: %1")]: ["正在重试：%1"],
  [server("The launcher is starting.")]: ["启动器正在启动。"],
  [server("Wait for its end, or run `slicelift cancel %1`.")]: ["请等它结束，或执行 `slicelift cancel %1`。"],
  [server("%1: %2.")]: ["%1：%2。"],
  [server("it only works in a session")]: ["它只能在会话中使用"],
  [server("It takes %1 (see [%2])?")]: ["需要 %1（见 [%2]）？"],
  [server("Versions: %1.")]: [""],
  [server("Rank %1 was killed by SIGKILL; see dmesg.")]: ["rank %1 被 SIGKILL 杀死；见 dmesg。"],
};
const say = makeSay(catalogue);

test("the values are put where the language wants them", () => {
  assert.equal(say("model is defined in cell 3, which is not promoted."), "model 在单元格 3 中定义，而该单元格没有被提升。");
});

test("signs of a pattern are signs, and a value may be empty, long or of several lines", () => {
  assert.equal(say("It takes a.b+c (see [$1])?"), "需要 a.b+c（见 [$1]）？");
  assert.equal(say(" is not defined."), " 没有定义。");
  assert.equal(say("a\nb is not defined."), "a\nb 没有定义。");
});

test("a value that is a sentence itself is said, too", () => {
  assert.equal(say("Trying again: The launcher is starting."), "正在重试：启动器正在启动。");
});

test("sentences after each other are said one by one; what is unknown stays", () => {
  const both = "The launcher is starting. Wait for its end, or run `slicelift cancel r-1`.";
  assert.equal(say(both), "启动器正在启动。请等它结束，或执行 `slicelift cancel r-1`。");
  assert.equal(say("The launcher is starting. Ask Ann."), "启动器正在启动。 Ask Ann.");
});

test("a frame without words of its own is for known sentences only", () => {
  assert.equal(say("%store x: it only works in a session."), "%store x：它只能在会话中使用。");
  assert.equal(say("ValueError: bad."), "ValueError: bad.");
});

test("what no entry of the server fits stays as it is", () => {
  for (const text of ["x is defined in cell 3", "Versions: 1, 2.", "NameError: x", "", "y".repeat(5000)]) assert.equal(say(text), text);
  assert.equal(makeSay({})("The launcher is starting."), "The launcher is starting.");
});

test("of a failure our own words are said, and a program's own are not", () => {
  const words = { ...english, say };
  const failure = (message: string, exception = ""): Failure =>
    ({ message, rank: 1, exit_code: 1, exception, cell: null, line: null, file: null, source: "", traceback: "" });
  const told = (message: string, exception?: string) => failureSentence(failure(message, exception), "n.ipynb", words);
  assert.equal(told("Rank 1 was killed by SIGKILL; see dmesg."), "rank 1 被 SIGKILL 杀死；见 dmesg");
  assert.equal(told("The launcher is starting."), "Rank 1 failed: 启动器正在启动");
  assert.equal(told("Rank 1 raised NameError: x is not defined.", "NameError"), "Rank 1 failed: NameError: x is not defined");
});
