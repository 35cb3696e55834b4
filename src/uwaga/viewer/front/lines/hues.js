// A colour for each head.

/**
 * Colours that go around the circle in steps which keep neighbours apart.
 * @param {number} head
 * @param {number} heads
 * @param {"light" | "dark"} theme
 * @returns {string} #rrggbb
 */
export function headColour(head, heads, theme) {
  // Neighbouring heads are a third of the circle apart; the circle is used as finely as there are heads.
  const steps = Math.max(1, heads);
  const stride = Math.max(1, Math.round(steps / 3));
  const place = (head * headCoprime(stride, steps)) % steps;
  return headHex((360 * place) / steps + 24, theme === "dark" ? 0.75 : 0.72, theme === "dark" ? 0.66 : 0.42);
}

/** @param {number} stride @param {number} steps @returns {number} the next number that visits every step */
function headCoprime(stride, steps) {
  const divisor = (/** @type {number} */ a, /** @type {number} */ b) => { while (b) [a, b] = [b, a % b]; return a; };
  let number = stride;
  while (divisor(number, steps) !== 1) number++;
  return number;
}

/** @param {number} hue degrees @param {number} saturation @param {number} lightness @returns {string} */
function headHex(hue, saturation, lightness) {
  const reach = saturation * Math.min(lightness, 1 - lightness);
  const part = (/** @type {number} */ n) => {
    const k = (n + hue / 30) % 12;
    const value = lightness - reach * Math.max(-1, Math.min(k - 3, 9 - k, 1));
    return Math.round(255 * value).toString(16).padStart(2, "0");
  };
  return `#${part(0)}${part(8)}${part(4)}`;
}
