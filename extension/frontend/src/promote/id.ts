/** Promotion ids in the form that the launcher takes: `p-` and 20 characters of a-z and 2-7. */

// base32's characters in ASCII order, so that a later id sorts later
const ALPHABET = "234567abcdefghijklmnopqrstuvwxyz";
const TIME_LENGTH = 9;
const RANDOM_LENGTH = 11;

/** A new id: the time in milliseconds, then 55 random bits. Ids minted later sort later. */
export function mintId(now: number = Date.now()): string {
  const random = crypto.getRandomValues(new Uint8Array(RANDOM_LENGTH));
  return `p-${timeText(now)}${Array.from(random, (byte) => ALPHABET[byte & 31]).join("")}`;
}

function timeText(milliseconds: number): string {
  let rest = milliseconds;
  let text = "";
  for (let place = 0; place < TIME_LENGTH; place++) {
    text = ALPHABET[rest % 32] + text;
    rest = Math.floor(rest / 32);
  }
  return text;
}
